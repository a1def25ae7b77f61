"""A host that plays recorded snapshots and scripted replies, for the console's tests."""

import asyncio
from collections.abc import AsyncGenerator, Sequence
from typing import Any

import msgspec
from stub_figures import FINDINGS, NOON, TELEMETRY

from engine_host.api.contract import ChatChunk, ChatMessage, HostError, HostUnreachable
from engine_host.api.figures import Finding, Telemetry
from engine_host.api.types import (
    ApplyCommand,
    BreakerLine,
    CancelCommand,
    ChangeRecord,
    CommandReply,
    Cost,
    Device,
    EngineState,
    Figures,
    FlightFile,
    GatewayStatus,
    HistoryPoint,
    KeyLine,
    KnobLine,
    KvCache,
    LaneLine,
    Latency,
    Load,
    LogPage,
    LogRecord,
    ModelInfo,
    Percentiles,
    PlanLine,
    PortCommand,
    PortInfo,
    ProfileChange,
    ProfileLine,
    ProfileText,
    Reading,
    RequestRow,
    SaveCommand,
    Snapshot,
    Span,
    StartCommand,
    TierCommand,
    TierLine,
    UsageLine,
    Waterfall,
)

__all__ = ["NOON"]

REQUESTS = (
    RequestRow(
        "chatcmpl-7f3a91c0",
        "decode",
        412,
        256,
        188,
        1024,
        6.4,
        0.082,
        0.044,
        17,
        "premium",
        "web [chat]",
        "short",
        0.004,
        0.0003,
    ),
    RequestRow(
        "chatcmpl-91c0aa12",
        "decode",
        96,
        0,
        61,
        512,
        2.1,
        0.094,
        0.041,
        12,
        "standard",
        "掲示板-bot",
        "throughput",
        0.031,
        0.0001,
    ),
    RequestRow(
        "cmpl-44e1b7d2", "prefill", 1802, None, 0, 256, 0.3, None, None, 58, "standard", "nightly", "long", 0.14
    ),
    RequestRow(
        "chatcmpl-0be57f10", "queued", 640, None, 0, None, 0.1, None, None, None, "best-effort", "", "throughput", 0.1
    ),
)

GATEWAY = GatewayStatus(
    lanes=(LaneLine("short", 0, None, 0), LaneLine("throughput", 1, 0.1, 640), LaneLine("long", 2, 1.24, 9_400)),
    tiers=(
        TierLine(
            "premium",
            1,
            0,
            0,
            31,
            0,
            0,
            0.082,
            0.044,
            0.1,
            0.05,
            False,
            (UsageLine("requests_per_minute", 40, 600, 22.0), UsageLine("tokens_per_minute", 61_000, 64_000, 22.0)),
        ),
        TierLine("standard", 2, 0, 1, 14, 2, 0, 0.34, 0.041, 0.25, None, False),
        TierLine(
            "best-effort",
            0,
            1,
            0,
            2,
            9,
            3,
            None,
            None,
            None,
            None,
            True,
            (UsageLine("usd_per_day", 1.2, 1.2, 39_600.0),),
        ),
    ),
    breaker=BreakerLine("open", NOON - 12, ("best-effort",), "Requests wait 2.1 s, over the target of 500 ms."),
    drain_rps=3.2,
)

KEYS = (
    KeyLine(
        "k1",
        "web [chat]",
        "premium",
        (),
        False,
        NOON - 9e5,
        NOON + 12 * 86_400,
        None,
        NOON - 4,
        (
            UsageLine("requests_per_minute", 42, 60, 22.0),
            UsageLine("tokens_per_minute", 58_200, 64_000, 22.0),
            UsageLine("tokens_per_day", 1_240_000, 20_000_000, 39_600.0),
            UsageLine("usd_per_day", 5.2, 5.0, 39_600.0),
        ),
    ),
    KeyLine("k2", "掲示板-bot", None, ("smollm2-135m-instruct",), False, NOON - 9e5, None, None, NOON - 7_000),
    KeyLine("k3", "ops", "premium", (), True, NOON - 9e5, None, None, None),
    KeyLine("k4", "old\x1b[31m", "standard", (), False, NOON - 9e6, NOON - 3 * 86_400, None, NOON - 4 * 86_400),
    KeyLine("k5", "leaked", "standard", (), False, NOON - 9e6, None, NOON - 600, NOON - 700),
)

