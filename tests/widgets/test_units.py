"""Number formats: what people read, and that a number is never cut or invented."""

import math
import re
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widgets import units

FORMATS: list[Callable[..., str]] = [
    units.milliseconds,
    units.duration,
    units.bytes_,
    units.percent,
    units.usd,
    units.count,
    lambda value, width=None: units.rate(value, "tok", width),
    lambda value, width=None: units.rate(value, "B", width),
]
numbers = st.floats(min_value=-1e15, max_value=1e15)


def plain(text: str) -> str:
    return text.replace(units.THIN_SPACE, "_")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (units.milliseconds(0.00042), "0.42 ms"),
        (units.milliseconds(0.0083), "8.3 ms"),
        (units.milliseconds(0.082), "82 ms"),
        (units.milliseconds(1.24), "1_240 ms"),
        (units.milliseconds(1.24, 5), "1.2 s"),
        (units.milliseconds(12.34), "12.3 s"),
        (units.milliseconds(125), "2 min 5 s"),
        (units.milliseconds(1e-9), "<0.01 ms"),
        (units.duration(0.082), "82 ms"),
        (units.duration(42), "42 s"),
        (units.duration(59.7), "1 min"),
        (units.duration(3_725), "1 h 2 min"),
        (units.duration(100 * 3600), "4 d 4 h"),
        (units.duration(3_725, 4), "1 h"),
        (units.bytes_(512), "512 B"),
        (units.bytes_(999.6), "1.0 kB"),
        (units.bytes_(2.1e9), "2.1 GB"),
        (units.bytes_(91e9), "91 GB"),
        (units.bytes_(91e9, 4), "91GB"),
        (units.percent(0.41), "41 %"),
        (units.percent(0.0032), "0.32 %"),
        (units.percent(0), "0 %"),
        (units.percent(1), "100 %"),
        (units.rate(31.2, "tok"), "31 tok/s"),
        (units.rate(12_345, "tok"), "12_345 tok/s"),
        (units.rate(12_345, "tok", 9), "12k tok/s"),
        (units.rate(2.1e9, "B"), "2.1 GB/s"),
        (units.usd(0.42), "$0.42"),
        (units.usd(0.031), "$0.031"),
        (units.usd(0.0003), "$0.0003"),
        (units.usd(12.4), "$12.40"),
        (units.usd(1_240), "$1_240"),
        (units.usd(0), "$0"),
        (units.count(8192), "8_192"),
        (units.count(8192, 4), "8192"),
        (units.count(8192, 3), "8k"),
        (units.count(1_000_000, 4), "1.0M"),
    ],
)
def test_reads_as_people_write_it(text: str, expected: str) -> None:
    assert plain(text) == expected


@pytest.mark.parametrize("form", FORMATS)
@pytest.mark.parametrize("value", [None, math.nan, math.inf])
def test_unknown_is_never_a_number(form: Callable[..., str], value: float | None) -> None:
    assert form(value) == "n/a"
    assert form(value, 1) == "n/a"


@pytest.mark.parametrize("form", FORMATS)
@given(value=numbers)
def test_a_positive_value_never_reads_as_zero(form: Callable[..., str], value: float) -> None:
    text = form(abs(value))
    zero = re.fullmatch(r"[$]?0(\.0+)?( ?[^\d.].*)?", text) is not None
    assert zero == (value == 0)


@pytest.mark.parametrize("form", FORMATS)
@given(value=numbers, width=st.integers(1, 20))
def test_a_width_never_changes_the_value_by_more_than_its_rounding(
    form: Callable[..., str], value: float, width: int
) -> None:
    usual, narrow = form(value), form(value, width)
    assert len(narrow) <= max(width, len(usual))
    if len(usual) <= width:
        assert narrow == usual
    first, second = _magnitude(usual), _magnitude(narrow)
    if first and second:
        assert second == pytest.approx(first, rel=0.51)


@given(n=st.integers(0, 10**12))
def test_counts_round_trip(n: int) -> None:
    assert int(units.count(n).replace(units.THIN_SPACE, "")) == n


def _magnitude(text: str) -> float | None:
    """The value of a text in base units, or `None` for compound forms and bounds."""
    match = re.fullmatch(r"(-?)[$]?([\d.]+) ?([kMGTPE]?)(ms|s|B|B/s|%|tok/s|)", text.replace(units.THIN_SPACE, ""))
    if not match:
        return None
    scale = 1e-3 if match[4] == "ms" else 1.0
    return float(match[2]) * scale * 1000 ** " kMGTPE".index(match[3] or " ")
