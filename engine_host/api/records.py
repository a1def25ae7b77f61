"""What is kept: one record a request, one a minute, one an event. The rows of the ledger, and what log and traces tell.

Seconds, USD and Unix times; `None` for what isn't known. `docs/ledger.md` has each column.
"""

from typing import Literal

import msgspec

FinishReason = Literal["stop", "length", "abort", "error", "refused"]


class RequestCost(msgspec.Struct, frozen=True):
    """What one request cost: device-seconds, and the same in USD where there is a price.

    prefill by its share of the steps' FLOPs, decode by its share of their bytes, memory by the pages it held.
    `saved_usd` (est.) is what its cached tokens would have cost to compute.
    """

    prefill_s: float = 0.0
    decode_s: float = 0.0
    memory_s: float = 0.0
    prefill_usd: float | None = None
    decode_usd: float | None = None
    memory_usd: float | None = None
    saved_usd: float | None = None

    @property
    def seconds(self) -> float:
        """Device-seconds together."""
        return self.prefill_s + self.decode_s + self.memory_s

    @property
    def usd(self) -> float | None:
        """USD together, `None` without a price."""
        parts = (self.prefill_usd, self.decode_usd, self.memory_usd)
        return None if any(each is None for each in parts) else sum(each for each in parts if each is not None)


class RequestRecord(msgspec.Struct, frozen=True):
    """One request that has ended. `id` is the engine's, `request_id` the `X-Request-Id` of its reply: a batch of
    prompts has several of the first under one of the second.

    `time` is when the last byte of its body had arrived; durations are seconds. The five parts are those of `TtftParts`
    in `engine_host.api.figures`, and add up to `ttft_s`; one is `None` where the request didn't come so far. `key` is
    the key's id, empty without one; `error` is the sentence its client got. `first_step` and `last_step` are numbers in
    the flight record's ring; `shared_prefix` the most tokens that its prompt and one just before it begin with
    alike, up to 512. `prompt` and `reply` are kept only where the operator has turned that on.
    """

    id: str
    time: float
    model: str
    profile: str
    tier: str
    key: str
    lane: str
    path: str
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    sequences: int
    finish_reason: FinishReason
    error: str | None
    guard_s: float | None
    queue_s: float | None
    prefill_s: float | None
    first_decode_s: float | None
    delivery_s: float | None
    ttft_s: float | None
    tpot_s: float | None
    ttl_p50_s: float | None
    ttl_p99_s: float | None
    total_s: float
    held_s: float = 0.0
    set_aside: int = 0
    preemptions: int = 0
    pages_peak: int | None = None
    steps: int = 0
    first_step: int | None = None
    last_step: int | None = None
    cost: RequestCost | None = None
    prompt: str | None = None
    reply: str | None = None
    engine_id: int = 0
    request_id: str = ""
    shared_prefix: int | None = None


class MinuteRecord(msgspec.Struct, frozen=True):
    """One minute of telemetry that began at the Unix time `time`; sums and means over it.

    `ttft` and `ttl` are serialized sketches of its samples (`engine_host.telemetry.sketch`), which merge over minutes.
    Device values are means over the readings of the minute, `energy_j` joules used in it; `seconds` and `usd` are the
    parts of its bill, by name, and `price_estimated` tells that the price is the built-in table's.
    """

    time: float
    model: str
    profile: str
    finished: int
    failed: int
    aborted: int
    refused: int
    prefill_tokens: int
    decode_tokens: int
    output_tokens: int
    cached_tokens: int
    queried_tokens: int
    running: float
    waiting: float
    ttft_p50: float | None
    ttft_p99: float | None
    ttl_p50: float | None
    ttl_p99: float | None
    ttft: bytes
    ttl: bytes
    kv_used: float | None
    utilization: float | None
    utilization_label: str
    memory_used: float | None
    power_w: float | None
    energy_j: float | None
    temperature_c: float | None
    steps: int
    preemptions: int
    fill_rate: float | None
    seconds: dict[str, float]
    usd: dict[str, float] | None
    engine_id: int = 0
    price_estimated: bool = False


class EventRecord(msgspec.Struct, frozen=True):
    """A change of the running profile or a recovery, once it has ended; the fields of `ChangeRecord`."""

    time: float
    kind: str
    old: str
    new: str
    who: str
    why: str
    outcome: str
    message: str
    stalled_s: float | None
    engine_id: int = 0