WATERFALL = Waterfall(
    "chatcmpl-7f3a91c0",
    "premium",
    "web [chat]",
    "short",
    412,
    188,
    None,
    (
        Span("received", 0.0, 0.0012),
        Span("validated", 0.0012, 0.0041, 412),
        Span("queued", 0.0041, 0.9, None, "behind [long] prompts"),
        Span("scheduled", 0.9, 0.93),
        Span("prefill", 0.93, 1.9, 412),
        Span("decode", 1.9, 3.1, 80),
        Span("held", 3.1, 4.0, None, "premium came first"),
        Span("decode", 4.0, None, 108),
    ),
    (1.2, 1.5, 1.9),
)


def snapshot(**changes: Any) -> Snapshot:
    """A host at work on a machine with no GPU: two streams decode, one prefills, one waits."""
    no_power = Reading("power", "watts", None, "powercap", "no RAPL domain readable")
    no_heat = Reading("temperature", "celsius", None, "psutil", "no sensor")
    typical = Snapshot(
        sequence=1,
        time=NOON,
        uptime_s=754.0,
        state=EngineState("ready", NOON - 700),
        model=ModelInfo("SmolLM2-135M-Instruct", "/models/smollm2", "bfloat16", 8192),
        profile="cpu-tiny",
        port=PortInfo("127.0.0.1", 8000, True),
        kv=KvCache(512, 87, 113, 312, 32, 737_280, 0.83, 60.0),
        latency=Latency(60.0, Percentiles(0.082, 0.240, 48), Percentiles(0.031, 0.048, 6_112)),
        load=Load(3, 1, 412.0, 58.0, 10.0, 47, 1),
        device=Device(
            "cpu",
            "AMD EPYC 9B14, 2 cores",
            Reading("CPU busy", "fraction", 0.71, "psutil"),
            Reading("memory, this host", "bytes", 2.9e9, "psutil"),
            Reading("memory, machine", "bytes", 25.2e9, "psutil"),
            no_power,
            no_heat,
        ),
        cost=Cost(0.12, "flag", 0.575, 60.0),
        requests=REQUESTS,
        flight=(FlightFile(0, "/nonexistent/flight"),),
        gateway=GATEWAY,
    )
    return msgspec.structs.replace(typical, **changes)


def starting(phase: str = "weights", progress: float | None = 0.4) -> Snapshot:
    """A host whose engine is loading."""
    state = EngineState("starting", NOON - 5, phase, progress, phase_seconds={"import": 4.2})  # type: ignore[arg-type]
    quiet = Load(0, 0, 0.0, 0.0, 10.0, 0, 0)
    return snapshot(state=state, kv=None, latency=Latency(60.0, None, None), load=quiet, requests=(), flight=())


def failed(reason: str, hint: str | None = None) -> Snapshot:
    """A host whose engine didn't start."""
    return msgspec.structs.replace(starting(), state=EngineState("failed", NOON, reason=reason, hint=hint))


def history(points: int = 60) -> list[HistoryPoint]:
    """The last seconds: a gentle wave with one spike, no samples in the first ten."""
    wave = [abs(i % 20 - 10) / 10 for i in range(points)]
    return [
        HistoryPoint(
            time=NOON - points + i,
            ttft_p50=None if i < 10 else 0.06 + 0.03 * w,
            ttft_p99=None if i < 10 else 0.5 if i == 40 else 0.15 + 0.1 * w,
            ttl_p50=None if i < 10 else 0.028 + 0.005 * w,
            ttl_p99=None if i < 10 else 0.04 + 0.01 * w,
            prefill_tps=400.0 * w,
            decode_tps=50.0 + 10 * w,
            running=2,
            waiting=0,
            kv_used=0.3 + 0.1 * w,
            utilization=0.7,
        )
        for i, w in enumerate(wave)
    ]


PROFILES = (
    ProfileLine("balanced", "General use on a GPU", True, False),
    ProfileLine("broken [/b", "", False, False, "broken.toml:3: scheduler.token_bugdet: unknown key."),
    ProfileLine("cpu-tiny", "Default without a GPU: a small model, little memory", True, True),
    ProfileLine("quick [b]", "Mine: short steps [for chats", False, False),
    ProfileLine("throughput", "Batch work: large steps", True, False),
)

PLAN = (
    PlanLine("weights", "bytes", 269e6, 269e6),
    PlanLine("KV cache", "bytes", 537e6, 1.07e9),
    PlanLine("KV pages", "pages", 728, 1456),
    PlanLine("sequences at full context", "sequences", 2.8, 5.6),
    PlanLine("activations", "bytes", 61e6, 122e6, estimated=True),
    PlanLine("free on the device", "bytes", None, None),
)

