"""Braille lines: what survives decimation, and every size draws."""

import math
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from widgets import palette, units
from widgets.braille import round_up, spans
from widgets.demo import Demo
from widgets.marks import Event
from widgets.plot import LinePlot, Series
from widgets.sparkline import sparkline

values = st.lists(st.none() | st.floats(0, 1e6), min_size=1, max_size=500)


@given(values, st.integers(1, 300))
def test_no_extreme_is_lost_however_narrow_the_plot(series: list[float | None], columns: int) -> None:
    found = [span for span in spans(series, columns) if span is not None]
    known = [value for value in series if value is not None]
    assert len(spans(series, columns)) == columns
    assert max((high for _, high in found), default=None) == max(known, default=None)
    assert min((low for low, _ in found), default=None) == min(known, default=None)


@given(st.lists(st.floats(0, 1e6), min_size=2, max_size=300), st.integers(2, 200))
def test_known_neighbours_are_joined(series: list[float], columns: int) -> None:
    for before, after in pairwise(spans(series, columns)):
        assert before is not None
        assert after is not None
        assert after[0] <= before[1]
        assert before[0] <= after[1]


def test_the_unknown_leaves_a_gap() -> None:
    assert spans([1, None, 3], 3) == [(1, 1), None, (3, 3)]
    assert spans([1.0] * 10 + [None] * 10 + [1.0] * 10, 15)[5:10] == [None] * 5


@given(st.floats(1e-9, 1e12))
def test_the_axis_ends_at_a_round_number_close_above(value: float) -> None:
    assert value * 0.999 <= round_up(value) <= value * 2


@given(values, st.integers(0, 50))
def test_a_sparkline_fits_and_keeps_the_peak(series: list[float | None], width: int) -> None:
    text = sparkline(series, width)
    assert len(text) <= width
    if width and any(value for value in series if value):
        assert any(ord(cell) - 0x2800 & 0x09 for cell in text)


def lines(plot: LinePlot) -> list[str]:
    return [plot.render_line(y).text for y in range(plot.size.height)]


async def test_axis_thresholds_events_and_time_stand_beside_the_lines() -> None:
    plot = LinePlot()
    async with Demo(plot).run_test(size=(60, 12)) as pilot:
        data = [0.03] * 300
        data[7] = 0.13
        plot.set_series(
            [Series("TTL p50", [0.02] * 300, palette.series(0)), Series("TTL p99", data, palette.series(1))],
            unit=units.milliseconds,
            thresholds=[(0.1, "premium 100 ms")],
            events=[Event(150, "profile", "rebuild")],
            ends=("-5 min", "now"),
        )
        await pilot.pause()
        rows = lines(plot)
        assert "TTL p50" in rows[0]
        assert "TTL p99" in rows[0]
        assert rows[1].startswith("150 ms│")
        assert "◆profile" in rows[1]
        assert "◆ rebuild" in rows[0]
        assert rows[3][rows[1].index("◆")] == "┊"
        assert rows[-2].startswith("  0 ms│")
        assert rows[-1].split() == ["-5", "min", "now"]
        (threshold,) = (row for row in rows if "premium 100 ms" in row)
        assert "┈" in threshold
        spike = rows[2][8]
        assert ord(spike) > 0x2800


async def test_a_far_threshold_does_not_flatten_the_lines() -> None:
    plot = LinePlot()
    async with Demo(plot).run_test(size=(60, 12)):
        plot.set_series([Series("", [1.0, 2.0], palette.series(0))], thresholds=[(1_000.0, "far")])
        assert "2│" in lines(plot)[0]


async def test_kinds_of_events_differ_without_colour_and_labels_never_overlap() -> None:
    plot = LinePlot()
    events = [Event(4, "earlier", "live"), Event(7, "later [b]", "recovery"), Event(90, "outside", "rebuild")]
    async with Demo(plot).run_test(size=(60, 8)):
        plot.set_series([Series("TTL", [1.0] * 60, palette.series(0))], events=events)
        rows = lines(plot)
        assert "◇ live ✚ recovery" in rows[0]
        assert "✚later [b]" in rows[1]
        assert "◇" in rows[1]
        assert "earlier" not in rows[1]
        assert "outside" not in "".join(rows)


async def test_a_label_is_never_cut_by_the_mark_of_another_event() -> None:
    plot = LinePlot()
    events = [Event(55, "other", "rebuild"), Event(58, "recovery", "recovery")]
    async with Demo(plot).run_test(size=(60, 8)):
        plot.set_series([Series("TTL", [1.0] * 60, palette.series(0))], events=events)
        row = lines(plot)[1]
        assert "◆" in row
        assert "✚" in row
        assert "other" in row
        assert "recov" not in row


@pytest.mark.parametrize("size", [(10, 1), (1, 1), (24, 3), (5, 20), (100, 2), (200, 60)])
async def test_every_size_draws_the_line(size: tuple[int, int]) -> None:
    plot = LinePlot()
    async with Demo(plot).run_test(size=size):
        plot.set_series([Series("TTL", [1, 5, None, math.nan, 2], palette.series(0))], ends=("-5 s", "now"))
        rows = lines(plot)
        assert all(len(row) == size[0] for row in rows)
        assert any("\u2800" < cell <= "\u28ff" for row in rows for cell in row)


async def test_no_data_is_an_empty_plot() -> None:
    plot = LinePlot()
    async with Demo(plot).run_test(size=(40, 8)):
        plot.set_series([Series("TTL", [], palette.series(0)), Series("TTFT", [None] * 5, palette.series(1))])
        assert not any("\u2800" < cell <= "\u28ff" for row in lines(plot) for cell in row)
