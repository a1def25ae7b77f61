"""What is counted since the host started, as Prometheus wants it: it only grows."""

from bisect import bisect_left
from collections.abc import Iterable

FINISH_REASONS = ("stop", "length", "abort", "error", "refused")

PROMPT_LENGTHS = (128, 512, 2048, 8192, 32768)
"""Upper bounds, in tokens, of the buckets that prefill latency is told by; longer prompts are one more."""

LENGTH_NAMES = (*map(str, PROMPT_LENGTHS), "more")

_TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TTL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_E2E_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)
_QUEUE_BOUNDS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
_DELIVERY_BOUNDS = (0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.05, 0.1, 1.0)


class BoundedHistogram:
    """Exact counts between fixed bounds (seconds) since it was made."""

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


class Totals:
    """Everything counted since the host started.

    Histograms are in seconds: `prefill_by_length` from scheduled to first token, by the length of the prompt
    (`LENGTH_NAMES`); `queue` and `delivery` are parts of TTFT. `prefill` and `decode` are tokens computed by steps,
    `output` tokens handed to requests, `finished` requests by `FINISH_REASONS`.
    """

    __slots__ = (
        "decode",
        "delivery",
        "e2e",
        "finished",
        "output",
        "prefill",
        "prefill_by_length",
        "prefix_hits",
        "prefix_queries",
        "queue",
        "tpot",
        "ttft",
        "ttl",
    )

    def __init__(self) -> None:
        self.ttft = BoundedHistogram(_TTFT_BOUNDS)
        self.ttl = BoundedHistogram(_TTL_BOUNDS)
        self.tpot = BoundedHistogram(_TTL_BOUNDS)
        self.e2e = BoundedHistogram(_E2E_BOUNDS)
        self.queue = BoundedHistogram(_QUEUE_BOUNDS)
        self.delivery = BoundedHistogram(_DELIVERY_BOUNDS)
        self.prefill_by_length = {name: BoundedHistogram(_TTFT_BOUNDS) for name in LENGTH_NAMES}
        self.prefill = 0
        self.decode = 0
        self.output = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.finished: dict[str, int] = dict.fromkeys(FINISH_REASONS, 0)