CHANGES = {
    "balanced": ProfileChange(
        "cpu-tiny",
        "balanced",
        (
            KnobLine("engine.kv_cache_memory", "536870912", "1073741824", "rebuild", "bytes"),
            KnobLine("engine.block_size", "32", "16", "rebuild", "tokens", "pages are laid out when the engine starts"),
            KnobLine("scheduler.token_budget", "1024", "4096", "live", "tokens", "above the ceiling of 2048 tokens"),
            KnobLine("scheduler.policy", "fcfs", "priority", "live"),
        ),
        PLAN,
        rebuild=True,
    ),
    "cpu-tiny": ProfileChange("cpu-tiny", "cpu-tiny", (), PLAN[:2], rebuild=False),
    "quick [b]": ProfileChange(
        "cpu-tiny",
        "quick [b]",
        (KnobLine("scheduler.token_budget", "1024", "256", "live", "tokens", "shorter steps: [steadier TTL"),),
        (),
        rebuild=False,
    ),
    "throughput": ProfileChange(
        "cpu-tiny",
        "throughput",
        (KnobLine("engine.max_model_len", "–", "131072", "rebuild", "tokens"),),
        (PlanLine("KV cache", "bytes", 537e6, 9e9, estimated=True),),
        rebuild=True,
        refused="The KV cache needs 9.0 GB for a context of 131 072 tokens; 2.1 GB are free. At most 30 000 fit.",
    ),
}

HISTORY = (
    ChangeRecord(
        1,
        NOON - 500,
        "live",
        "balanced",
        "quick [b]",
        "console",
        "TTL [too] high",
        "done",
        before=Figures(60, 0.082, 0.031, 58.0, 0.575),
        after=Figures(60, 0.095, 0.028, 61.0, None),
    ),
    ChangeRecord(
        2,
        NOON - 300,
        "rebuild",
        "quick [b]",
        "throughput",
        "admin key ops",
        "",
        "rolled-back",
        "The new engine did not start: 9.0 GB asked, 2.1 GB free. The old profile is back.",
        Figures(60, 0.095, 0.028, 61.0, 0.55),
        Figures(60, 0.101, 0.029, 60.0, 0.56),
        24.0,
    ),
    ChangeRecord(
        3,
        NOON - 60,
        "recovery",
        "cpu-tiny",
        "cpu-tiny",
        "host",
        "engine process killed by signal 9",
        "done",
        before=Figures(60, None, 0.028, 61.0, None),
        stalled_s=3.4,
    ),
)

SOURCE = """# My chats.
description = "General use on a GPU"

[engine]
kv_cache_memory = "512MiB"

[scheduler]
token_budget = 1024  # short steps
max_active = 16
chunked_prefill = true
"""


