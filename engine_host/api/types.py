"""What the host tells a screen, and in which units.

Immutable wire types, encoded as JSON over the host's API. Times inside are seconds; sizes are bytes; money is USD.
`None` always means *unknown or not available*, never zero.
"""

from typing import Literal

import msgspec

API_VERSION = 1

StateName = Literal["stopped", "starting", "ready", "swapping", "recovering", "failed"]
PhaseName = Literal["import", "weights", "kv-cache", "warm-up"]
RequestState = Literal["queued", "prefill", "decode", "held"]
SpanName = Literal["received", "validated", "queued", "scheduled", "prefill", "decode", "held", "done"]
LogLevel = Literal["debug", "info", "warning", "error"]

SwapStage = Literal["checking", "draining", "stopping", "building", "resuming"]
ChangeKind = Literal["live", "rebuild", "recovery"]
Outcome = Literal["running", "done", "rolled-back", "cancelled", "failed"]

PHASES: tuple[PhaseName, ...] = ("import", "weights", "kv-cache", "warm-up")


class EngineState(msgspec.Struct, frozen=True):
    """Where the engine is in its life.

    `phase` and `progress` (0 to 1, where the phase has one) are set while starting; `reason` is the sentence to show
    when `failed`, with `hint` saying what to do about it.
    """

    name: StateName
    since: float
    phase: PhaseName | None = None
    progress: float | None = None
    reason: str | None = None
    hint: str | None = None
    phase_seconds: dict[str, float] = {}


class SwapProgress(msgspec.Struct, frozen=True):
    """A change under way. `waiting_for` counts the requests that are drained first; `cancellable` until the old engine
    goes down. `change` is the id of its line in the history of changes."""

    change: int
    stage: SwapStage
    target: str
    since: float
    waiting_for: int = 0
    held: int = 0
    cancellable: bool = False


class ModelInfo(msgspec.Struct, frozen=True):
    """The served model; `max_model_len` in tokens. Unknown until the engine is ready where `None`."""

    name: str
    path: str
    dtype: str | None = None
    max_model_len: int | None = None


class PortInfo(msgspec.Struct, frozen=True):
    """The OpenAI port. `error` says why it isn't bound, `bound` whether it listens."""

    host: str
    port: int
    bound: bool
    error: str | None = None


class KvCache(msgspec.Struct, frozen=True):
    """Totals of the KV-cache pages (vLLM calls them blocks).

    used: held by at least one request; cached: held by none but still valid as prefix cache; free: neither.
    `hit_ratio` is prefix-cache tokens found over tokens looked up, in the last `hit_window_s` seconds.
    """

    pages: int
    used: int
    cached: int
    free: int
    page_tokens: int
    page_bytes: int | None
    hit_ratio: float | None
    hit_window_s: float


class Percentiles(msgspec.Struct, frozen=True):
    """Percentiles in seconds over `count` samples."""

    p50: float
    p99: float
    count: int


class Latency(msgspec.Struct, frozen=True):
    """TTFT per request and TTL per token over the last `window_s` seconds; `None` where no sample fell in it."""

    window_s: float
    ttft: Percentiles | None
    ttl: Percentiles | None


class Load(msgspec.Struct, frozen=True):
    """Requests running in the engine and waiting for it now, and tokens per second over the last `window_s` seconds."""

    running: int
    waiting: int
    prefill_tps: float
    decode_tps: float
    window_s: float
    finished: int
    failed: int


class Reading(msgspec.Struct, frozen=True):
    """One hardware value. `value` is `None` where it can't be had, and `why` then says why in a few words.

    `label` names exactly what was measured ("SM active", "kernel-busy", "CPU busy"), `source` the call it came from.
    A reading of the unit words has its answer in `text`, such as why the clocks are held down; its `value` is 1 where
    that is a problem, else 0.
    """

    label: str
    unit: Literal["fraction", "bytes", "watts", "celsius", "bytes/s", "flop/s", "hertz", "joules", "count", "words"]
    value: float | None
    source: str
    why: str | None = None
    stale: bool = False
    text: str = ""


class DeviceProcess(msgspec.Struct, frozen=True):
    """A process that holds memory of the device; bytes, `None` where the driver doesn't say."""

    pid: int
    name: str
    memory: float | None


class DeviceEvent(msgspec.Struct, frozen=True):
    """Something the driver reported, such as an Xid error: its Unix time and a sentence."""

    time: float
    text: str


class Device(msgspec.Struct, frozen=True):
    """A device the engine runs on. `problem` is a sentence when the panel can't be filled.

    `more` are the readings beyond the five, by the names of docs/device.md ("sm_occupancy", "pcie_rx", …); `cores` is
    the busy share of each CPU core, 0 to 1.
    """

    kind: Literal["gpu", "cpu"]
    name: str
    utilization: Reading
    memory_used: Reading
    memory_total: Reading
    power: Reading
    temperature: Reading
    problem: str | None = None
    index: int = 0
    uuid: str = ""
    more: dict[str, Reading] = {}
    processes: tuple[DeviceProcess, ...] = ()
    events: tuple[DeviceEvent, ...] = ()
    cores: tuple[float, ...] = ()


