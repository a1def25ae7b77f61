"""The live requests: when their tokens came, and what that makes TTFT, TTL and TPOT."""

from collections.abc import Mapping
from dataclasses import dataclass

from engine_host.api.types import RequestRow, RequestState
from engine_host.telemetry.latency import Leaf
from engine_host.telemetry.sketch import Sketch


@dataclass(frozen=True, slots=True)
class Ended:
    """What is known of a request at its end: durations in seconds, times of the host's monotonic clock.

    `delivered_at` is when the first token's bytes were written to the socket, where that settled its TTFT. `None` is
    unknown: no token came, TPOT needs a second one and an end by itself (stop, length).
    """

    ttft_s: float | None
    tpot_s: float | None
    ttl_p50_s: float | None
    ttl_p99_s: float | None
    first_token_at: float | None
    delivered_at: float | None
    cached_tokens: int | None
    output_tokens: int


class Live:
    """A request that hasn't ended. `last` is when each of its sequences' latest tokens came; `first` is `None` before
    its first, `ttft` before it is settled."""

    __slots__ = (
        "arrived",
        "cached",
        "delivered",
        "first",
        "last",
        "leaf",
        "max_tokens",
        "output",
        "prompt",
        "ttft",
        "ttl",
    )

    def __init__(self, arrived: float, prompt: int, max_tokens: int | None, leaf: Leaf) -> None:
        self.arrived = arrived
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.leaf = leaf
        self.cached: int | None = None
        self.output = 0
        self.last: dict[int, float] = {}
        self.first: float | None = None
        self.delivered: float | None = None
        self.ttft: float | None = None
        self.ttl = Sketch()

    def tpot(self, end: float) -> float | None:
        """(E2E − TTFT) / (N − 1), N the tokens of a sequence (their mean, of several); `None` with one token."""
        if self.ttft is None or not self.last:
            return None
        later = self.output / len(self.last) - 1
        return max(end - self.arrived - self.ttft, 0.0) / later if later > 0 else None

    def ended(self, tpot: float | None) -> Ended:
        """All that is known, at the end."""
        gaps = self.ttl.quantiles((0.5, 0.99)) or (None, None)
        return Ended(
            ttft_s=self.ttft,
            tpot_s=tpot,
            ttl_p50_s=gaps[0],
            ttl_p99_s=gaps[1],
            first_token_at=self.first,
            delivered_at=self.delivered,
            cached_tokens=self.cached,
            output_tokens=self.output,
        )

    def row(self, request_id: str, now: float, pages: Mapping[str, int] | None) -> RequestRow:
        """What is shown of it. A request without output holds pages once it is being computed."""
        p99 = self.ttl.quantiles((0.99,))
        ttft = self.ttft if self.ttft is not None or self.first is None else max(self.first - self.arrived, 0.0)
        state: RequestState = "decode"
        if self.first is None:
            state = "queued" if pages is not None and request_id not in pages else "prefill"
        return RequestRow(
            id=request_id,
            state=state,
            prompt_tokens=self.prompt,
            cached_tokens=self.cached,
            output_tokens=self.output,
            max_tokens=self.max_tokens,
            age_s=max(now - self.arrived, 0.0),
            ttft_s=ttft,
            ttl_p99_s=p99[0] if p99 else None,
            pages=None if pages is None else pages.get(request_id, 0),
        )
