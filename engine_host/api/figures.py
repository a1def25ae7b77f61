"""What the host measures beyond the snapshot: latencies by group, where the time and the money went, the roofline.

Wire types like those of `engine_host.api.types`: seconds, bytes and USD, `None` for what isn't known. Everything here
has one definition, in docs/metrics.md.
"""

from typing import Literal

import msgspec

from engine_host.api.types import Device, Reading

WindowName = Literal["10s", "1m", "10m", "start"]
WINDOWS: tuple[WindowName, ...] = ("10s", "1m", "10m", "start")
GroupKind = Literal["all", "tier", "key", "profile", "model", "hour"]
Phase = Literal["prefill", "decode"]
Verdict = Literal["compute-bound", "bandwidth-bound", "launch-bound", "starved", "unknown"]

BillPart = Literal["prefill", "decode", "memory", "scheduling", "io", "idle", "down"]
"""Where a second of the device goes.

prefill, decode: executing a step, split over its requests by FLOPs and by bytes; memory: the share of the same that the
pages held pay for; scheduling: choosing a step and taking it in; io: between two steps though requests are there; idle:
the engine has nothing to do; down: there is no engine. The first three are requests', the others nobody's."""
BILL_PARTS: tuple[BillPart, ...] = ("prefill", "decode", "memory", "scheduling", "io", "idle", "down")


class Quantiles(msgspec.Struct, frozen=True):
    """Percentiles in seconds over `count` samples."""

    p50: float
    p90: float
    p99: float
    count: int


class WindowLatency(msgspec.Struct, frozen=True):
    """TTFT and TPOT by request, TTL by token, in one window; `None` where no sample fell in it."""

    window: WindowName
    ttft: Quantiles | None
    ttl: Quantiles | None
    tpot: Quantiles | None


class LatencyLine(msgspec.Struct, frozen=True):
    """Latencies of one tier, key (its id) or profile; of all requests with the kind all and no name."""

    kind: GroupKind
    name: str
    windows: tuple[WindowLatency, ...]


class TtftParts(msgspec.Struct, frozen=True):
    """Means in seconds, over the requests of a window that have all parts; they add up to `ttft_s`.

    guard: from the last byte of the body to the queue; queue: the host's queue and the engine's; prefill: up to the
    step that gave the first token; first_decode: that step; delivery: from the engine to the socket.
    """

    window: WindowName
    count: int
    guard_s: float
    queue_s: float
    prefill_s: float
    first_decode_s: float
    delivery_s: float
    ttft_s: float


class LengthBucket(msgspec.Struct, frozen=True):
    """Prefill latency (scheduled to first token) of prompts of more than `above` and at most `up_to` tokens, in the
    10-minute window; `up_to` `None` is no bound."""

    above: int
    up_to: int | None
    prefill: Quantiles | None


class StepFigures(msgspec.Struct, frozen=True):
    """The engine's steps in the last `window_s` seconds. Shares are 0 to 1, `None` without steps.

    fill_rate: tokens of the steps over the token budgets; prefill_share, decode_share: of the time of the steps;
    effective_utilization: share of the time since the host started in which steps produced tokens, and
    `effective_window` the same in the window.
    """

    window_s: float
    steps: int
    fill_rate: float | None
    prefill_share: float | None
    decode_share: float | None
    step_p50_s: float | None
    step_p99_s: float | None
    preemptions: int
    uptime_s: float
    effective_utilization: float | None
    effective_window: float | None


class PhaseRoofline(msgspec.Struct, frozen=True):
    """One phase against the device's peaks, over the time it computed in the window. All rates are estimates.

    utilizations are 0 to 1, `None` without a peak or without steps; `why` says in a sentence what the verdict is from.
    """

    phase: Phase
    flops_per_s: float | None
    bytes_per_s: float | None
    flops_utilization: float | None
    bandwidth_utilization: float | None
    verdict: Verdict
    why: str


class Roofline(msgspec.Struct, frozen=True):
    """Prefill and decode apart, and the peaks with where they come from, over `window_s` seconds."""

    window_s: float
    prefill: PhaseRoofline
    decode: PhaseRoofline
    peak_flops: Reading
    peak_bandwidth: Reading


class Bill(msgspec.Struct, frozen=True):
    """What the devices cost since `since` (Unix time), and where it went: each second of each device is in one part.

    `seconds` are device-seconds by part, `usd` the same in money; they add up to `device_s` and `total_usd`. Money is
    `None` while there was no price; it counts the `priced_s` device-seconds that had one. `energy_usd` is the share of
    it that is for energy; `estimated` tells that the price comes from the built-in table.
    """

    since: float
    devices: int
    device_s: float
    seconds: dict[BillPart, float]
    usd_per_device_hour: float | None
    price_source: str
    estimated: bool
    usd: dict[BillPart, float] | None
    energy_usd: float | None
    total_usd: float | None
    priced_s: float = 0.0


class CostLine(msgspec.Struct, frozen=True):
    """What the ended requests of a group have cost. `name` is a tier, a key's id, a model, a profile, or an hour (its
    Unix time). Per million tokens: `input` those computed for prompts, `cached` those found in the prefix cache,
    `output` those produced. `saved_usd` (est.) is what the cached tokens would have cost to compute. `None` is unknown,
    or nothing to divide by."""

    kind: GroupKind
    name: str
    requests: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usd: float | None
    usd_per_thousand_requests: float | None
    usd_per_million_input: float | None
    usd_per_million_cached: float | None
    usd_per_million_output: float | None
    saved_usd: float | None


class LedgerStatus(msgspec.Struct, frozen=True):
    """The ledger: rows written, rows waiting, rows lost since the host started; `problem` as a sentence."""

    path: str
    written: int
    waiting: int
    lost: int
    problem: str | None = None


class Telemetry(msgspec.Struct, frozen=True):
    """Everything measured, at one instant (Unix time)."""

    time: float
    latencies: tuple[LatencyLine, ...]
    parts: tuple[TtftParts, ...]
    prefill_by_length: tuple[LengthBucket, ...]
    steps: StepFigures
    roofline: Roofline
    bill: Bill
    costs: tuple[CostLine, ...]
    devices: tuple[Device, ...]
    sampler_cost: Reading
    ledger: LedgerStatus | None = None


class Finding(msgspec.Struct, frozen=True):
    """What the doctor found: `evidence` are sentences with numbers, `remedy` what to do about it.

    `time` is the Unix time of the moment it is about, `step` and `request` name what to look at, where there is one.
    """

    rule: str
    severity: Literal["problem", "warning"]
    title: str
    evidence: tuple[str, ...]
    remedy: str
    time: float
    step: int | None = None
    request: str | None = None
