"""Rules about the device and the machine: what it is held down by, and what is broken."""

import re
from collections.abc import Iterable

from engine_host.api.figures import Finding
from engine_host.api.types import Device, Reading
from engine_host.doctor.record import Record
from engine_host.doctor.words import count, percent, seconds

CLOCK = 0.9
"""SM clock over its maximum. Under full load a GPU is held at its power limit as a matter of course; below 90 % of the
clock it costs speed that one would notice."""

IDLE = 0.1
"""Utilization below which a GPU may run its PCIe link at a lower generation to save power, which is no fault."""

EVENTS_S = 3600.0
"""Events older than an hour are history."""

_LINK = re.compile(
    r"gen (?P<gen>\d+) [x×](?P<width>\d+) of gen (?P<most_gen>\d+) [x×](?P<most_width>\d+)", re.IGNORECASE
)
_MOST = re.compile(r"(?P<mhz>\d+) MHz")

_POWER = ("power", "hardware slowdown")
"""How the reasons begin for which the device sampler says that power holds the clocks down; NVML's general hardware
slowdown, where it doesn't say more, is the power brake on most boards."""

_HEAT = ("too hot", "thermal")


def throttle_power(record: Record) -> Finding | None:
    """Clocks are held down by the power limit."""
    for device in devices(record):
        held, clock = _held_down(device, _POWER), _clock(device)
        if held is None or (clock is not None and clock >= CLOCK):
            continue
        limit = _value(device, "power_limit")
        evidence = [held]
        if device.power.value is not None:
            of = f" of {limit:.0f} W" if limit is not None else ""
            evidence.append(f"It draws {device.power.value:.0f} W{of}.")
        evidence += _clock_sentence(device)
        return Finding(
            rule="throttle-power",
            severity="warning",
            title="The GPU is throttled for power",
            evidence=tuple(evidence),
            remedy=f"Raise its power limit where the machine can bear it: nvidia-smi -i {device.index} -pl WATTS; "
            "nvidia-smi -q -d POWER tells the most it takes.",
            time=record.time,
        )
    return None


def throttle_heat(record: Record) -> Finding | None:
    """Clocks are held down because the device is too hot."""
    for device in devices(record):
        held = _held_down(device, _HEAT)
        if held is None:
            continue
        evidence = [held]
        if device.temperature.value is not None:
            evidence.append(f"It is at {device.temperature.value:.0f} °C.")
        evidence += _clock_sentence(device)
        cooler = f"or lower its power limit: nvidia-smi -i {device.index} -pl WATTS"
        if device.power.value is not None:
            cooler += f" (it draws {device.power.value:.0f} W now)"
        return Finding(
            rule="throttle-heat",
            severity="problem",
            title="The GPU is throttled for heat",
            evidence=tuple(evidence),
            remedy=f"See to the machine's fans and air; {cooler}.",
            time=record.time,
        )
    return None


def pcie_link(record: Record) -> Finding | None:
    """The link to the GPU is narrower or slower than both ends can."""
    for device in devices(record):
        link = device.more.get("pcie_link")
        parts = _LINK.search(link.text) if link is not None and not link.stale else None
        if parts is None or link is None:
            continue
        narrow, slow = int(parts["width"]) < int(parts["most_width"]), int(parts["gen"]) < int(parts["most_gen"])
        busy = device.utilization.value is not None and device.utilization.value >= IDLE
        if not narrow and not (slow and busy):
            continue
        evidence = [f"{_name(device)} is linked by {link.text}."]
        traffic = [
            f"{name} {value / 1e9:.2g} GB/s"
            for name, key in (("receives", "pcie_rx"), ("sends", "pcie_tx"))
            if (value := _value(device, key)) is not None
        ]
        if traffic:
            evidence.append(f"It {' and '.join(traffic)}.")
        parallel = record.profile.engine.tensor_parallel_size
        if parallel > 1:
            evidence.append(f"The layers are split over {parallel} devices, which exchange each layer's results.")
        return Finding(
            rule="pcie-link",
            severity="problem" if parallel > 1 else "warning",
            title="The PCIe link is degraded",
            evidence=tuple(evidence),
            remedy="Reseat the card, try another slot or riser, and set the slot's width and generation in the "
            "machine's firmware; lspci -vv shows LnkCap and LnkSta of each end.",
            time=record.time,
        )
    return None


def gpu_errors(record: Record) -> Finding | None:
    """The driver reported errors, or memory that could not be corrected."""
    for device in devices(record):
        events = [each for each in device.events if record.time - each.time <= EVENTS_S]
        broken, rows = _value(device, "ecc_uncorrected") or 0, device.more.get("remapped_rows")
        worn = rows.text if rows is not None else ""
        if not (events or broken or worn):
            continue
        evidence = [f"{_name(device)}, {seconds(record.time - each.time)} ago: {each.text}" for each in events[-3:]]
        if broken:
            evidence.append(f"{_name(device)}: {count(broken, 'memory error')} that ECC could not correct.")
        if worn:
            evidence.append(f"{_name(device)}, memory rows: {worn}.")
        return Finding(
            rule="gpu-errors",
            severity="problem" if broken or worn else "warning",
            title="The GPU reports errors",
            evidence=tuple(evidence),
            remedy=f"Drain the host and reset the GPU (nvidia-smi -i {device.index} -r) or reboot; if it comes back, "
            "have the card replaced. NVIDIA's list of Xid errors tells what each number means.",
            time=events[-1].time if events else record.time,
        )
    return None


def device_unread(record: Record) -> Finding | None:
    """A device can't be read."""
    return next(
        (
            Finding(
                rule="device-unread",
                severity="warning",
                title="A device can't be read",
                evidence=(f"{_name(device)}: {device.problem}",),
                remedy="See nvidia-smi and the kernel's log (dmesg); the engine may run on, but blind.",
                time=record.time,
            )
            for device in devices(record)
            if device.problem is not None
        ),
        None,
    )


def devices(record: Record) -> Iterable[Device]:
    """All devices, with what else is known of them where it is measured."""
    measured = record.telemetry.devices if record.telemetry is not None else ()
    return measured or (record.snapshot.device,)


def _held_down(device: Device, reasons: tuple[str, ...]) -> str | None:
    """What holds the clocks down, in the words of the reading, if one of these reasons is among it."""
    reading = device.more.get("throttle")
    if reading is None or reading.stale or reading.value is None:
        return None
    found = any(each.strip().lower().startswith(reasons) for each in reading.text.split(","))
    return f"{_name(device)}, {reading.label}: {reading.text}." if found else None


def _clock(device: Device) -> float | None:
    """SM clock over the highest one, which stands in the reading's text."""
    now = device.more.get("clock_sm")
    most = _MOST.search(now.text) if now is not None and not now.stale else None
    if now is None or now.value is None or most is None:
        return None
    return now.value / (int(most["mhz"]) * 1e6)


def _clock_sentence(device: Device) -> list[str]:
    share, clock = _clock(device), _value(device, "clock_sm")
    if share is None or clock is None:
        return []
    return [f"Its SM clock is {clock / 1e6:.0f} MHz, {percent(share)} of the highest."]


def _value(device: Device, name: str) -> float | None:
    reading: Reading | None = device.more.get(name)
    return reading.value if reading is not None and not reading.stale else None


def _name(device: Device) -> str:
    return f"{device.kind.upper()} {device.index} ({device.name})"
