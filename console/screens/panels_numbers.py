"""The overview's tiles of numbers of now. What isn't known is `n/a`, with the reason where there's room."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.content import Content
from textual.widgets import Static

from console.screens.panels import Panel
from engine_host.api.figures import (
    BILL_PARTS,
    Bill,
    BillPart,
    PhaseRoofline,
    Roofline,
    StepFigures,
    TtftParts,
    WindowName,
)
from engine_host.api.types import Cost, Device, KvCache, Latency, Load, Reading
from widgets import palette, units
from widgets.meter import Meter
from widgets.split_bar import SplitPart
from widgets.split_line import SplitLine
from widgets.stat import Stat, StatState
from widgets.text import literal

Trend = Sequence[float | None]

TTFT_PARTS = (
    ("guard", "guard_s", palette.series(4)),
    ("queue", "queue_s", palette.series(3)),
    ("prefill", "prefill_s", palette.series(1)),
    ("first decode", "first_decode_s", palette.series(0)),
    ("delivery", "delivery_s", palette.series(2)),
)
"""What TTFT is made of: name, field of `TtftParts`, colour. Each name has a first letter of its own."""
_PARTS_WINDOWS: dict[WindowName, str] = {"1m": "", "10m": "10 min", "start": "all"}
"""The windows the parts are shown over, the first with samples, and what is said of all but the usual one."""
BILL_COLORS: dict[BillPart, str] = {
    "prefill": palette.series(1),
    "decode": palette.series(0),
    "memory": palette.series(2),
    "scheduling": palette.series(3),
    "io": palette.series(4),
    "idle": palette.series(7),
    "down": palette.series(5),
}
_BILL_LETTERS: dict[BillPart, str] = {"down": "x"}  # the others' first letters are their own but for io
_IO_LETTER = "o"


class LatencyPanel(Panel):
    """TTFT and TTL over the window, and what TTFT is made of."""

    def __init__(self) -> None:
        super().__init__("Latency", id="latency")

    def compose(self) -> ComposeResult:
        """A line each, and the parts."""
        yield Stat("TTFT", label_width=5, id="ttft")
        yield Stat("TTL", label_width=5, id="ttl")
        yield SplitLine("parts", label_width=5, id="parts")

    def show(self, latency: Latency) -> None:
        """Show the percentiles."""
        self.entitle(f"last {units.duration(latency.window_s)}")
        for name, now in (("ttft", latency.ttft), ("ttl", latency.ttl)):
            stat = self.query_one(f"#{name}", Stat)
            if now is None:
                stat.set(units.NOT_AVAILABLE, "no sample", "unknown")
            else:
                stat.set(f"p50 {units.milliseconds(now.p50)}  p99 {units.milliseconds(now.p99)}", f"n {now.count}")

    def show_parts(self, windows: Sequence[TtftParts]) -> None:
        """Show the parts over the last minute, or where it has no sample, over the next longer window that has."""
        line = self.query_one("#parts", SplitLine)
        found = next(
            (parts for name in _PARTS_WINDOWS for parts in windows if parts.window == name and parts.count), None
        )
        if found is None:
            line.set_parts((), units.NOT_AVAILABLE)
            return
        parts = [
            SplitPart(name, getattr(found, field), color, name[0], (units.milliseconds(getattr(found, field)),))
            for name, field, color in TTFT_PARTS
        ]
        over = _PARTS_WINDOWS[found.window]
        line.set_parts(parts, f"mean {units.milliseconds(found.ttft_s)}" + (f" · {over}" if over else ""))


class LoadPanel(Panel):
    """Tokens per second, how full the steps are, and how many requests there are."""

    def __init__(self) -> None:
        super().__init__("Load", id="load")

    def compose(self) -> ComposeResult:
        """A line a number."""
        yield Stat("decode", label_width=9, id="decode")
        yield Stat("prefill", label_width=9, id="prefill")
        yield Stat("fill rate", label_width=9, id="fill")
        yield Stat("requests", label_width=9, id="counts", classes="spare")

    def show(self, load: Load, trends: tuple[Trend, Trend]) -> None:
        """Show the rates; `trends` are what those of decode and of prefill were on the axis of the plots."""
        decode, prefill = trends
        self.entitle(f"last {units.duration(load.window_s)}")
        self.query_one("#decode", Stat).set(units.rate(load.decode_tps, "tok"), trend=decode)
        self.query_one("#prefill", Stat).set(units.rate(load.prefill_tps, "tok"), trend=prefill)
        failed = f" · {units.count(load.failed)} failed" if load.failed else ""
        self.query_one("#counts", Stat).set(
            f"{load.running} running · {load.waiting} waiting", f"{units.count(load.finished)} done{failed}"
        )

    def show_fill(self, steps: StepFigures | None, kv: KvCache | None) -> None:
        """Show how full the steps are of tokens, and how often a prompt is in the prefix cache."""
        fill = steps.fill_rate if steps is not None else None
        hit = kv.hit_ratio if kv is not None else None
        state: StatState = "unknown" if fill is None and hit is None else "normal"
        note = "" if steps is None or fill is not None else "no steps"
        self.query_one("#fill", Stat).set(f"{units.percent(fill)} · KV hit {units.percent(hit)}", note, state)


class DevicePanel(Panel):
    """The device, each reading under the name of what was measured, and what bounds the two phases on it."""

    def __init__(self) -> None:
        super().__init__("Device", id="device")

    def compose(self) -> ComposeResult:
        """Two bars, numbers, the verdicts, and a problem where there is one."""
        yield Meter("", label_width=12, id="utilization")
        yield Meter("", label_width=12, id="memory")
        yield Stat("", label_width=12, id="power")
        yield Stat("", label_width=12, id="temperature", classes="spare")
        yield Stat("prefill est.", label_width=12, id="roofline-prefill")
        yield Stat("decode est.", label_width=12, id="roofline-decode")
        yield Static("", id="device-problem", classes="problem", markup=False)

    def show(self, device: Device, devices: int) -> None:
        """Values that can't be had are `n/a` with the reason; a stale one says so. `devices` is how many there are."""
        self.entitle(f"1 of {devices}" if devices > 1 else "")
        problem = self.query_one("#device-problem", Static)
        problem.display = device.problem is not None
        problem.update(Content(literal(device.problem or "")))

        busy = self.query_one("#utilization", Meter)
        busy.label = device.utilization.label
        busy.set(device.utilization.value, units.percent(device.utilization.value), _note(device.utilization))

        used, total = device.memory_used, device.memory_total
        memory = self.query_one("#memory", Meter)
        memory.label = used.label
        fraction = used.value / total.value if used.value is not None and total.value else None
        memory.set(fraction, f"{units.bytes_(used.value)} / {units.bytes_(total.value)}", _note(used))

        for name, reading, unit in (("power", device.power, "W"), ("temperature", device.temperature, "°C")):
            text = units.NOT_AVAILABLE if reading.value is None else f"{units.count(reading.value)} {unit}"
            stat = self.query_one(f"#{name}", Stat)
            stat.label = reading.label
            stat.set(text, _note(reading), "unknown" if reading.value is None else "normal")

    def show_roofline(self, roofline: Roofline) -> None:
        """Show what bounds prefill and decode; both are estimates."""
        for phase in (roofline.prefill, roofline.decode):
            verdict, note = _verdict(phase)
            state: StatState = "unknown" if phase.verdict == "unknown" else "normal"
            self.query_one(f"#roofline-{phase.phase}", Stat).set(verdict, note, state)


