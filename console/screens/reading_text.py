"""A reading as text: its value in its unit, and what there is to know about it."""

from engine_host.api.types import Reading
from widgets import units
from widgets.facts import Fact
from widgets.text import one_line

_SHORT_RATE = 12
"""Cells of `989T FLOP/s`: the whole number would have fifteen digits."""


def value_text(reading: Reading) -> str:
    """The value in the unit an operator reads it in; `n/a` where it isn't known."""
    value = reading.value
    if reading.unit == "words":
        return one_line(reading.text) or units.NOT_AVAILABLE
    if value is None:
        return units.NOT_AVAILABLE
    match reading.unit:
        case "fraction":
            return units.percent(value)
        case "bytes":
            return units.bytes_(value)
        case "bytes/s":
            return units.rate(value, "B")
        case "flop/s":
            return units.rate(value, "FLOP", _SHORT_RATE)
        case "watts":
            return f"{value:.0f} W"
        case "celsius":
            return f"{value:.0f} °C"
        case "hertz":
            return f"{units.count(value / 1e6)} MHz"
        case "joules":
            return energy_text(value)
        case _:
            return units.count(value)


def energy_text(joules: float) -> str:
    """`940 J`, then `0.13 kWh`: 1 kWh is 3.6 MJ."""
    return f"{joules:.0f} J" if joules < 36_000 else f"{joules / 3.6e6:.2f} kWh"


def note(reading: Reading) -> str:
    """Why there is no value, or that it is an old one."""
    if unknown(reading):
        return reading.why or "not told why"
    return "stale" if reading.stale else ""


def unknown(reading: Reading) -> bool:
    """Whether there is nothing to show but the reason."""
    return not reading.text if reading.unit == "words" else reading.value is None


def troubling(reading: Reading) -> bool:
    """Whether it's words that tell of a problem."""
    return reading.unit == "words" and reading.value == 1


def to_fact(reading: Reading) -> Fact:
    """The reading as a line: a bar for a share, a mark for words that tell of a problem."""
    beside = one_line(reading.text) if reading.unit != "words" else ""
    told = " · ".join(part for part in (note(reading), beside) if part)
    share = reading.value if reading.unit == "fraction" else None
    level = "unknown" if unknown(reading) else "warn" if troubling(reading) or reading.stale else "normal"
    return Fact(
        one_line(reading.label),
        value_text(reading),
        told,
        share,
        reading.unit == "fraction",
        level,  # type: ignore[arg-type]
    )