class StubHost:
    """`HostApi` without a host.

    `now` is what `snapshot()` answers (an exception is raised); `script` holds, for each chat request to come, the
    chunks to send, where an exception is raised and an `asyncio.Event` waited for (`reached` is set then). What was
    asked is kept in `asked` and `commands`; `aborted` counts replies that were closed before their end.
    """

    def __init__(self, now: Snapshot | Exception | None = None) -> None:
        self.now: Snapshot | Exception = now or snapshot()
        self.records: list[LogRecord] = []
        self.points: list[HistoryPoint] = []
        self.model_names = ["smollm2-135m-instruct", "other [/red] model"]
        self.profile_names = ["balanced", "cpu-tiny", "odd [b name"]
        self.reply = CommandReply(True)
        self.script: list[Sequence[ChatChunk | Exception | asyncio.Event]] = []
        self.asked: list[list[ChatMessage]] = []
        self.commands: list[
            StartCommand | PortCommand | ApplyCommand | SaveCommand | CancelCommand | TierCommand | str
        ] = []
        self.lines = list(PROFILES)
        self.changes_of: dict[str, ProfileChange | Exception] = dict(CHANGES)
        self.waterfalls: dict[str, Waterfall | Exception] = {WATERFALL.id: WATERFALL}
        self.key_lines: list[KeyLine] | Exception = list(KEYS)
        self.keys_asked = 0
        self.change_records: list[ChangeRecord] = []
        self.figures: Telemetry | Exception = TELEMETRY
        self.found: list[Finding] | Exception = list(FINDINGS)
        self.telemetry_asked = 0
        self.minutes: list[HistoryPoint] = []
        self.source = SOURCE
        self.aborted = 0
        self.closed = False
        self.reached = asyncio.Event()

    async def snapshot(self) -> Snapshot:
        """The snapshot set by the test."""
        if isinstance(self.now, Exception):
            raise self.now
        return self.now

    async def history(self, since: float) -> list[HistoryPoint]:
        """The points set by the test."""
        return [point for point in self.points if point.time > since]

    async def past(self, since: float, until: float) -> list[HistoryPoint]:
        """The minutes set by the test."""
        return [point for point in self.minutes if since <= point.time < until]

    async def telemetry(self) -> Telemetry:
        """The figures set by the test."""
        self.telemetry_asked += 1
        if isinstance(self.figures, Exception):
            raise self.figures
        return self.figures

    async def findings(self) -> list[Finding]:
        """The findings set by the test."""
        if isinstance(self.found, Exception):
            raise self.found
        return self.found

    async def log(self, since: int, limit: int) -> LogPage:
        """The records set by the test."""
        return LogPage(tuple(record for record in self.records if record.sequence > since)[:limit], 0)

    async def models(self) -> list[str]:
        """The names set by the test."""
        return self.model_names

    async def profiles(self) -> list[str]:
        """The names set by the test."""
        return self.profile_names

    async def profile_lines(self) -> list[ProfileLine]:
        """The lines set by the test."""
        return self.lines

    async def profile_text(self, name: str) -> ProfileText:
        """The source set by the test, for every profile."""
        return ProfileText(name, self.source, any(line.name == name and line.builtin for line in self.lines))

    async def profile_change(self, name: str) -> ProfileChange:
        """The change set by the test."""
        change = self.changes_of.get(name, CHANGES["cpu-tiny"])
        if isinstance(change, Exception):
            raise change
        return change

    async def apply_profile(self, command: ApplyCommand) -> CommandReply:
        """Keeps the command."""
        self.commands.append(command)
        return self.reply

    async def cancel_change(self) -> CommandReply:
        """Keeps that it was asked."""
        self.commands.append("cancel")
        return self.reply

    async def changes(self) -> list[ChangeRecord]:
        """The history set by the test."""
        return self.change_records

    async def save_profile(self, command: SaveCommand) -> CommandReply:
        """Keeps the command."""
        self.commands.append(command)
        return self.reply

    async def cancel_requests(self, command: CancelCommand) -> CommandReply:
        """Keeps the command."""
        self.commands.append(command)
        return self.reply

    async def set_tier(self, command: TierCommand) -> CommandReply:
        """Keeps the command."""
        self.commands.append(command)
        return self.reply

    async def waterfall(self, request_id: str) -> Waterfall:
        """The waterfall set by the test."""
        found = self.waterfalls.get(request_id, HostError(404, "The host [no longer] knows this request."))
        if isinstance(found, Exception):
            raise found
        return found

    async def keys(self) -> list[KeyLine]:
        """The keys set by the test."""
        self.keys_asked += 1
        if isinstance(self.key_lines, Exception):
            raise self.key_lines
        return self.key_lines

    async def start(self, command: StartCommand) -> CommandReply:
        """Keeps the command."""
        self.commands.append(command)
        return self.reply

    async def set_port(self, command: PortCommand) -> CommandReply:
        """Keeps the command."""
        self.commands.append(command)
        return self.reply

    async def quit(self) -> CommandReply:
        """Does nothing."""
        return self.reply

    async def chat(self, model: str, messages: Sequence[ChatMessage]) -> AsyncGenerator[ChatChunk]:
        """Plays the next script."""
        self.asked.append(list(messages))
        if not self.script:
            raise HostUnreachable("The test has no reply.", gone=False)
        ended = False
        try:
            for step in self.script.pop(0):
                if isinstance(step, Exception):
                    ended = True
                    raise step
                if isinstance(step, asyncio.Event):
                    self.reached.set()
                    await step.wait()
                else:
                    yield step
            ended = True
        finally:
            self.aborted += not ended

    async def close(self) -> None:
        """Remembers that it was closed."""
        self.closed = True


def reply(*texts: str, finish: str = "stop", tokens: int | None = None) -> list[ChatChunk]:
    """The chunks of a whole reply: each text, then the end, then the usage (one token a text unless told)."""
    return [
        *(ChatChunk(text=text) for text in texts),
        ChatChunk(finish_reason=finish),
        ChatChunk(prompt_tokens=9, completion_tokens=len(texts) if tokens is None else tokens),
    ]