def _note(reading: Reading) -> str:
    return (reading.why or "") if reading.value is None else "stale" if reading.stale else ""


def _verdict(phase: PhaseRoofline) -> tuple[str, str]:
    """The verdict, and how much of the peak is reached: of FLOP/s in prefill, of bandwidth in decode."""
    if phase.verdict == "unknown":
        return units.NOT_AVAILABLE, phase.why
    share, of = (
        (phase.flops_utilization, "of peak FLOP/s")
        if phase.phase == "prefill"
        else (phase.bandwidth_utilization, "of peak bandwidth")
    )
    return f"{phase.verdict} {units.percent(share)}", of


class CostPanel(Panel):
    """Price over tokens, what a minute costs, and where the money goes."""

    def __init__(self) -> None:
        super().__init__("Cost", id="cost")

    def compose(self) -> ComposeResult:
        """Two numbers and what they were computed from; the bill."""
        yield Stat("1M output", label_width=9, id="per-million")
        yield Stat("now", label_width=9, id="price")
        yield SplitLine("bill", label_width=9, id="bill")

    def show(self, cost: Cost) -> None:
        """`n/a` with the reason where there is no price or nothing was produced."""
        million, price = self.query_one("#per-million", Stat), self.query_one("#price", Stat)
        if cost.usd_per_hour is None:
            million.set(units.NOT_AVAILABLE, "no price set", "unknown")
            price.set(units.NOT_AVAILABLE, cost.price_source, "unknown")
            return
        if cost.usd_per_million_output is None:
            million.set(units.NOT_AVAILABLE, "no tokens", "unknown")
        else:
            million.set(units.usd(cost.usd_per_million_output), f"last {units.duration(cost.window_s)}")
        price.set(f"{units.usd(cost.usd_per_hour)}/h · {units.usd(cost.usd_per_hour / 60)}/min", cost.price_source)

    def show_bill(self, bill: Bill | None) -> None:
        """Show where the money went since the host started; device time where there is no price."""
        line = self.query_one("#bill", SplitLine)
        self.entitle("est., built-in price" if bill is not None and bill.estimated else "")
        if bill is None or not bill.device_s:
            line.set_parts((), units.NOT_AVAILABLE)
            return
        parts = [
            SplitPart(part, bill.seconds.get(part, 0.0), BILL_COLORS[part], _bill_letter(part), (_amount(bill, part),))
            for part in BILL_PARTS
        ]
        idle = units.percent(bill.seconds.get("idle", 0.0) / bill.device_s)
        line.set_parts(parts, f"idle {idle}")


def _bill_letter(part: BillPart) -> str:
    return _IO_LETTER if part == "io" else _BILL_LETTERS.get(part, part[0])


def _amount(bill: Bill, part: BillPart) -> str:
    return units.usd(bill.usd[part]) if bill.usd is not None else units.duration(bill.seconds.get(part, 0.0))
