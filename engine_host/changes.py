"""The history of changes: who changed what and why, how it went, and what it did to the figures."""

import time
from collections.abc import Callable

import msgspec

from engine_host.api.types import ChangeKind, ChangeRecord, Figures, Mark, Outcome

KEPT = 200
"""Changes kept: more than an operator makes in a shift."""


class ChangeLog:
    """Changes since the host started. `figures` measures a window of `window_s` seconds that ends now; `when_finished`
    is told of each change that has ended."""

    def __init__(
        self,
        figures: Callable[[], Figures],
        window_s: float = 60.0,
        clock: Callable[[], float] = time.time,
        when_finished: Callable[[ChangeRecord], None] = lambda change: None,
    ) -> None:
        self._figures = figures
        self._when_finished = when_finished
        self._window_s = window_s
        self._clock = clock
        self._records: dict[int, ChangeRecord] = {}
        self._next = 1
        self._ended: tuple[int, float] | None = None

    def begin(self, kind: ChangeKind, old: str, new: str, who: str, why: str) -> int:
        """Note that a change begins; returns its id."""
        # What came after the last one can't be told from what comes after this one, unless its window is over.
        self.tick()
        self._ended = None
        number, self._next = self._next, self._next + 1
        self._records[number] = ChangeRecord(
            number, self._clock(), kind, old, new, who, why, "running", before=self._figures()
        )
        while len(self._records) > KEPT:
            del self._records[next(iter(self._records))]
        return number

    def finish(self, number: int, outcome: Outcome, message: str = "", stalled_s: float | None = None) -> None:
        """Note how it went; what it did to the figures is measured a window later."""
        self._records[number] = msgspec.structs.replace(
            self._records[number], outcome=outcome, message=message, stalled_s=stalled_s
        )
        self._ended = (number, self._clock())
        self._when_finished(self._records[number])

    def tick(self) -> None:
        """Measure what the last change did, once a whole window lies behind it. Call it now and then."""
        if self._ended is not None and self._clock() - self._ended[1] >= self._window_s:
            number, self._ended = self._ended[0], None
            self._records[number] = msgspec.structs.replace(self._records[number], after=self._figures())

    def records(self) -> list[ChangeRecord]:
        """All kept changes, oldest first."""
        return list(self._records.values())

    def marks(self, since: float) -> tuple[Mark, ...]:
        """What to draw on a time axis that begins at `since` (Unix time)."""
        return tuple(
            Mark(each.time, each.kind, each.new if each.kind != "recovery" else "recovery")
            for each in self._records.values()
            if each.time >= since and each.outcome != "cancelled"
        )
