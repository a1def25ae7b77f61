"""A device, the roofline and the steps as lines to show."""

from collections.abc import Iterator

from console.screens.reading_text import note, to_fact, value_text
from engine_host.api.figures import PhaseRoofline, Roofline, StepFigures
from engine_host.api.types import Device, Reading
from widgets import units
from widgets.facts import Fact
from widgets.text import one_line

_POWER_UNITS = ("watts", "joules", "celsius", "hertz")
_LINKS = ("pcie", "nvlink")
_CLOCK_WORDS = ("throttle", "clock")

_VERDICTS = {
    "compute-bound": "●",
    "bandwidth-bound": "●",
    "launch-bound": "▲",
    "starved": "▲",
    "unknown": "◌",
}


def group_of(name: str, reading: Reading) -> str:
    """Where a reading beyond the five is shown: busy, power, links or health."""
    if name.startswith(_LINKS):
        return "links"
    if reading.unit in _POWER_UNITS or name.startswith(_CLOCK_WORDS):
        return "power"
    return "busy" if reading.unit in ("fraction", "bytes", "bytes/s", "flop/s") else "health"


def memory_fact(device: Device) -> Fact:
    """`memory used  ███··  91 / 151 GB`."""
    used, total = device.memory_used, device.memory_total
    share = used.value / total.value if used.value is not None and total.value else None
    value = units.NOT_AVAILABLE if used.value is None else f"{units.bytes_(used.value)} / {units.bytes_(total.value)}"
    level = "unknown" if used.value is None else "warn" if used.stale else "normal"
    return Fact(one_line(used.label), value, note(used), share, True, level)  # type: ignore[arg-type]


def device_facts(device: Device) -> dict[str, list[Fact]]:
    """The lines of a device: busy, power, links, health."""
    found: dict[str, list[Fact]] = {"busy": [], "power": [], "links": [], "health": []}
    found["busy"] += [to_fact(device.utilization), memory_fact(device)]
    found["power"] += [to_fact(device.power), to_fact(device.temperature)]
    for name, reading in device.more.items():
        found[group_of(name, reading)].append(to_fact(reading))
    return found


def process_facts(device: Device) -> list[Fact]:
    """Who holds memory of the device, most first."""
    total = device.memory_total.value
    rows = sorted(device.processes, key=lambda process: -(process.memory or 0))
    return [
        Fact(
            f"{process.pid} {one_line(process.name)}",
            units.bytes_(process.memory),
            "" if process.memory is not None else "not told",
            process.memory / total if process.memory is not None and total else None,
            True,
            "normal" if process.memory is not None else "unknown",
        )
        for process in rows
    ]


def events_text(device: Device, now: float) -> str:
    """What the driver reported, the latest first, a line each."""
    events = sorted(device.events, key=lambda event: -event.time)
    return "\n".join(f"✖ {units.duration(max(0.0, now - event.time))} ago: {one_line(event.text)}" for event in events)


def phase_facts(phase: PhaseRoofline) -> list[Fact]:
    """Both utilizations of a phase, with the rates they are of; estimates all."""
    known = phase.flops_per_s is not None
    level = "normal" if known else "unknown"
    return [
        Fact(
            "FLOPs",
            units.percent(phase.flops_utilization),
            f"est. {units.rate(phase.flops_per_s, 'FLOP', 12)}" if known else "",
            phase.flops_utilization,
            phase.flops_utilization is not None,
            "unknown" if phase.flops_utilization is None else level,  # type: ignore[arg-type]
        ),
        Fact(
            "bandwidth",
            units.percent(phase.bandwidth_utilization),
            f"est. {units.rate(phase.bytes_per_s, 'B')}" if phase.bytes_per_s is not None else "",
            phase.bandwidth_utilization,
            phase.bandwidth_utilization is not None,
            "unknown" if phase.bandwidth_utilization is None else "normal",
        ),
    ]


def verdict(phase: PhaseRoofline) -> str:
    """`● compute-bound (est.): 412 TFLOP/s of 989`."""
    estimated = "" if phase.verdict == "unknown" else " (est.)"
    why = f": {one_line(phase.why)}" if phase.why else ""
    return f"{_VERDICTS[phase.verdict]} {phase.verdict}{estimated}{why}"


def peaks_text(roofline: Roofline) -> str:
    """The peaks, and where they come from, or why there are none."""
    return "\n".join(
        f"{one_line(peak.label)}: {value_text(peak)} ({note(peak) or one_line(peak.source)})"
        for peak in (roofline.peak_flops, roofline.peak_bandwidth)
    )


def step_facts(steps: StepFigures) -> list[Fact]:
    """How full the steps are, how long they take, and how much of the time they make tokens."""
    return list(_steps(steps))


def _steps(steps: StepFigures) -> Iterator[Fact]:
    for label, share, about in (
        ("fill rate", steps.fill_rate, "of the token budget"),
        ("prefill", steps.prefill_share, "of step time"),
        ("decode", steps.decode_share, "of step time"),
    ):
        yield Fact(
            label,
            units.percent(share),
            about if share is not None else "no steps",
            share,
            True,
            "normal" if share is not None else "unknown",
        )
    for label, seconds in (("step p50", steps.step_p50_s), ("step p99", steps.step_p99_s)):
        yield Fact(label, units.milliseconds(seconds), level="normal" if seconds is not None else "unknown")
    yield Fact("preemptions", units.count(steps.preemptions), level="warn" if steps.preemptions else "normal")
    for label, share, about in (
        ("effective", steps.effective_utilization, "of the time since start"),
        ("effective", steps.effective_window, f"of the last {units.duration(steps.window_s)}"),
    ):
        yield Fact(label, units.percent(share), about, share, True, "normal" if share is not None else "unknown")
    yield Fact("uptime", units.duration(steps.uptime_s))
