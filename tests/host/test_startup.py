"""What the log says of a start: the phase it is in, and the sentence that matters when it fails."""

import pytest

from engine_host.api.types import LogRecord
from engine_host.startup import Progress, explain, progress_of


def record(text: str, level: str = "info") -> LogRecord:
    return LogRecord(1, 0.0, level, "engine", text)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Starting to load model /models/smollm2...", Progress("weights", None)),
        (
            "Loading safetensors checkpoint shards:  50% Completed | 1/2 [00:00<00:00,  1.98it/s]",
            Progress("weights", 0.5),
        ),
        ("Loading weights took 0.51 seconds", Progress("kv-cache", None)),
        (
            "CPU KV cache size: 23,296 tokens, Maximum concurrency for 8,192 tokens per request: 2.84x",
            Progress("warm-up", None),
        ),
        ("init engine (profile, create kv cache, warmup model) took 0.54 s", Progress("warm-up", None)),
        ("Using max model len 8192", None),
    ],
)
def test_the_log_tells_the_phase(text: str, expected: Progress | None) -> None:
    assert progress_of(record(text)) == expected


NO_CAUSE = RuntimeError("Engine core initialization failed. See root cause above. Failed core proc(s): {}")


@pytest.mark.parametrize(
    ("line", "reason"),
    [
        (
            "ValueError: To serve at least one request with the models's max seq len (8192), (0.35 GiB KV cache is "
            "needed, which is larger than the available KV cache memory (0.06 GiB). Based on the available memory, the "
            "estimated maximum model length is 1440.",
            "a context of 8192 tokens needs 0.35 GiB, and 0.06 GiB is left",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", "ran out of memory"),
        ("safetensors_rust.SafetensorError: Error while deserializing header: HeaderTooLarge", "damaged or cut short"),
        ("ValueError: Model architectures ['FooForCausalLM'] are not supported for now.", "['FooForCausalLM']"),
        ("ValueError: something nobody has seen before", "something nobody has seen before"),
    ],
)
def test_a_failure_is_told_by_its_cause_in_the_log(line: str, reason: str) -> None:
    log = [record("Starting to load model x..."), record(line, "error"), record("EngineCore failed to start.", "error")]
    failure = explain(NO_CAUSE, log)
    assert reason in failure.reason
    assert failure.hint
    assert "root cause" not in failure.reason


def test_a_configuration_that_is_refused_is_told_by_what_is_wrong_with_it() -> None:
    said = "1 validation error for VllmConfig\n  Value error, No config file for gptq. [type=value_error, x=1]"
    assert explain(ValueError(said), []).reason == "No config file for gptq."


def test_a_silent_death_is_told_as_one() -> None:
    assert "said nothing" in explain(NO_CAUSE, [record("Starting to load model x...")]).reason
