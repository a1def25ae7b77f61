"""Percentiles of durations from mergeable sketches: DDSketch (Masson, Rim, Lee: VLDB 2019), of the library `ddsketch`.

What is added here are a store for few values, taking back what was merged (a sliding window is a sum of its seconds),
nearest-rank percentiles, and bytes.
"""

import math
import zlib
from collections.abc import Sequence
from itertools import chain
from typing import Any

from ddsketch.ddsketch import BaseDDSketch
from ddsketch.mapping import LogarithmicMapping
from ddsketch.pb.proto import DDSketchProto, pb  # type: ignore[attr-defined]
from ddsketch.store import DenseStore, Store

RELATIVE_ERROR = 0.005
"""A percentile is off by at most this share of the true sample, between `SMALLEST` and `LARGEST`."""

SMALLEST = 1e-6
"""Seconds. Anything shorter counts as zero: no clock used here tells such gaps apart."""

LARGEST = 1e5
"""Seconds, a little over a day. Anything longer counts as this, which bounds the number of bins."""

_MAPPING = LogarithmicMapping(RELATIVE_ERROR)
_FIRST, _LAST = _MAPPING.key(SMALLEST), _MAPPING.key(LARGEST)

MAX_BINS = _LAST - _FIRST + 1
"""The most bins one sketch holds, besides the count of zeros."""

_MAX_BYTES = 16 * MAX_BINS + 1024
"""The longest a sketch is before it is compressed: its bins take 8 bytes each, padded to a multiple of 128 bins."""


class _SparseStore(Store):
    """Counts by bin, without the empty ones: a second of one key has a handful, and merging takes as long."""

    __slots__ = ("bins", "count")

    def __init__(self) -> None:
        self.bins: dict[int, float] = {}
        self.count = 0

    def copy(self, store: "_SparseStore") -> None:
        self.bins = store.bins.copy()
        self.count = store.count

    def length(self) -> int:
        return len(self.bins)

    def add(self, key: int, weight: float = 1) -> None:
        bins = self.bins
        bins[key] = bins.get(key, 0) + weight
        self.count += weight

    def merge(self, store: "_SparseStore") -> None:
        bins = self.bins
        for key, count in store.bins.items():
            bins[key] = bins.get(key, 0) + count
        self.count += store.count

    def subtract(self, store: "_SparseStore") -> None:
        bins = self.bins
        for key, count in store.bins.items():
            left = bins[key] - count
            if left:
                bins[key] = left
            else:
                del bins[key]
        self.count -= store.count

    def clear(self) -> None:
        self.bins.clear()
        self.count = 0

    def key_at_rank(self, rank: float, lower: bool = True) -> int:
        raise NotImplementedError("Percentiles are read by Sketch.quantiles.")


_CODEC: Any = DDSketchProto  # It has no types.
_NO_NEGATIVES = _SparseStore()


class Sketch:
    """Counts of durations in logarithmic bins. Sketches merge exactly: of two, as if one had seen all the samples.

    Memory follows the spread of the values, not their number, and is at most `MAX_BINS` bins.
    """

    __slots__ = ("_sketch", "_store")

    def __init__(self) -> None:
        self._store = _SparseStore()
        self._sketch = BaseDDSketch(_MAPPING, self._store, _NO_NEGATIVES, 0)

    @property
    def count(self) -> int:
        """Samples in it."""
        return int(self._sketch._count)

    def __len__(self) -> int:
        """Bins in use."""
        return self._store.length()

    def add(self, seconds: float, count: int = 1) -> None:
        """Add `count` samples of one duration. Raises `ValueError` for a count below 1."""
        self._sketch.add(0.0 if seconds < SMALLEST else seconds if seconds < LARGEST else LARGEST, count)

    def clear(self) -> None:
        """Forget every sample."""
        self._store.clear()
        self._sketch._zero_count = self._sketch._count = 0

    def merge(self, other: "Sketch") -> None:
        """Add every sample of another sketch, which stays as it is."""
        self._sketch.merge(other._sketch)

    def subtract(self, other: "Sketch") -> None:
        """Take back the samples of a sketch that was merged into this one."""
        self._store.subtract(other._store)
        self._sketch._zero_count -= other._sketch._zero_count
        self._sketch._count -= other._sketch._count

    def quantiles(self, shares: Sequence[float]) -> tuple[float, ...] | None:
        """The values in seconds at ascending `shares` (0 < share ≤ 1); `None` without samples.

        Nearest-rank: the smallest sample that at least that share of the samples doesn't exceed, so that the p99 of two
        samples is the larger one. Within `RELATIVE_ERROR` of it.
        """
        count = self.count
        if not count:
            return None
        found: list[float] = []
        bins = self._store.bins
        keys = iter(sorted(bins, reverse=True))
        value = 0.0
        above = 0.0  # Samples in the bins passed, from the largest: a p99 is found after a few.
        for share in reversed(shares):
            # Rounded first: 0.99 × 100 is 99.00000000000001 in floats, and its ceiling the wrong rank.
            rank = max(1, math.ceil(round(share * count, 6)))
            key = None
            while above <= count - rank:
                key = next(keys, None)
                if key is None:  # Only zeros are below.
                    above, value = count, 0.0
                    break
                above += bins[key]
            if key is not None:
                value = _MAPPING.value(key)
            found.append(value)
        return tuple(reversed(found))

    def to_bytes(self) -> bytes:
        """The sketch as DDSketch's own protobuf message, compressed (zlib): some hundred bytes."""
        dense = DenseStore()
        for key, count in self._store.bins.items():
            dense.add(key, count)
        whole = BaseDDSketch(_MAPPING, dense, DenseStore(), self._sketch._zero_count)
        return zlib.compress(_CODEC.to_proto(whole).SerializeToString())

    @classmethod
    def from_bytes(cls, raw: bytes) -> "Sketch":
        """The sketch that `to_bytes` wrote. Raises `ValueError` with a sentence for bytes that aren't one of ours."""
        try:
            unpacker = zlib.decompressobj()
            plain = unpacker.decompress(raw, _MAX_BYTES)
            whole = _CODEC.from_proto(pb.DDSketch.FromString(plain)) if unpacker.eof else None
        except Exception as error:  # Whatever the decoder of the day raises, these bytes are no sketch.
            raise ValueError("These bytes are no latency sketch: they can't be decoded.") from error
        if whole is None:
            raise ValueError("These bytes are no latency sketch: they are cut short, or too long to be one.")
        if not math.isclose(whole._mapping.gamma, _MAPPING.gamma, rel_tol=1e-9) or whole._negative_store.count:
            raise ValueError("This latency sketch has another accuracy than ours, or negative durations.")
        bins = {key: count for key, count in enumerate(whole._store.bins, whole._store.offset) if count}
        counts = chain(bins.values(), (whole._zero_count,))
        if any(count < 0 or not float(count).is_integer() for count in counts):
            raise ValueError("This latency sketch has counts that are no whole numbers.")
        if any(not _FIRST <= key <= _LAST for key in bins):
            raise ValueError("This latency sketch has durations outside of 1 µs to 100 000 s.")
        sketch = cls()
        for key, count in bins.items():
            sketch._store.add(key, int(count))
        sketch._sketch._zero_count = int(whole._zero_count)
        sketch._sketch._count = sketch._store.count + sketch._sketch._zero_count
        return sketch
