"""Step bars: prefill above, decode below, newest at the right."""

import numpy as np
import pytest

from widgets.demo import Demo
from widgets.marks import Event
from widgets.steps import DECODE_COLOR, PREFILL_COLOR, StepBars


def rows(bars: StepBars) -> list[str]:
    return [bars.render_line(y).text for y in range(bars.size.height)]


async def test_prefill_rises_and_decode_hangs_with_the_newest_at_the_right() -> None:
    bars = StepBars()
    async with Demo(bars).run_test(size=(30, 6)):
        bars.set_steps(np.array([0, 0, 2048]), np.array([4, 8, 0]), 2048)
        found = rows(bars)
        assert found[0].startswith("2\u202f048│")
        assert found[5].strip().startswith("8│")
        assert [row[-1] for row in found] == ["█", "█", "█", " ", " ", " "]
        assert [row[-2] for row in found] == [" ", " ", " ", "▒", "▒", "▒"]
        assert [row[-3] for row in found] == [" ", " ", " ", "▒", "░", " "]


async def test_an_event_is_a_thin_line_under_its_glyph() -> None:
    bars = StepBars()
    async with Demo(bars).run_test(size=(30, 6)):
        steps = np.array([0, 0, 0, 2048] * 300)  # more than are kept
        bars.set_steps(steps, steps * 0, 2048, [Event(1197, "balanced", "rebuild"), Event(2, "gone", "live")])
        assert [row[-3] for row in rows(bars)] == ["◆", "┊", "┊", "┊", "┊", "┊"]
        assert not any("◇" in row for row in rows(bars))


async def test_a_single_token_still_shows() -> None:
    bars = StepBars()
    async with Demo(bars).run_test(size=(30, 6)):
        bars.set_steps(np.array([1, 0]), np.array([0, 1]), 8192)
        found = rows(bars)
        assert found[2][-2] == "▁"
        assert found[3][-1] != " "


async def test_one_row_tells_the_kinds_apart_by_height_and_colour() -> None:
    bars = StepBars()
    async with Demo(bars).run_test(size=(10, 1)):
        bars.set_steps(np.array([512, 0]), np.array([3, 3]))
        *_, prefill, decode = bars.render_line(0)
        assert prefill.style is not None
        assert decode.style is not None
        assert (prefill.text, prefill.style.color and prefill.style.color.name) == ("█", PREFILL_COLOR)
        assert (decode.text, decode.style.color and decode.style.color.name) == ("▄", DECODE_COLOR)


@pytest.mark.parametrize("size", [(1, 1), (3, 2), (24, 4), (200, 50)])
@pytest.mark.parametrize("steps", [0, 1, 5_000])
async def test_every_size_draws(size: tuple[int, int], steps: int) -> None:
    bars = StepBars()
    async with Demo(bars).run_test(size=size):
        bars.set_steps(np.arange(steps), np.arange(steps))
        assert all(len(row) == size[0] for row in rows(bars))
