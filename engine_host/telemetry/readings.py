"""Building the immutable `Device` readings: one place that says how an unknown value looks."""

import math
from collections.abc import Callable
from typing import Generic, Literal, TypeVar

import msgspec

from engine_host.api.types import Device, Reading

Unit = Literal["fraction", "bytes", "watts", "celsius", "bytes/s", "hertz", "joules", "count", "words"]
FIELDS = ("utilization", "memory_used", "memory_total", "power", "temperature")
_LABELS: tuple[tuple[str, Unit], ...] = (
    ("utilization", "fraction"),
    ("memory used", "bytes"),
    ("memory total", "bytes"),
    ("power", "watts"),
    ("temperature", "celsius"),
)
TWO_READINGS = "needs two readings"


class Implausible(Exception):
    """A value that can't be true; the text says what was reported."""


class NotYet(Exception):
    """A value that is a difference, and only one end of it has been seen."""


def fraction(percent: float, source: str) -> float:
    """0 to 1 out of a percentage; `Implausible` if it is none. Half a percent over is rounding."""
    if not math.isfinite(percent) or not 0 <= percent <= 100.5:
        raise Implausible(f"{source} reported {percent:g} %")
    return min(percent / 100, 1.0)


def unknown(
    kind: Literal["gpu", "cpu"], name: str, why: str, problem: str | None, index: int = 0, uuid: str = ""
) -> Device:
    """A device of which nothing can be read; `why` in a few words, `problem` as the sentence for the panel."""
    utilization, used, total, power, temperature = (Reading(label, unit, None, "none", why) for label, unit in _LABELS)
    return Device(kind, name, utilization, used, total, power, temperature, problem, index, uuid)


def each_reading(device: Device, change: Callable[[Reading], Reading], problem: str | None) -> Device:
    """The same device with every reading changed."""
    changed = {field: change(getattr(device, field)) for field in FIELDS}
    more = {name: change(reading) for name, reading in device.more.items()}
    return msgspec.structs.replace(device, problem=problem, more=more, **changed)


def mark_stale(reading: Reading) -> Reading:
    """The reading as one that is known, and old."""
    return msgspec.structs.replace(reading, stale=reading.value is not None or bool(reading.text))


def forget(device: Device, why: str, problem: str) -> Device:
    """The device with nothing known of it any more but what it is and what had happened to it."""
    empty = msgspec.structs.replace(device, processes=(), cores=())
    return each_reading(
        empty, lambda reading: msgspec.structs.replace(reading, value=None, text="", why=why, stale=False), problem
    )


T = TypeVar("T")


class Slowly(Generic[T]):
    """Calls `read` every `period_s` seconds only, and gives its last answer between. Raises what `read` raises.

    `delay_s` shifts every call but the first, so that calls of several devices don't come all at once.
    """

    def __init__(self, period_s: float, read: Callable[[], T], delay_s: float = 0.0) -> None:
        self._period = period_s
        self._read = read
        self._delay = delay_s
        self._due: float | None = None
        self._kept: T

    def get(self, now: float) -> T:
        """The answer at the monotonic time `now`."""
        if self._due is None or now >= self._due:
            self._kept = self._read()
            self._due = now + self._period + (self._delay if self._due is None else 0.0)
        return self._kept
