"""Time cut into whole Unix seconds, and sliding windows that are sums of such seconds."""

import math
from collections.abc import Callable
from typing import Generic, Protocol, Self, TypeVar

from engine_host.api.figures import WindowName

HISTORY_S = 600
"""Closed seconds kept for plots."""


class Summable(Protocol):
    """What can be summed over time exactly, and taken back exactly."""

    def merge(self, other: Self) -> None:
        """Add what another one holds, which stays as it is."""

    def subtract(self, other: Self) -> None:
        """Take back what was merged before."""


T = TypeVar("T", bound=Summable)


class Sliding(Generic[T]):
    """The sum over the last `slots` whole slots of `slot_s` seconds each, and the one that is filling.

    Empty slots take no memory. Seconds are whole numbers of any one clock.
    """

    __slots__ = ("_make", "_slot_s", "_slots", "_within", "sum")

    def __init__(self, make: Callable[[], T], slots: int, slot_s: int = 1) -> None:
        self._make = make
        self._slots = slots
        self._slot_s = slot_s
        self._within: dict[int, T] = {}
        self.sum = make()

    def take(self, second: int, item: T) -> None:
        """Add what fell in a second."""
        slot = second // self._slot_s
        held = self._within.get(slot)
        if held is None:
            late = bool(self._within) and slot < next(reversed(self._within))
            held = self._within[slot] = self._make()
            if late:
                self._within = dict(sorted(self._within.items()))
        held.merge(item)
        self.sum.merge(item)

    def expire(self, second: int) -> bool:
        """Let go of what is too old in `second`, the one that is filling; tells whether there was anything."""
        oldest = second // self._slot_s - self._slots
        gone = False
        while self._within and (slot := next(iter(self._within))) < oldest:
            self.sum.subtract(self._within.pop(slot))
            gone = True
        return gone

    def slot(self, second: int) -> T | None:
        """What fell in the slot of a second; `None` if nothing did."""
        return self._within.get(second // self._slot_s)

    def absorb(self, other: "Sliding[T]") -> None:
        """Add everything a window of the same length and slots holds."""
        for slot, item in other._within.items():
            self.take(slot * self._slot_s, item)


class Windows(Generic[T]):
    """The same sum over 10 s, 1 min, 10 min and since the start: the first two by seconds, the third by 10 seconds."""

    __slots__ = ("_sliding", "start")

    def __init__(self, make: Callable[[], T]) -> None:
        self._sliding: dict[WindowName, Sliding[T]] = {
            "10s": Sliding(make, 10),
            "1m": Sliding(make, 60),
            "10m": Sliding(make, 60, 10),
        }
        self.start = make()

    def take(self, second: int, item: T) -> None:
        """Add what fell in a second to every window."""
        for sliding in self._sliding.values():
            sliding.take(second, item)
        self.start.merge(item)

    def expire(self, second: int) -> bool:
        """Let go of what is too old in `second`; tells whether any window changed."""
        changed = False
        for sliding in self._sliding.values():
            changed |= sliding.expire(second)
        return changed

    def absorb(self, other: "Windows[T]") -> None:
        """Add everything that other windows hold."""
        for name, sliding in self._sliding.items():
            sliding.absorb(other._sliding[name])
        self.start.merge(other.start)

    def __getitem__(self, name: WindowName) -> T:
        """The sum of one window, as of the last `expire`; not to be changed."""
        return self.start if name == "start" else self._sliding[name].sum

    def second(self, second: int) -> T | None:
        """What fell in one of the last ten seconds; `None` if nothing did."""
        return self._sliding["10s"].slot(second)


class Timeline:
    """Tells which second it is by the host's monotonic clock, which never goes back, and `close`s those that ended.

    Seconds start where Unix time has whole seconds; the difference between the two clocks is taken once, so that a
    correction of the wall clock moves nothing against anything else. `close` is called with each whole Unix second that
    ended, in order; after a long silence only with the last `HISTORY_S` of them.
    """

    __slots__ = ("_close", "_edge", "_offset", "_started", "second")

    def __init__(self, now: float, wall: float, close: Callable[[int], None]) -> None:
        self._close = close
        self._offset = wall - now
        self._started = now
        self.second = math.floor(wall)
        self._edge = self.second + 1 - self._offset

    def advance(self, now: float) -> None:
        """Close the seconds that ended before `now` (monotonic seconds). A `now` of the past changes nothing."""
        if now < self._edge:
            return
        second = math.floor(now + self._offset)
        while self.second < second:
            self._close(self.second)
            self.second = max(self.second + 1, second - HISTORY_S)
        self._edge = self.second + 1 - self._offset

    def span(self, seconds: int, now: float) -> float:
        """Seconds from the start of a window of so many whole seconds, or from the timeline's own start, to `now`."""
        return max(now - max(self.second - seconds - self._offset, self._started), 0.0)
