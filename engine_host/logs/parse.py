"""One printed line → level, source and text. Knows vLLM's line format, tqdm bars and Python warnings."""

import re
from typing import NamedTuple, cast

from engine_host.api.types import LogLevel


class ParsedLine(NamedTuple):
    """What a line says: its level, who printed it, and the text without the prefix."""

    level: LogLevel
    source: str
    text: str


# "(EngineCore pid=12) INFO 11-29 16:13:57 [model.py:733] text"; the first part is missing in some processes.
_VLLM = re.compile(
    r"^(?:\((?P<process>[^()]*?)(?: pid=\d+)?\) )?(?P<level>DEBUG|INFO|WARNING|ERROR|CRITICAL) "
    r"\d\d-\d\d \d\d:\d\d:\d\d \[(?P<where>[^\]]*)\] ?(?P<text>.*)$"
)
_PREFIX = re.compile(r"^\((?P<process>[A-Za-z_][^()]*?) pid=\d+\) (?P<text>.*)$")
_GLOG = re.compile(r"^\[?(?P<level>[IWEF])\d{4} \d\d:\d\d:\d\d[.\d]* (?P<text>.*)$")
_WARNING = re.compile(r"^\S+:\d+: \w*Warning: ")
_ERROR = re.compile(r"^(?:[a-zA-Z_][\w.]*\.)?[A-Z]\w*(?:Error|Exception|Interrupt)\b")

_LEVELS: dict[str, LogLevel] = {"CRITICAL": "error", "I": "info", "W": "warning", "E": "error", "F": "error"}
_PROCESSES = {"MainProcess": "host", "APIServer": "host", "EngineCore": "engine"}


def parse_line(line: str) -> ParsedLine:
    """Parse one line without its end. Anything unknown is `info` from `engine`, word for word."""
    if match := _VLLM.match(line):
        level = match["level"]
        source = _source(match["process"])
        return ParsedLine(_LEVELS.get(level) or cast(LogLevel, level.lower()), source, match["text"])
    source = "engine"
    if match := _PREFIX.match(line):
        source, line = _source(match["process"]), match["text"]
    if match := _GLOG.match(line):
        return ParsedLine(_LEVELS[match["level"]], source, match["text"])
    if _WARNING.match(line):
        return ParsedLine("warning", source, line)
    if _ERROR.match(line):
        return ParsedLine("error", source, line)
    return ParsedLine("info", source, line)


def _source(process: str | None) -> str:
    return _PROCESSES.get(process, process.lower()) if process else "engine"
