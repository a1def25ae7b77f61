"""Where the time to first token goes: its parts by window, and prefill latency by the length of the prompt."""

from bisect import bisect_left
from collections.abc import Sequence

from engine_host.api.figures import WINDOWS, LengthBucket, Quantiles, TtftParts
from engine_host.telemetry.histogram import PROMPT_LENGTHS
from engine_host.telemetry.sketch import Sketch
from engine_host.telemetry.timeline import Sliding, Windows

_NS = 1_000_000_000


class _Sums:
    """Sums of the five parts over `count` requests; in whole nanoseconds, which add up and come off exactly."""

    __slots__ = ("count", "parts")

    def __init__(self, parts: Sequence[float] | None = None) -> None:
        self.count = int(parts is not None)
        self.parts = [round(each * _NS) for each in parts] if parts is not None else [0] * 5

    def merge(self, other: "_Sums") -> None:
        self.count += other.count
        self.parts = [mine + more for mine, more in zip(self.parts, other.parts, strict=True)]

    def subtract(self, other: "_Sums") -> None:
        self.count -= other.count
        self.parts = [mine - less for mine, less in zip(self.parts, other.parts, strict=True)]


class PartsOfTtft:
    """Guard, queue, prefill, first decode and delivery, in seconds, of the requests that have all of them."""

    def __init__(self) -> None:
        self._windows = Windows(_Sums)

    def add(self, parts: Sequence[float], second: int) -> None:
        """The five parts of one request, told in `second`."""
        self._windows.take(second, _Sums(parts))

    def expire(self, second: int) -> None:
        """Let go of what is too old in `second`."""
        self._windows.expire(second)

    def means(self) -> tuple[TtftParts, ...]:
        """Means over the requests of each window, without windows that have none."""
        found = []
        for name in WINDOWS:
            sums = self._windows[name]
            if sums.count:
                guard, queue, prefill, first, delivery = (each / sums.count / _NS for each in sums.parts)
                whole = guard + queue + prefill + first + delivery
                found.append(TtftParts(name, sums.count, guard, queue, prefill, first, delivery, whole))
        return tuple(found)


class PrefillByLength:
    """Prefill latency over ten minutes (by slots of ten seconds), by the length of the prompt."""

    def __init__(self) -> None:
        self._buckets = [Sliding(Sketch, 60, 10) for _ in range(len(PROMPT_LENGTHS) + 1)]

    def add(self, number: int, seconds: float, second: int) -> None:
        """One request of the bucket `number` (see `length_bucket`), told in `second`."""
        one = Sketch()
        one.add(seconds)
        self._buckets[number].take(second, one)

    def expire(self, second: int) -> None:
        """Let go of what is too old in `second`."""
        for bucket in self._buckets:
            bucket.expire(second)

    def lines(self) -> tuple[LengthBucket, ...]:
        """Every bucket, shortest prompts first."""
        bounds = (0, *PROMPT_LENGTHS, None)
        return tuple(
            LengthBucket(above=above or 0, up_to=up_to, prefill=quantiles(bucket.sum))
            for above, up_to, bucket in zip(bounds, bounds[1:], self._buckets, strict=False)
        )


def length_bucket(prompt_tokens: int) -> int:
    """The number of the bucket that holds a prompt of so many tokens, the shortest first."""
    return bisect_left(PROMPT_LENGTHS, prompt_tokens)


def quantiles(sketch: Sketch) -> Quantiles | None:
    """p50, p90 and p99 of a sketch; `None` without samples."""
    found = sketch.quantiles((0.5, 0.9, 0.99))
    return Quantiles(p50=found[0], p90=found[1], p99=found[2], count=sketch.count) if found else None
