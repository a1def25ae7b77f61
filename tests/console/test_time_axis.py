"""The time axis: pausing, zooming and scrubbing, and seconds and minutes joined without doubling or inventing."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from stub_host import NOON

from console.time_axis import LONGEST_S, ZOOMS_S, Axis, Past, View
from engine_host.api.types import HistoryPoint, Mark


def point(time: float, value: float | None = 1.0, span_s: float = 1.0) -> HistoryPoint:
    return HistoryPoint(time, None, None, None, value, 0.0, value or 0.0, 0, 0, None, None, span_s=span_s)


def past(seconds: range = range(0), minutes: range = range(0)) -> Past:
    """Seconds and minutes by their offsets from noon."""
    known = Past()
    known.add_minutes([point(NOON + 60 * n, 100.0 + n, 60.0) for n in minutes])
    known.add_seconds([point(NOON + n, float(n)) for n in seconds])
    return known


def test_pausing_holds_the_end_and_resuming_follows_again() -> None:
    paused = Axis().toggled(NOON)
    assert not paused.live
    assert paused.window(NOON + 500) == (NOON - 120, NOON)
    assert paused.toggled(NOON + 500).window(NOON + 500) == (NOON + 380, NOON + 500)


def test_zooming_keeps_the_end() -> None:
    axis = Axis(120, NOON)
    assert axis.zoomed(1).window(NOON + 9) == (NOON - 300, NOON)
    assert axis.zoomed(-1).span_s == 60
    assert Axis(60).zoomed(-1).span_s == 60
    assert Axis(LONGEST_S).zoomed(1).span_s == LONGEST_S


def test_scrubbing_ends_at_the_oldest_and_at_now() -> None:
    axis, now, oldest = Axis(120), NOON, NOON - 150
    axis = axis.moved(-1, now, oldest)
    assert axis.end == NOON - 30
    axis = axis.moved(-2, now, oldest)
    assert axis.window(now) == (oldest, oldest + 120)
    assert axis == Axis(120).at_oldest(now, oldest)
    assert axis.moved(1, now, oldest).live


@given(
    st.lists(st.sampled_from(["toggle", "in", "out", "back", "on", "home"]), max_size=30),
    st.integers(1, 2 * LONGEST_S),
)
def test_no_key_leads_past_the_data_or_into_the_future(keys: list[str], known_s: int) -> None:
    axis, now, oldest = Axis(), NOON, NOON - known_s
    for key in keys:
        before = now if axis.end is None else axis.end
        axis = {
            "toggle": lambda axis: axis.toggled(now),
            "in": lambda axis: axis.zoomed(-1),
            "out": lambda axis: axis.zoomed(1),
            "back": lambda axis: axis.moved(-1, now, oldest),
            "on": lambda axis: axis.moved(1, now, oldest),
            "home": lambda axis: axis.at_oldest(now, oldest),
        }[key](axis)
        assert axis.span_s in ZOOMS_S
        end = now if axis.end is None else axis.end
        assert end <= now
        if key in ("in", "out"):
            assert end == before
        if key == "back":
            assert min(before, oldest + axis.span_s) <= end <= before
        if key == "on":
            assert end >= before


def test_a_second_without_a_point_is_a_gap() -> None:
    known = past(seconds=range(5))
    known.add_seconds([point(NOON + 8, 8.0), point(NOON + 9, None)])
    view = known.view(Axis(60), NOON + 10)
    assert view.values("ttl_p99") == [None] * 50 + [0.0, 1.0, 2.0, 3.0, 4.0, None, None, None, 8.0, None]


def test_a_minute_covers_its_seconds_where_there_are_none() -> None:
    view = past(seconds=range(120, 180), minutes=range(3)).view(Axis(120, NOON + 180), NOON + 180)
    assert view.values("ttl_p99") == [101.0] * 60 + [float(n) for n in range(120, 180)]
    assert view.by_minute
    assert not past(seconds=range(120)).view(Axis(60), NOON + 120).by_minute


def test_a_minute_the_seconds_begin_in_is_not_shown_twice() -> None:
    view = past(seconds=range(90, 180), minutes=range(3)).view(Axis(300), NOON + 180)
    assert [(each.time - NOON, each.span_s) for each in view.points[:3]] == [(0, 60), (60, 60), (120, 1)]
    assert sum(each.span_s for each in view.points) == 180


@given(st.integers(-1_000, 1_000), st.integers(0, 600), st.sets(st.integers(-40, 20)), st.sampled_from(ZOOMS_S))
def test_no_time_is_covered_twice(first: int, seconds: int, minutes: set[int], span: int) -> None:
    known = Past()
    known.add_minutes([point(NOON + 60 * n, 1.0, 60.0) for n in sorted(minutes)])
    known.add_seconds([point(NOON + first + n) for n in range(seconds)])
    points = known.view(Axis(span), known.newest or NOON).points
    ends = [each.time + each.span_s for each in points]
    assert all(end <= later.time for end, later in zip(ends, points[1:], strict=False))


def test_long_slots_keep_the_extremes() -> None:
    known = past(seconds=range(600))
    view = known.view(Axis(1_800), NOON + 600)
    values = view.values("ttl_p99")
    assert len(values) == 2 * 360
    assert values[-2:] == [595.0, 599.0]
    assert values[:480] == [None] * 480


def test_a_day_shows_minutes_where_there_are_any_and_seconds_after_them() -> None:
    known = past(seconds=range(600), minutes=range(-1_440, 9))
    view = known.view(Axis(LONGEST_S), NOON + 600)
    values = view.values("ttl_p99")
    assert len(values) == 2 * 1_440
    assert values[-4:] == [108.0, 108.0, 540.0, 599.0]


def test_what_is_kept_is_bounded() -> None:
    known = past(seconds=range(2_000), minutes=range(-3_000, 30))
    assert len(known.seconds) == 600
    assert known.oldest == NOON + 29 * 60 - LONGEST_S
    assert known.newest == NOON + 2_000
    assert past().newest is past().oldest is None


@pytest.mark.parametrize("span", ZOOMS_S)
def test_marks_stand_where_their_time_is(span: int) -> None:
    view = View(NOON - span, NOON, 1 if span <= 600 else 60, ())
    marks = [Mark(NOON - span / 4, "rebuild", "balanced"), Mark(NOON - span - 1, "live", "long ago")]
    (event,) = view.events(marks)
    assert math.isclose(event.at / len(view.values("ttl_p99")), 0.75)
    assert (event.label, event.kind) == ("balanced", "rebuild")
