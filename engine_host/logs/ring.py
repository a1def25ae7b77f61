"""The bounded ring of log records that screens page through."""

import time
from collections import deque
from collections.abc import Callable
from threading import Lock

from engine_host.api.types import LogLevel, LogPage, LogRecord

CAPACITY = 20_000
"""Records kept. At about 150 bytes a line that is 3 MB."""

MAX_TEXT = 8_192
"""Characters kept of one record: a line without an end can't fill the memory."""

Sink = Callable[[LogRecord], None]


class LogRing:
    """Newest `capacity` records, numbered from 1. Safe to use from any thread.

    Every record also goes to the sinks (the log file, standard error of `llmconsole serve`, the start-up watcher), in
    the appending thread.
    """

    def __init__(self, capacity: int = CAPACITY, clock: Callable[[], float] = time.time) -> None:
        self._records: deque[LogRecord] = deque(maxlen=capacity)
        self._next = 1
        self._lock = Lock()
        self._clock = clock
        self.sinks: list[Sink] = []

    def append(self, level: LogLevel, source: str, text: str) -> None:
        """Add one record; a text over `MAX_TEXT` characters is cut there, and says so."""
        if len(text) > MAX_TEXT:
            text = f"{text[:MAX_TEXT]} … ({len(text) - MAX_TEXT} characters more)"
        with self._lock:
            record = LogRecord(self._next, self._clock(), level, source, text)
            self._next += 1
            self._records.append(record)
        for sink in self.sinks:
            sink(record)

    def page(self, since: int = 0, limit: int = 1_000) -> LogPage:
        """At most `limit` records numbered above `since`, oldest first; with `since` 0 the newest `limit`."""
        with self._lock:
            first = self._records[0].sequence if self._records else self._next
            wanted = max(since + 1, first) if since else max(self._next - limit, first)
            start = wanted - first
            records = tuple(self._records[i] for i in range(start, min(start + limit, len(self._records))))
        return LogPage(records, dropped=max(0, first - since - 1) if since else 0)

    def tail(self, count: int) -> tuple[LogRecord, ...]:
        """The newest `count` records, oldest first."""
        return self.page(0, count).records
