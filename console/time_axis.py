"""The time axis of the plots: which part of the past is on display, and the points that fall in it.

The last minutes are known by the second, what is older by the minute (from the ledger). A point covers
[time, time + span_s); a time that no point covers stays a gap. All times are Unix times in seconds.
"""

from __future__ import annotations

import math
from bisect import bisect_left
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace

from engine_host.api.types import HistoryPoint, Mark
from widgets.marks import Event

ZOOMS_S = (60, 120, 300, 600, 1_800, 3_600, 10_800, 43_200, 86_400)
"""The spans an axis can show, in seconds."""
LONGEST_S = ZOOMS_S[-1]
"""How far back the axis goes."""
SECONDS_KEPT = 600
MINUTE_S = 60

_FINE_S = 600
_SLOT_S = {1_800: 5, 3_600: 10}
"""Seconds a slot on spans too long for single seconds and too short for minutes: 360 slots are more than any plot has
columns."""


def slot_s(span_s: int) -> int:
    """Seconds of one slot of a plot over this span."""
    return 1 if span_s <= _FINE_S else _SLOT_S.get(span_s, MINUTE_S)


@dataclass(frozen=True, slots=True)
class Axis:
    """A span of seconds that ends at `end`, or now where that is `None`."""

    span_s: int = 120
    end: float | None = None

    @property
    def live(self) -> bool:
        """Whether the axis follows the time."""
        return self.end is None

    def window(self, now: float) -> tuple[float, float]:
        """Start and end on whole slots; what happens now is in the last of them."""
        slot = slot_s(self.span_s)
        end = math.ceil((now if self.end is None else self.end) / slot) * slot
        return end - self.span_s, end

    def toggled(self, now: float) -> Axis:
        """Paused now, or live again."""
        return replace(self, end=now if self.end is None else None)

    def zoomed(self, step: int) -> Axis:
        """The next longer (1) or shorter (-1) span up to the same end."""
        index = min(max(ZOOMS_S.index(self.span_s) + step, 0), len(ZOOMS_S) - 1)
        return replace(self, span_s=ZOOMS_S[index])

    def moved(self, quarters: int, now: float, oldest: float) -> Axis:
        """Back (negative) or on by quarters of the view, no farther than `oldest`; at the newest it's live again."""
        end = now if self.end is None else self.end
        there = max(end + quarters * self.span_s / 4, min(end, oldest + self.span_s))
        return replace(self, end=None if there >= now and quarters > 0 else min(there, now))

    def at_oldest(self, now: float, oldest: float) -> Axis:
        """Where the data begins."""
        return replace(self, end=min(oldest + self.span_s, now))


@dataclass(frozen=True, slots=True)
class View:
    """The points between `start` and `end`, oldest first, none of them twice, for plots of `slot_s` seconds a slot."""

    start: float
    end: float
    slot_s: int
    points: tuple[HistoryPoint, ...]

    @property
    def span_s(self) -> float:
        """Seconds on display."""
        return self.end - self.start

    @property
    def by_minute(self) -> bool:
        """Whether some of it is known by the minute only."""
        return any(point.span_s > 1 for point in self.points)

    def values(self, of: str | Callable[[HistoryPoint], float | None]) -> list[float | None]:
        """A field of the points by slot: one value a slot of a second, else the lowest and the highest of each.

        `None` where no point covers the slot or the field is unknown.
        """
        get: Callable[[HistoryPoint], float | None] = (lambda point: getattr(point, of)) if isinstance(of, str) else of
        slots = round(self.span_s) // self.slot_s
        low: list[float | None] = [None] * slots
        high: list[float | None] = [None] * slots
        for point in self.points:
            value = get(point)
            if value is None:
                continue
            first = max(0, int((point.time - self.start) // self.slot_s))
            last = min(slots, math.ceil((point.time + point.span_s - self.start) / self.slot_s))
            for slot in range(first, last):
                lowest, highest = low[slot], high[slot]
                low[slot] = value if lowest is None else min(lowest, value)
                high[slot] = value if highest is None else max(highest, value)
        return low if self.slot_s == 1 else [value for pair in zip(low, high, strict=True) for value in pair]

    def events(self, marks: Iterable[Mark]) -> list[Event]:
        """The marks in view, placed among `values`."""
        per_second = (1 if self.slot_s == 1 else 2) / self.slot_s
        return [
            Event((mark.time - self.start) * per_second, mark.label, mark.kind)
            for mark in marks
            if self.start <= mark.time < self.end
        ]


@dataclass(slots=True)
class Past:
    """What is known of the past: the last seconds, and the minutes of the last day."""

    seconds: deque[HistoryPoint] = field(default_factory=lambda: deque(maxlen=SECONDS_KEPT))
    minutes: list[HistoryPoint] = field(default_factory=list)

    def add_seconds(self, points: Sequence[HistoryPoint]) -> None:
        """Take in newer seconds, oldest first; those that are there already are left out."""
        newest = self.seconds[-1].time if self.seconds else -math.inf
        self.seconds.extend(point for point in points if point.time > newest)

    def add_minutes(self, points: Sequence[HistoryPoint]) -> None:
        """Take in newer minutes, oldest first, and forget those of more than a day ago."""
        newest = self.minutes[-1].time if self.minutes else -math.inf
        self.minutes.extend(point for point in points if point.time > newest)
        if self.minutes:
            del self.minutes[: bisect_left(self.minutes, self.minutes[-1].time - LONGEST_S, key=_time)]

    @property
    def newest(self) -> float | None:
        """The end of the newest point; `None` without any."""
        ends = [points[-1].time + points[-1].span_s for points in (self.seconds, self.minutes) if points]
        return max(ends, default=None)

    @property
    def oldest(self) -> float | None:
        """The beginning of the oldest point; `None` without any."""
        return min((points[0].time for points in (self.seconds, self.minutes) if points), default=None)

    def reaches(self, time: float) -> bool:
        """Whether the seconds go back to this time."""
        return bool(self.seconds) and self.seconds[0].time <= time

    def view(self, axis: Axis, now: float) -> View:
        """The points on the axis: seconds where there are any, on coarse slots minutes where there are any."""
        start, end = axis.window(now)
        slot = slot_s(axis.span_s)
        join = self._join(coarse=slot >= MINUTE_S)
        minutes = (point for point in self.minutes if point.time < join)
        seconds = (point for point in self.seconds if point.time >= join)
        inside = (point for part in (minutes, seconds) for point in part)
        points = tuple(point for point in inside if point.time < end and point.time + point.span_s > start)
        return View(start, end, slot, points)

    def _join(self, *, coarse: bool) -> float:
        """The time before which minutes are shown, and from which on seconds."""
        if not self.seconds:
            return math.inf
        if not self.minutes:
            return -math.inf
        if coarse:
            return self.minutes[-1].time + self.minutes[-1].span_s
        first = self.seconds[0].time
        before = bisect_left(self.minutes, first, key=_time) - 1
        # A minute that the seconds begin in is shown whole, and the seconds after it.
        return max(first, self.minutes[before].time + self.minutes[before].span_s) if before >= 0 else first


def _time(point: HistoryPoint) -> float:
    return point.time
