"""Number formats of every screen: values come in base units, text comes out.

`None` (and NaN or infinity) is unknown and reads `n/a`, never zero. Where a `width` in cells is given and the usual
text is wider, a shorter form of the same number is picked (fewer decimals, no separators, a larger unit); a number is
never cut. If even the shortest form is too wide it is returned whole, and the caller decides what to leave out.
"""

import math
from collections.abc import Iterator

NOT_AVAILABLE = "n/a"
THIN_SPACE = "\u202f"
"""Thousands separator: narrow, and no line breaks at it."""

_SCALES = ("", "k", "M", "G", "T", "P", "E")


def milliseconds(seconds: float | None, width: int | None = None) -> str:
    """A latency given in seconds: `0.42 ms`, `8.3 ms`, `82 ms`, `1 240 ms`; then `12.3 s`, `2 min 5 s`."""
    value = _known(seconds)
    if value is None:
        return NOT_AVAILABLE
    if abs(value) >= 99.95:
        return duration(value, width)
    in_seconds = _forms(value, 1, "s")
    if abs(value) >= 9.9995:
        return _fit(width, in_seconds)
    ms = value * 1e3
    digits = 0 if ms == 0 or abs(ms) >= 9.95 else 1 if abs(ms) >= 0.995 else 2
    in_ms = _forms(ms, digits, "ms")
    return _fit(width, [*in_ms, *in_seconds] if abs(ms) >= 999.5 else in_ms)


def duration(seconds: float | None, width: int | None = None) -> str:
    """A span of time given in seconds: `4.2 s`, `42 s`, `3 min 12 s`, `2 h 5 min`, `3 d 4 h`; short `3 min`, `2h`."""
    value = _known(seconds)
    if value is None:
        return NOT_AVAILABLE
    if 0 < abs(value) < 0.95:
        return milliseconds(value, width)
    if abs(value) < 59.5:
        return _fit(width, _forms(value, 1 if 0 < abs(value) < 9.95 else 0, "s"))
    sign = "-" if value < 0 else ""
    value = abs(value)
    for limit, large, large_name, small, small_name in (
        (3_600, 60, "min", 1, "s"),
        (86_400, 3_600, "h", 60, "min"),
        (math.inf, 86_400, "d", 3_600, "h"),
    ):
        whole, rest = divmod(round(value / small), large // small)
        if whole * large < limit:
            head = f"{sign}{_grouped(whole, 0)} {large_name}"
            full = f"{head} {rest} {small_name}" if rest else head
            return _fit(width, [full, full.replace(" ", ""), head, head.replace(" ", "")])
    raise AssertionError("the last unit has no limit")


def bytes_(n: float | None, width: int | None = None) -> str:
    """A size in bytes, in decimal units (1 GB = 10⁹ bytes): `512 B`, `2.1 GB`, `91 GB`."""
    return _scaled(n, "B", width)


def percent(fraction: float | None, width: int | None = None) -> str:
    """A fraction of one: `41 %`, `0.32 %` under one percent; short form `41%`."""
    value = _known(fraction)
    if value is None:
        return NOT_AVAILABLE
    return _fit(width, _forms(value * 100, 0 if value == 0 or abs(value) >= 0.00995 else 2, "%"))


def rate(per_second: float | None, unit: str, width: int | None = None) -> str:
    """Per second of `unit`, the thing counted without `/s`: `31 tok/s`; `2.1 GB/s` for "B"; short `12k tok/s`."""
    value = _known(per_second)
    if value is None:
        return NOT_AVAILABLE
    if unit == "B":
        return _scaled(value, "B/s", width)
    digits = 1 if 0 < abs(value) < 9.95 else 0
    forms = list(_forms(value, digits, f"{unit}/s"))
    if abs(value) >= 999.5:
        amount, scale = _scale(value)
        forms += _forms(amount, 1 if abs(amount) < 9.95 else 0, f"{unit}/s", scale)
    return _fit(width, forms)


def usd(amount: float | None, width: int | None = None) -> str:
    """Money in USD, to the cent or two significant digits: `$1 240`, `$12.40`, `$0.42`, `$0.031`, `$0.0003`."""
    value = _known(amount)
    if value is None:
        return NOT_AVAILABLE
    sign, value = ("-" if value < 0 else ""), abs(value)
    if 0 < value < 5e-7:
        return f"<{sign}$0.000001"
    digits = 0 if value == 0 or value >= 999.5 else 2 if value >= 0.095 else min(6, 1 - math.floor(math.log10(value)))
    texts = [f"{sign}${_grouped(value, places)}" for places in range(digits, -1, -1) if places == digits or value >= 10]
    if 0 < value < 0.095:
        texts[0] = texts[0].rstrip("0")
    if value >= 999.5:
        amount, scale = _scale(value)
        texts += [texts[0].replace(THIN_SPACE, ""), f"{sign}${_grouped(amount, 0)}{scale}"]
    return _fit(width, texts)


def count(n: float | None, width: int | None = None) -> str:
    """A whole number with thin thousands separators: `8 192`; short forms `8192`, `8.2k`, `8k`."""
    value = _known(n)
    if value is None:
        return NOT_AVAILABLE
    forms = list(_forms(value, 0, ""))
    if abs(value) >= 999.5:
        amount, scale = _scale(value)
        forms += _forms(amount, 1 if abs(amount) < 9.95 else 0, "", scale)
    return _fit(width, forms)


def _known(value: float | None) -> float | None:
    return None if value is None or not math.isfinite(value) else float(value)


def _grouped(value: float, digits: int) -> str:
    text = f"{value:,.{digits}f}".replace(",", THIN_SPACE)
    return text[1:] if text.startswith("-") and not text.strip("-0." + THIN_SPACE) else text


def _forms(value: float, digits: int, unit: str, scale: str = "") -> Iterator[str]:
    """The texts of one number, from the usual to the shortest."""
    if value != 0 and float(f"{value:.{digits}f}") == 0:
        yield f"<{0.1**digits:.{digits}f} {unit}".rstrip()
        return
    for places in range(digits, -1, -1):
        if places < digits and value != 0 and abs(value) < 0.95:
            break  # rounding 0.4 to 0 would be another number
        number = _grouped(value, places) + scale
        if unit:
            yield f"{number} {unit}"
            yield f"{number}{unit}"
        else:
            yield number
        if THIN_SPACE in number:
            yield number.replace(THIN_SPACE, "") + unit


def _scale(value: float) -> tuple[float, str]:
    """`value` divided by the power of 1000 that leaves it under 999.5, and that power's letter."""
    for letter in _SCALES[:-1]:
        if abs(value) < 999.5:
            return value, letter
        value /= 1000
    return value, _SCALES[-1]


def _scaled(n: float | None, unit: str, width: int | None) -> str:
    value = _known(n)
    if value is None:
        return NOT_AVAILABLE
    amount, scale = _scale(value)
    return _fit(width, _forms(amount, 1 if scale and abs(amount) < 9.95 else 0, scale + unit))


def _fit(width: int | None, forms: "list[str] | Iterator[str]") -> str:
    """The first form that is at most `width` wide, else the shortest."""
    texts = list(forms)
    if width is None:
        return texts[0]
    return next((text for text in texts if len(text) <= width), min(texts, key=len))