class Cost(msgspec.Struct, frozen=True):
    """What running costs: the price per device-hour and, in the window, price over tokens produced."""

    usd_per_hour: float | None
    price_source: str
    usd_per_million_output: float | None
    window_s: float


class RequestRow(msgspec.Struct, frozen=True):
    """One live request. `pages` is the number of KV pages it holds, shared ones included.

    `state` is held while the host keeps it off the engine after it had begun: a rebuild, or a request of a higher tier
    that took its place. `waited_s` is the time in the host's queue so far; `cost_usd` is estimated.
    """

    id: str
    state: RequestState
    prompt_tokens: int
    cached_tokens: int | None
    output_tokens: int
    max_tokens: int | None
    age_s: float
    ttft_s: float | None
    ttl_p99_s: float | None
    pages: int | None
    tier: str = ""
    key: str = ""
    lane: str = ""
    waited_s: float = 0.0
    cost_usd: float | None = None


class LaneLine(msgspec.Struct, frozen=True):
    """One lane of the host's queue: requests waiting, the longest wait in seconds, their prompt tokens."""

    name: str
    waiting: int
    oldest_s: float | None
    tokens: int


class TierLine(msgspec.Struct, frozen=True):
    """One tier: requests in the engine, waiting and held now; ended, refused and set aside since the host started.

    Latencies and targets in seconds over the window of `Latency`; `shed` while the breaker turns it away.
    """

    name: str
    active: int
    waiting: int
    held: int
    finished: int
    refused: int
    checkpointed: int
    ttft_p99_s: float | None
    ttl_p99_s: float | None
    ttft_target_s: float | None
    ttl_target_s: float | None
    shed: bool
    usage: tuple["UsageLine", ...] = ()


class BreakerLine(msgspec.Struct, frozen=True):
    """The circuit breaker: closed lets all in, open sheds `shed`, half-open lets one of them in to probe."""

    state: Literal["closed", "open", "half-open"]
    since: float
    shed: tuple[str, ...] = ()
    reason: str = ""


class GatewayStatus(msgspec.Struct, frozen=True):
    """The queue in front of the engine. `drain_rps` is requests admitted a second, measured; `None` if none was."""

    lanes: tuple[LaneLine, ...]
    tiers: tuple[TierLine, ...]
    breaker: BreakerLine
    drain_rps: float | None


class UsageLine(msgspec.Struct, frozen=True):
    """How much of one limit is used up: `limit` names it (requests_per_minute …), `resets_s` until it is whole again.

    `used` counts what is reserved by requests that have not ended too.
    """

    limit: str
    used: float
    allowed: float
    resets_s: float


class KeyLine(msgspec.Struct, frozen=True):
    """One key, without its secret. Times are Unix times; `models` empty means all; `tier` `None` is the profile's."""

    id: str
    name: str
    tier: str | None
    models: tuple[str, ...]
    admin: bool
    created: float
    expires: float | None
    revoked: float | None
    last_used: float | None
    usage: tuple[UsageLine, ...] = ()


class Span(msgspec.Struct, frozen=True):
    """One part of a request's time, in seconds from its arrival; `end` is `None` while it lasts.

    received: the body arrives; validated: parsed, checked and tokenized; queued: in the host's queue; scheduled: in
    the engine's queue; prefill, decode; held: off the engine; done: the end. `tokens` where the part has a count.
    """

    name: SpanName
    start: float
    end: float | None
    tokens: int | None = None
    note: str = ""


class Waterfall(msgspec.Struct, frozen=True):
    """Where one request's time went. `chunks` are the beginnings of the steps that computed its prompt,
    in seconds from its arrival; none where they aren't known."""

    id: str
    tier: str
    key: str
    lane: str
    prompt_tokens: int
    output_tokens: int
    finish_reason: str | None
    spans: tuple[Span, ...]
    chunks: tuple[float, ...] = ()


class CancelCommand(msgspec.Struct, frozen=True):
    """End these requests; their clients are told that the operator did."""

    ids: tuple[str, ...]


class TierCommand(msgspec.Struct, frozen=True):
    """Move these requests to another tier."""

    ids: tuple[str, ...]
    tier: str


class FlightFile(msgspec.Struct, frozen=True):
    """Where the flight record of one engine is mapped from; read it with `engine_host.api.flight`."""

    engine_id: int
    path: str


