"""Where records go besides the ring: the rotating file, and JSON lines on standard error for `llmconsole serve`."""

import logging
import logging.handlers
import os
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import msgspec
import structlog

from engine_host.api.types import LogRecord
from engine_host.logs.ring import LogRing, Sink

FILE_BYTES = 10_000_000
FILE_COUNT = 5

REQUEST = "request"
"""The source of the records that are JSON objects: one a request."""


def file_sink(directory: Path, ring: LogRing) -> Sink:
    """Append records to `directory/llmconsole.log`, rotated at 10 MB, five kept.

    A file that can't be written (disk full, no permission) is said once in the ring, and tried again with every line.
    """
    directory.mkdir(parents=True, exist_ok=True)
    complained = False

    class Handler(logging.handlers.RotatingFileHandler):
        def handleError(self, record: logging.LogRecord) -> None:
            nonlocal complained
            if not complained:
                complained = True
                ring.append("error", "host", f"The log file {self.baseFilename} can't be written; see the free disk.")

    handler = Handler(
        directory / "llmconsole.log", maxBytes=FILE_BYTES, backupCount=FILE_COUNT, encoding="utf-8", delay=True
    )

    def write(record: LogRecord) -> None:
        stamp = datetime.fromtimestamp(record.time, UTC).isoformat(timespec="milliseconds")
        line = f"{stamp} {record.level:<7} {record.source}: {record.text}"
        handler.emit(logging.LogRecord("", logging.INFO, "", 0, line, None, None))

    return write


def json_sink(fd: int) -> Sink:
    """Write each record as one JSON line to the descriptor `fd`; a reader that has gone away is no error.

    A record whose text is a JSON object itself (the line of a request) has its fields at the top, beside time, level
    and source, so that a collector of logs finds them without parsing twice.
    """
    render = structlog.processors.JSONRenderer(ensure_ascii=False)

    def write(record: LogRecord) -> None:
        event = _fields(record) | {
            "time": datetime.fromtimestamp(record.time, UTC).isoformat(timespec="milliseconds"),
            "level": record.level,
            "source": record.source,
        }
        line = render(None, record.level, event)
        try:
            os.write(fd, (line if isinstance(line, bytes) else line.encode()) + b"\n")
        except OSError:
            return

    return write


def _fields(record: LogRecord) -> dict[str, Any]:
    if record.source == REQUEST:
        with suppress(msgspec.DecodeError):
            return msgspec.json.decode(record.text, type=dict[str, Any])
    return {"event": record.text}
