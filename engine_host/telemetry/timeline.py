"""Time cut into seconds: a sliding window of the recent ones, and ten minutes of closed ones for plots."""

import math
from collections import deque

from engine_host.api.types import HistoryPoint, Percentiles
from engine_host.telemetry.histogram import LogHistogram

HISTORY_S = 600
"""Closed seconds kept for plots."""


class Tally:
    """What was counted in one second, or in a window of them."""

    __slots__ = ("decode", "output", "prefill", "prefix_hits", "prefix_queries", "ttft", "ttl")

    def __init__(self) -> None:
        self.ttft = LogHistogram()
        self.ttl = LogHistogram()
        self.prefill = 0
        self.decode = 0
        self.output = 0
        self.prefix_queries = 0
        self.prefix_hits = 0

    def add(self, other: "Tally") -> None:
        """Add what another tally counted."""
        self.ttft.add(other.ttft)
        self.ttl.add(other.ttl)
        self.prefill += other.prefill
        self.decode += other.decode
        self.output += other.output
        self.prefix_queries += other.prefix_queries
        self.prefix_hits += other.prefix_hits

    def subtract(self, other: "Tally") -> None:
        """Take back a tally that was added before."""
        self.ttft.subtract(other.ttft)
        self.ttl.subtract(other.ttl)
        self.prefill -= other.prefill
        self.decode -= other.decode
        self.output -= other.output
        self.prefix_queries -= other.prefix_queries
        self.prefix_hits -= other.prefix_hits


class Levels:
    """Values that hold until they are told anew; `None` where nobody told yet."""

    __slots__ = ("kv_used", "running", "utilization", "waiting")

    def __init__(self) -> None:
        self.running = 0
        self.waiting = 0
        self.kv_used: float | None = None
        self.utilization: float | None = None


class Window:
    """The sum of the last `seconds` closed seconds."""

    def __init__(self, seconds: int) -> None:
        self._seconds = seconds
        self._closed: deque[Tally] = deque()
        self.sum = Tally()

    def push(self, closed: Tally) -> None:
        """Take in a second that just closed, and let go of the oldest one."""
        self._closed.append(closed)
        self.sum.add(closed)
        if len(self._closed) > self._seconds:
            self.sum.subtract(self._closed.popleft())

    def __len__(self) -> int:
        """Closed seconds in the sum."""
        return len(self._closed)


class Timeline:
    """Puts what happens into seconds of the host's monotonic clock, which never goes back.

    Seconds start where Unix time has whole seconds; the difference between the two clocks is taken once, so that a
    correction of the wall clock moves no point against another.
    """

    def __init__(self, now: float, wall: float, windows: tuple[Window, ...]) -> None:
        self._offset = wall - now
        self._windows = windows
        self._history: deque[HistoryPoint] = deque(maxlen=HISTORY_S)
        self._second = math.floor(wall)
        self._started = now
        self._edge = self._second + 1 - self._offset
        self.current = Tally()
        self.levels = Levels()

    def advance(self, now: float) -> None:
        """Close the seconds that ended before `now` (monotonic seconds). A `now` of the past changes nothing."""
        if now < self._edge:
            return
        second = math.floor(now + self._offset)
        if second > self._second:
            self._close()
        # After a long silence only the seconds that are kept are worth closing one by one.
        self._second = max(self._second, second - HISTORY_S)
        while self._second < second:
            self._close()
        self._edge = self._second + 1 - self._offset

    def _close(self) -> None:
        tally, levels = self.current, self.levels
        ttft, ttl = percentiles(tally.ttft), percentiles(tally.ttl)
        self._history.append(
            HistoryPoint(
                time=float(self._second),
                ttft_p50=ttft.p50 if ttft else None,
                ttft_p99=ttft.p99 if ttft else None,
                ttl_p50=ttl.p50 if ttl else None,
                ttl_p99=ttl.p99 if ttl else None,
                prefill_tps=float(tally.prefill),
                decode_tps=float(tally.decode),
                running=levels.running,
                waiting=levels.waiting,
                kv_used=levels.kv_used,
                utilization=levels.utilization,
            )
        )
        for window in self._windows:
            window.push(tally)
        self.current = Tally()
        self._second += 1

    def span(self, window: Window, now: float) -> float:
        """Seconds from the start of a window, or from the timeline's own start, to `now`."""
        oldest = self._second - len(window) - self._offset
        return max(now - max(oldest, self._started), 0.0)

    def history(self, since: float) -> list[HistoryPoint]:
        """Closed seconds that started after Unix time `since`, oldest first."""
        return [point for point in self._history if point.time > since]


def percentiles(histogram: LogHistogram) -> Percentiles | None:
    """p50 and p99 of a histogram; `None` without samples."""
    found = histogram.percentiles((0.5, 0.99))
    return Percentiles(p50=found[0], p99=found[1], count=histogram.count) if found else None