class Snapshot(msgspec.Struct, frozen=True):
    """Everything an overview shows, at one instant. `time` is Unix time, `sequence` grows by one a snapshot."""

    sequence: int
    time: float
    uptime_s: float
    state: EngineState
    model: ModelInfo
    profile: str
    port: PortInfo
    kv: KvCache | None
    latency: Latency
    load: Load
    device: Device
    cost: Cost
    requests: tuple[RequestRow, ...]
    flight: tuple[FlightFile, ...]
    swap: SwapProgress | None = None
    marks: tuple["Mark", ...] = ()
    gateway: GatewayStatus | None = None
    api_version: int = API_VERSION


class Mark(msgspec.Struct, frozen=True):
    """What to draw on a time axis: when (Unix time) the engine was changed or recovered, and to what."""

    time: float
    kind: ChangeKind
    label: str


class HistoryPoint(msgspec.Struct, frozen=True):
    """A second of the past, for plots; a minute of it, from the ledger, where `span_s` says so. Latencies in seconds,
    over that time; `None` where no sample fell in it. `power` in watts, `memory_used` of the device in bytes,
    `usd_per_hour` what was paid for then, `attributed` the share of it that requests were charged."""

    time: float
    ttft_p50: float | None
    ttft_p99: float | None
    ttl_p50: float | None
    ttl_p99: float | None
    prefill_tps: float
    decode_tps: float
    running: int
    waiting: int
    kv_used: float | None
    utilization: float | None
    span_s: float = 1.0
    power: float | None = None
    memory_used: float | None = None
    fill_rate: float | None = None
    usd_per_hour: float | None = None
    attributed: float | None = None


class LogRecord(msgspec.Struct, frozen=True):
    """One line of the host's or the engine's output. `text` is plain text: never markup."""

    sequence: int
    time: float
    level: LogLevel
    source: str
    text: str


class LogPage(msgspec.Struct, frozen=True):
    """Records after the asked sequence number; `dropped` counts those that had already left the ring."""

    records: tuple[LogRecord, ...]
    dropped: int


class StartCommand(msgspec.Struct, frozen=True):
    """Start (or, after a failure, start again) with another model or profile; `None` keeps the current one."""

    model: str | None = None
    profile: str | None = None


class PortCommand(msgspec.Struct, frozen=True):
    """Bind the OpenAI port somewhere else."""

    host: str
    port: int


class CommandReply(msgspec.Struct, frozen=True):
    """Whether a command was taken, and the sentence to show when it wasn't."""

    ok: bool
    message: str = ""


class ProfileLine(msgspec.Struct, frozen=True):
    """One profile of the list. `problem` is the sentence why it can't be loaded."""

    name: str
    description: str
    builtin: bool
    active: bool
    problem: str | None = None


class KnobLine(msgspec.Struct, frozen=True):
    """One knob that would change: its dotted path, both values as text, and when a change of it takes effect."""

    path: str
    old: str
    new: str
    when: Literal["live", "rebuild"]
    unit: str | None = None
    why: str | None = None


class PlanLine(msgspec.Struct, frozen=True):
    """One line of a memory plan, for the running profile and for the other; bytes where `unit` is bytes.

    `estimated` values are shown as `est.`; `None` is unknown.
    """

    label: str
    unit: Literal["bytes", "pages", "sequences", "tokens"]
    old: float | None
    new: float | None
    estimated: bool = False


class ProfileChange(msgspec.Struct, frozen=True):
    """What applying a profile would do. `refused` is the sentence why it can't be, numbers included."""

    old: str
    new: str
    knobs: tuple[KnobLine, ...]
    plan: tuple[PlanLine, ...]
    rebuild: bool
    refused: str | None = None


class ApplyCommand(msgspec.Struct, frozen=True):
    """Change the running profile, and where `model` is given the model."""

    profile: str
    model: str | None = None
    who: str = "console"
    why: str = ""


class Figures(msgspec.Struct, frozen=True):
    """The engine's figures over `window_s` seconds before or after a change; `None` where nothing was measured."""

    window_s: float
    ttft_p50: float | None
    ttl_p50: float | None
    decode_tps: float | None
    usd_per_million_output: float | None


class ChangeRecord(msgspec.Struct, frozen=True):
    """One line of the history of changes. `stalled_s` is the time without tokens, `None` for a live change."""

    id: int
    time: float
    kind: ChangeKind
    old: str
    new: str
    who: str
    why: str
    outcome: Outcome
    message: str = ""
    before: Figures | None = None
    after: Figures | None = None
    stalled_s: float | None = None


class ProfileText(msgspec.Struct, frozen=True):
    """A profile's TOML source; saving a `builtin` one makes the user's own of that name."""

    name: str
    text: str
    builtin: bool


class SaveCommand(msgspec.Struct, frozen=True):
    """Save a user profile: the values to set, by dotted path, in the TOML source `name` has now; comments stay."""

    name: str
    base: str
    values: dict[str, str]
