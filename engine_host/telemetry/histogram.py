"""Two small histograms: one for percentiles with a stated error, one with fixed bounds for Prometheus."""

import math
from bisect import bisect_left
from collections.abc import Iterable, Sequence

RELATIVE_ERROR = 0.005
"""A percentile read from a `LogHistogram` is off by at most this share of the true value."""

SMALLEST = 1e-6
"""Seconds. Anything shorter is counted as zero: no clock used here tells such gaps apart."""

LARGEST = 1e5
"""Seconds, a little over a day. Anything longer is counted as this, which bounds the number of buckets."""

_GROWTH = (1 + RELATIVE_ERROR) / (1 - RELATIVE_ERROR)
_PER_LOG = 1 / math.log(_GROWTH)
_ZERO = math.floor(math.log(SMALLEST) * _PER_LOG) - 1

MAX_BUCKETS = math.ceil(math.log(LARGEST) * _PER_LOG) - _ZERO + 1
"""The most buckets one `LogHistogram` can hold."""


def bucket(seconds: float) -> int:
    """The number of the bucket that holds a duration; buckets grow by a constant factor."""
    if seconds < SMALLEST:
        return _ZERO
    return math.ceil(math.log(min(seconds, LARGEST)) * _PER_LOG)


def _middle(number: int) -> float:
    """The value with the same relative distance to both ends of a bucket."""
    return 0.0 if number == _ZERO else 2 * _GROWTH**number / (_GROWTH + 1)


class LogHistogram:
    """Counts of durations in logarithmic buckets, sparse: memory follows the spread of the values, not their number.

    Percentiles are nearest-rank (the smallest sample that at least that share of the samples doesn't exceed), within
    `RELATIVE_ERROR`. Histograms add and subtract exactly, so a sliding window is a sum of seconds.
    """

    __slots__ = ("_counts", "count")

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self.count = 0

    def __len__(self) -> int:
        """Buckets in use."""
        return len(self._counts)

    def record(self, number: int, count: int = 1) -> None:
        """Add `count` samples to bucket `number` (see `bucket`: computed once, recorded in several histograms)."""
        counts = self._counts
        counts[number] = counts.get(number, 0) + count
        self.count += count

    def plus(self, other: "LogHistogram") -> "LogHistogram":
        """A new histogram with the samples of both."""
        both = LogHistogram()
        both._counts = self._counts.copy()
        both.count = self.count
        both.add(other)
        return both

    def add(self, other: "LogHistogram") -> None:
        """Add every sample of another histogram."""
        for number, count in other._counts.items():
            self.record(number, count)

    def subtract(self, other: "LogHistogram") -> None:
        """Take back the samples of a histogram that was part of this one."""
        counts = self._counts
        for number, count in other._counts.items():
            left = counts[number] - count
            if left:
                counts[number] = left
            else:
                del counts[number]
        self.count -= other.count

    def percentiles(self, shares: Sequence[float]) -> tuple[float, ...] | None:
        """The values in seconds at ascending `shares` (0 < share ≤ 1); `None` without samples."""
        if not self.count:
            return None
        found: list[float] = []
        numbers = iter(sorted(self._counts, reverse=True))
        number = _ZERO
        above = 0  # Samples in the buckets passed, counted from the largest: a p99 is found after a few.
        for share in reversed(shares):
            # Rounded first: 0.99 × 100 is 99.00000000000001 in floats, and its ceiling the wrong rank.
            rank = max(1, math.ceil(round(share * self.count, 6)))
            while above <= self.count - rank:
                number = next(numbers)
                above += self._counts[number]
            found.append(_middle(number))
        return tuple(reversed(found))


class BoundedHistogram:
    """Exact counts between fixed bounds (seconds) since it was made, as Prometheus wants them."""

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Iterable[float]) -> None:
        self._bounds = tuple(sorted(bounds))
        self._counts = [0] * (len(self._bounds) + 1)
        self.total = 0.0

    def observe(self, seconds: float, count: int = 1) -> None:
        """Add `count` samples of one duration."""
        self._counts[bisect_left(self._bounds, seconds)] += count
        self.total += seconds * count

    def cumulative(self) -> list[tuple[str, float]]:
        """Pairs of upper bound (`le`, the last one "+Inf") and the number of samples up to it."""
        rows: list[tuple[str, float]] = []
        seen = 0
        for bound, count in zip((*map(str, self._bounds), "+Inf"), self._counts, strict=True):
            seen += count
            rows.append((bound, float(seen)))
        return rows
