"""Reads vLLM's log while an engine starts: which phase it is in, how far, and why it failed.

vLLM reports neither; its log is all there is. The lines looked for are pinned by a test on a recorded start.
"""

import re
from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine_host.api.types import LogRecord, PhaseName


class Progress(NamedTuple):
    """A phase reached, and the fraction of it that is done where the log says so."""

    phase: PhaseName
    fraction: float | None


_STARTED: tuple[tuple[re.Pattern[str], PhaseName], ...] = (
    (re.compile(r"^Starting to load model "), "weights"),
    (re.compile(r"^Loading weights took "), "kv-cache"),
    (re.compile(r"KV cache size: "), "warm-up"),
    (re.compile(r"^init engine \("), "warm-up"),
)
_SHARDS = re.compile(r"^Loading \S+ checkpoint shards: +(\d+)% Completed")


def progress_of(record: LogRecord) -> Progress | None:
    """The phase a log line announces, if it does."""
    if match := _SHARDS.match(record.text):
        return Progress("weights", int(match[1]) / 100)
    for pattern, phase in _STARTED:
        if pattern.search(record.text):
            return Progress(phase, None)
    return None


class Failure(NamedTuple):
    """Why a start failed, as a sentence, and what to do about it."""

    reason: str
    hint: str


Rule = tuple[re.Pattern[str], Callable[[re.Match[str]], Failure]]


def _rule(pattern: str, reason: str, hint: str) -> Rule:
    def build(match: re.Match[str]) -> Failure:
        return Failure(reason.format(*match.groups(), **match.groupdict()), hint)

    return re.compile(pattern, re.IGNORECASE | re.DOTALL), build


_OTHER_MODEL = "Choose another model, or give --model a folder or a name from `llmconsole model list`."

RULES: tuple[Rule, ...] = (
    _rule(
        r"max seq len \((?P<len>\d+)\).*?\((?P<need>[\d.]+ \w+) KV cache is needed.*?available KV cache memory "
        r"\((?P<have>[\d.]+ \w+)\)(?:.*?estimated maximum model length is (?P<fits>\d+))?",
        "The KV cache does not fit: a context of {len} tokens needs {need}, and {have} is left for it.",
        "Lower max_model_len, raise the memory for the KV cache in the profile, or choose a smaller model.",
    ),
    _rule(
        r"No available memory for the cache blocks|Available KV cache memory is negative",
        "No memory is left for the KV cache once the weights are loaded.",
        "Raise gpu_memory_utilization in the profile, free memory on the device, or choose a smaller model.",
    ),
    _rule(
        r"Free memory on device (?P<device>\S+)? ?\(?(?P<free>[\d.]+)/(?P<total>[\d.]+) GiB\)? on startup is less than",
        "Only {free} of {total} GiB are free on the device, less than the profile asks for.",
        "Another process holds memory on the device: end it, or lower gpu_memory_utilization in the profile.",
    ),
    _rule(
        r"(?:CUDA out of memory|OutOfMemoryError|Cannot allocate memory|bad_alloc|can't allocate memory)",
        "The device ran out of memory while the engine was starting.",
        "Choose a smaller model, a quantized one, or a profile with a smaller KV cache.",
    ),
    _rule(
        r"(?:Invalid repository ID or local directory specified|does not appear to have a file named config\.json|"
        r"Repo id must be|is not a local folder and is not a valid model identifier|Can't load the configuration of)"
        r"[^']*(?:'(?P<model>[^']*)')?",
        "The model was not found: there is no folder with a config.json by that name here.",
        _OTHER_MODEL,
    ),
    _rule(
        r"We couldn't connect to '?(?P<host>\S+?)'? to load|LocalEntryNotFoundError|OfflineModeIsEnabled",
        "The model is not on this machine, and its hub can't be reached.",
        _OTHER_MODEL,
    ),
    _rule(
        r"Model architectures (?P<arch>\[[^\]]*\]) (?:are|failed|is)",
        "This version of vLLM can't run the architecture {arch}.",
        _OTHER_MODEL,
    ),
    _rule(
        r"torch\.(?P<dtype>\w+) is not supported|(?:Unknown|Invalid) dtype:? '?(?P<name>\w+)'?|"
        r"invalid choice: '(?P<choice>\w+)'[^\n]*bfloat16",
        "The data type asked for is not supported on this device.",
        'Set dtype = "auto" in the profile, or give --dtype auto.',
    ),
    _rule(
        r"User-specified max_model_len \((?P<asked>\d+)\) is greater than the derived max_model_len "
        r"\(.*?(?P<limit>\d+)",
        "max_model_len is {asked}, but the model was made for {limit} tokens.",
        "Lower max_model_len in the profile or on the command line.",
    ),
    _rule(
        r"HeaderTooLarge|MetadataIncompleteBuffer|InvalidHeader|SafetensorError|incomplete metadata",
        "The model's weight files are damaged or cut short.",
        "Import or copy the model again.",
    ),
)

_ERROR_LINE = re.compile(r"^(?:[\w.]+\.)?[A-Z]\w*(?:Error|Exception)\b:? ?")
_NO_CAUSE = re.compile(r"Engine core initialization failed|See root cause above|EngineCore failed to start")


def explain(error: BaseException | None, log: Sequence[LogRecord]) -> Failure:
    """The sentence that matters about a failed start, from the exception and the log since it began.

    EngineCore's own exception never crosses to this process: only its traceback in the log tells.
    """
    said = [record.text for record in log if record.level == "error" or _ERROR_LINE.match(record.text)]
    own = f"{type(error).__name__}: {error}" if error is not None else ""
    texts = [own, *reversed(said)]
    for pattern, build in RULES:
        for text in texts:
            if match := pattern.search(text):
                return build(match)
    for text in texts:
        plain = _ERROR_LINE.sub("", text).strip()
        if plain and not _NO_CAUSE.search(text) and not plain.startswith(("Traceback", "File ")):
            return Failure(_sentence(plain), "The log has the details. Choose another model or profile to go on.")
    return Failure(
        "The engine's process ended while it was starting, and said nothing about why.",
        "It may have been killed for memory: see the log, or choose a smaller model.",
    )


_VALIDATION = re.compile(r"^\d+ validation errors? for \w+")
_VALUE_ERROR = re.compile(r"^\s*(?:Value error, )?(?P<said>.+?)(?: \[type=.*)?$")


def _sentence(text: str) -> str:
    first, _, rest = text.partition("\n")
    if _VALIDATION.match(first):
        # pydantic says in its second or third line what the first only counts.
        told = next((line for line in rest.splitlines() if "Value error" in line or "[type=" in line), first)
        first = match["said"] if (match := _VALUE_ERROR.match(told)) else first
    first = first.strip()
    return first if len(first) <= 300 else f"{first[:300]}…"
