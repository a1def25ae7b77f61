"""The ledger as the host has it: rows go in and never wait; a thread writes them."""

import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

import msgspec

from engine_host.api.figures import LedgerStatus
from engine_host.api.records import EventRecord, MinuteRecord, RequestRecord
from engine_host.api.types import HistoryPoint
from engine_host.ledger import past
from engine_host.ledger.file import LedgerError, why
from engine_host.ledger.writer import AnyRecord, Writer
from profiles.schema import Ledger as Rules

GATHER_S = 0.2
"""Rows that come within this time are written together. It, and a commit, is what a crash loses: less than a second."""

MOST_ROWS = 20_000
"""Rows that may wait, some 40 s of 500 requests a second; what doesn't fit is lost."""

MOST_TEXT = 64 * 2**20
"""Characters of prompts and replies that may wait: without a bound a locked file would take the host's memory."""

BATCH = 2000
"""Rows in one transaction at most."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.5, 5.0
"""Between two tries of a file that can't be written; it doubles."""

PRUNE_EVERY_S = 3600.0
"""Seconds between two looks for rows past their time."""

DAY_S = 86_400.0

CLOSE_S = 3.0
"""Longest that `close` waits for the last rows."""


class Ledger:
    """One row a request, a minute, a change, in the SQLite file at `path`.

    `request`, `minute` and `event`, for the event loop's thread, neither wait nor raise, whatever the disk does.
    `rules` reads the profile in force; `tell` is given sentences for the log, from the writer's thread; `clock` is Unix
    time in seconds.
    """

    def __init__(
        self,
        path: Path,
        rules: Callable[[], Rules],
        tell: Callable[[str], None],
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._path = path
        self._rules = rules
        self._tell = tell
        self._clock = clock
        self._writer = Writer(path)
        self._wake, self._closing = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="ledger", daemon=True)
        # Each figure is changed by one thread alone: the event loop's …
        self._waiting: deque[AnyRecord] = deque()
        self._text_in, self._overflowed = 0, 0
        # … and the writer's.
        self._batch: list[AnyRecord] = []
        self._text_out, self._refused, self._abandoned, self._written = 0, 0, 0, 0
        self._problem: str | None = None
        self._told: set[str] = set()
        self._lost_told = 0
        self._prune_at = 0.0

    def start(self) -> None:
        """Start the writer's thread. It opens the file, and says at once where it can't."""
        self._thread.start()

    def request(self, record: RequestRecord) -> None:
        """Keep a request that has ended; its prompt and reply only where the profile says so."""
        rules = self._rules()
        if rules.enabled:
            plain = rules.store_text or (record.prompt is None and record.reply is None)
            self._put(record if plain else msgspec.structs.replace(record, prompt=None, reply=None))

    def minute(self, record: MinuteRecord) -> None:
        """Keep a minute of telemetry."""
        if self._rules().enabled:
            self._put(record)

    def event(self, record: EventRecord) -> None:
        """Keep a change of the profile, or a recovery."""
        if self._rules().enabled:
            self._put(record)

    def status(self) -> LedgerStatus:
        """Rows written, waiting and lost since the start, and what is wrong; from any thread."""
        waiting = len(self._waiting) + len(self._batch)
        return LedgerStatus(str(self._path), self._written, waiting, self._lost(), self._problem)

    def past(self, since: float, until: float, limit: int = past.MOST_POINTS) -> list[HistoryPoint]:
        """The latest `limit` minutes from one Unix time to another, oldest first; none where they can't be read.

        It reads the disk: call it from any thread but the event loop's.
        """
        try:
            return past.minutes(self._path, since, until, limit)
        except LedgerError:
            return []

    def close(self) -> None:
        """Write what waits and end. Call it from a thread: it takes up to `CLOSE_S`; what is left then is lost."""
        self._closing.set()
        self._wake.set()
        if self._thread.is_alive():
            self._thread.join(2 * CLOSE_S)

    def _put(self, record: AnyRecord) -> None:
        text = self._text_in + _characters(record)
        full = len(self._waiting) + len(self._batch) >= MOST_ROWS or text - self._text_out > MOST_TEXT
        if full or self._closing.is_set():
            self._overflowed += 1
            return
        self._text_in = text
        self._waiting.append(record)
        if not self._wake.is_set():
            self._wake.set()

    def _lost(self) -> int:
        return self._overflowed + self._refused + self._abandoned

    # From here on: the writer's thread.

    def _run(self) -> None:
        pause = 0.0
        while not self._closing.is_set():
            self._wake.wait(max(self._prune_at - self._clock(), 0.0))
            self._closing.wait(pause or GATHER_S)
            self._wake.clear()
            pause = 0.0 if self._turn() else min(max(2 * pause, FIRST_PAUSE_S), LONGEST_PAUSE_S)
            if pause:
                self._wake.set()
        self._finish()

    def _turn(self) -> bool:
        """Write what waits, remove what is old; tells whether that went well."""
        try:
            if self._rules().enabled or self._waiting or self._path.exists():
                self._writer.open()
                self._write()
            self._prune()
        except Exception as problem:
            self._failed(str(problem) if isinstance(problem, LedgerError) else why(self._path, problem))
            return False
        self._well()
        return True

    def _write(self) -> None:
        while self._batch or self._waiting:
            while self._waiting and len(self._batch) < BATCH:
                self._batch.append(self._waiting.popleft())
            written = self._writer.write(self._batch)
            self._text_out += sum(map(_characters, self._batch))
            self._written += written.rows
            self._batch = []
            if written.refused and not self._refused:
                self._tell(
                    f"A row has no place in the ledger and is lost, as are others like it: {written.refused[0]}."
                )
            self._refused += len(written.refused)

    def _prune(self) -> None:
        now = self._clock()
        if now < self._prune_at:
            return
        if self._path.exists() and self._writer.prune(now - self._rules().retention_days * DAY_S):
            self._wake.set()
        else:
            self._prune_at = now + PRUNE_EVERY_S

    def _failed(self, reason: str) -> None:
        self._problem = f"The ledger can't be written: {reason}"
        if reason not in self._told:
            self._told.add(reason)
            self._tell(f"{self._problem}. Serving goes on; {MOST_ROWS:,} rows wait for it at most, others are lost.")
        # The next try begins with a new connection: what is wrong may have been put right by another file.
        self._writer.close()

    def _well(self) -> None:
        lost = self._overflowed
        if self._problem is not None:
            self._problem = None
            self._told.clear()
            self._tell(f"The ledger is written again; {lost - self._lost_told:,} rows were lost in between.")
        elif lost > self._lost_told:
            self._tell(
                f"{lost - self._lost_told:,} rows of the ledger are lost: they came faster than they are written."
            )
        self._lost_told = lost

    def _finish(self) -> None:
        end = time.monotonic() + CLOSE_S
        while not self._turn() and time.monotonic() < end:
            time.sleep(0.1)
        left = len(self._batch) + len(self._waiting)
        if left:
            self._abandoned += left
            self._batch = []
            self._waiting.clear()
            self._tell(f"The ledger lost the last {left:,} rows: {self._problem}.")
        self._writer.close()


def _characters(record: AnyRecord) -> int:
    return len(record.prompt or "") + len(record.reply or "") if isinstance(record, RequestRecord) else 0
