"""Building the immutable `Device` readings: one place that says how an unknown value looks."""

import math
from collections.abc import Callable
from typing import Literal

import msgspec

from engine_host.api.types import Device, Reading

Unit = Literal["fraction", "bytes", "watts", "celsius", "bytes/s"]
FIELDS = ("utilization", "memory_used", "memory_total", "power", "temperature")
_LABELS: tuple[tuple[str, Unit], ...] = (
    ("utilization", "fraction"),
    ("memory used", "bytes"),
    ("memory total", "bytes"),
    ("power", "watts"),
    ("temperature", "celsius"),
)


class Implausible(Exception):
    """A value that can't be true; the text says what was reported."""


class NotYet(Exception):
    """A value that is a difference, and only one end of it has been seen."""


def fraction(percent: float, source: str) -> float:
    """0 to 1 out of a percentage; `Implausible` if it is none. Half a percent over is rounding."""
    if not math.isfinite(percent) or not 0 <= percent <= 100.5:
        raise Implausible(f"{source} reported {percent:g} %")
    return min(percent / 100, 1.0)


def unknown(kind: Literal["gpu", "cpu"], name: str, why: str, problem: str | None) -> Device:
    """A device of which nothing can be read; `why` in a few words, `problem` as the sentence for the panel."""
    utilization, used, total, power, temperature = (Reading(label, unit, None, "none", why) for label, unit in _LABELS)
    return Device(kind, name, utilization, used, total, power, temperature, problem)


def each_reading(device: Device, change: Callable[[Reading], Reading], problem: str | None) -> Device:
    """The same device with every reading changed."""
    changed = {field: change(getattr(device, field)) for field in FIELDS}
    return msgspec.structs.replace(device, problem=problem, **changed)
