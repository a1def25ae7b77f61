"""The one-line widgets: stats, meters and the status bar."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from widgets.demo import Demo
from widgets.meter import Meter, bar
from widgets.stat import Stat
from widgets.status_bar import Segment, StatusBar, fit


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (40, "TTFT  82 ms  p99 240 ms  ⣀⣤⣶⣿"),
        (24, "TTFT  82 ms  p99 240 ms"),
        (16, "TTFT  82 ms"),
        (6, "82 ms"),
        (4, "…"),
    ],
)
async def test_a_stat_leaves_out_what_does_not_fit_and_keeps_the_number_whole(width: int, expected: str) -> None:
    stat = Stat("TTFT")
    async with Demo(stat).run_test(size=(width, 1)):
        stat.set("82 ms", "p99 240 ms", trend=[0, 0, 3, 3, 6, 6, 9, 9])
        assert stat.render().plain.strip() == expected


async def test_a_stat_is_unknown_until_it_is_set_and_states_have_shapes() -> None:
    stat = Stat("TTL")
    async with Demo(stat).run_test(size=(40, 1)):
        assert stat.render().plain == "TTL  n/a"
        stat.set("31 ms", state="warn")
        warned = stat.render().plain
        stat.set("31 ms", state="bad")
        assert len({warned, stat.render().plain, "TTL  31 ms"}) == 3


def test_a_bar_is_read_by_its_length() -> None:
    assert bar(0, 4) == "····"
    assert bar(0.5, 4) == "██··"
    assert bar(1, 4) == "████"
    assert bar(1e-6, 4) == "▏···"
    assert bar(7, 4) == "████"
    assert bar(None, 4) == "╌╌╌╌"


@pytest.mark.parametrize(
    ("width", "expected"),
    [(40, "memory ██████████·········· 91 / 182 GB"), (20, "memory 91 / 182 GB"), (13, "m… 91 / 182 GB"), (8, "…")],
)
async def test_a_meter_keeps_its_text_whole(width: int, expected: str) -> None:
    meter = Meter("memory")
    async with Demo(meter).run_test(size=(width, 1)):
        meter.set(0.5, "91 / 182 GB")
        shown = meter.render().plain
        assert shown.strip() == expected or (shown.endswith("91 / 182 GB") and cell_len(shown) <= width)


async def test_an_unknown_meter_has_no_bar_and_says_why() -> None:
    meter = Meter("power")
    async with Demo(meter).run_test(size=(40, 1)):
        meter.set(None, note="no sensor")
        shown = meter.render().plain
        assert "n/a" in shown
        assert "no sensor" in shown
        assert "█" not in shown


SEGMENTS = [
    Segment("SmolLM2-135M-Instruct", "SmolLM2", priority=3),
    Segment("balanced", priority=1),
    Segment("● ready", "●", priority=4),
    Segment("127.0.0.1:8000", ":8000", priority=2),
    Segment("H200 141 GB", "H200", priority=0),
]


@given(st.integers(0, 120))
def test_a_status_bar_fits_and_holds_only_whole_segments(width: int) -> None:
    shown = fit(SEGMENTS, width)
    assert cell_len(" · ".join(text for text, _ in shown)) <= width
    whole = {text for segment in SEGMENTS for text in (segment.text, segment.short)}
    assert all(text in whole for text, _ in shown if len(shown) > 1)


def test_the_least_important_goes_first_and_all_are_shortened_before_one_goes() -> None:
    assert [text for text, _ in fit(SEGMENTS, 120)] == [segment.text for segment in SEGMENTS]
    assert [text for text, _ in fit(SEGMENTS, 64)][-1] == "H200"
    assert [text for text, _ in fit(SEGMENTS, 40)] == ["SmolLM2", "balanced", "●", ":8000", "H200"]
    assert [text for text, _ in fit(SEGMENTS, 30)] == ["SmolLM2", "balanced", "●", ":8000"]
    assert [text for text, _ in fit(SEGMENTS, 3)] == ["●"]


async def test_the_clock_gives_way_to_the_segments() -> None:
    bar_ = StatusBar()
    async with Demo(bar_).run_test(size=(90, 1)) as pilot:
        bar_.set_segments(SEGMENTS, "14:03:22")
        assert bar_.render().plain.endswith("  14:03:22")
        await pilot.resize_terminal(70, 1)
        assert "14:03:22" not in bar_.render().plain
        assert "SmolLM2-135M-Instruct" in bar_.render().plain
