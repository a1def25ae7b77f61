"""The waterfall and the usage bars: bars at their place, instants and parts that last, nothing cut or interpreted."""

import pytest

from widgets import units
from widgets.demo import Demo
from widgets.status_bar import Segment
from widgets.usage_bar import Usage, UsageBars, UsageGroup
from widgets.waterfall import NAME_WIDTH, Part, WaterfallView, ticks

BAR = NAME_WIDTH + 1


async def test_each_part_has_a_bar_at_its_place() -> None:
    view = WaterfallView()
    async with Demo(view).run_test(size=(NAME_WIDTH + 1 + 20 + 10, 12)):
        parts = [
            Part("received", 0.0, 0.0001),
            Part("queued", 0.0, 0.5),
            Part("prefill", 0.5, 1.0),
            Part("[/b]\x1b[31m\x07", 1.0, 1.25),
            Part("decode", 1.0, None),
            Part("done", 2.0, 2.0),
        ]
        view.set_parts(parts, now=2.0, chunks=(0.7, 1.0))
        rows = [view.render_line(y).text for y in range(7)]
        assert [row[BAR : BAR + 20] for row in rows[1:]] == [
            "▌".ljust(20),
            "█████".ljust(20),
            "     ██│██".ljust(20),
            " " * 10 + "██▌".ljust(10),
            " " * 10 + "█████████▶",
            " " * 19 + "◆",
        ]
        assert [row[BAR + 20 :].strip() for row in rows[1:]] == [
            *("0.10 ms", "500 ms", "500 ms", "250 ms"),
            *(units.milliseconds(1.0), units.milliseconds(2.0)),
        ]
        assert rows[4].startswith("[/b]␇      ")
        assert all(len(row) == BAR + 30 for row in rows)
        view.set_parts(parts, now=2.0, until=1.0)
        assert view.render_line(3).text[BAR : BAR + 20] == " " * 10 + "█" * 10
        assert view.render_line(6).text[BAR : BAR + 20] == " " * 19 + "›"
        view.set_parts([])
        assert view.render_line(1).text.strip() == ""


@pytest.mark.parametrize("span", [1e-6, 0.0042, 0.9, 1.0, 59.0, 61.0, 4_000.0, 90_000.0])
@pytest.mark.parametrize("width", [0, 5, 38, 120])
def test_ticks_stand_at_their_times_and_never_touch(span: float, width: int) -> None:
    axis = ticks(span, width)
    assert len(axis) == width
    if width >= 38:
        assert axis.startswith(units.duration(0.0))
        assert len([label for label in axis.split("  ") if label.strip()]) >= 2


async def test_usage_bars_keep_their_numbers_in_any_width() -> None:
    bars = UsageBars()
    limits = (Usage("requests/min", 42, 60, 12.0), Usage("[usd]\x07", 6.0, 5.0, None, money=True))
    async with Demo(bars).run_test(size=(100, 8)) as pilot:
        bars.set_groups([UsageGroup((Segment("[/b]"), Segment("● active")), limits), UsageGroup((), (), "none")])
        for width in (100, 70, 56):
            await pilot.resize_terminal(width, 8)
            await pilot.pause()
            heading, first, second, _, note = (bars.render_line(y).text for y in range(5))
            assert heading.startswith("[/b] · ● active")
            assert "42 / 60" in first
            assert "70 %" in first
            assert ("  resets in 12 s" if width == 100 else "  12 s") in first
            assert "$6.00 / $5.00" in second
            assert "120 %" in second
            assert "[usd]␇" in second
            assert note.strip() == "none"
        assert {len(line) for line in (first, second)} == {56}
