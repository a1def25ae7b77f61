"""The log view: what is kept, what is shown, and where the view stands."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from textual.app import App

from widgets.demo import Demo
from widgets.log_view import LONGEST_LINE, RING_LINES, LogLevel, LogLine, LogView


def lines(numbers: Iterable[int], level: LogLevel = "info", source: str = "engine") -> list[LogLine]:
    return [LogLine(0.0, level, source, f"line {number}") for number in numbers]


class Shown(Demo):
    def __init__(self) -> None:
        self.view = LogView()
        super().__init__(self.view)


def rows(view: LogView) -> list[str]:
    return [view.render_line(y).text.strip() for y in range(view.scrollable_content_region.height)]


async def test_the_view_follows_the_end_until_it_is_scrolled_away_and_from_end_on_again() -> None:
    app = Shown()
    async with app.run_test(size=(60, 10)) as pilot:
        app.view.extend(lines(range(100)))
        await pilot.pause()
        assert rows(app.view)[-1].endswith("line 99")
        app.view.focus()
        await pilot.press("pageup")
        await pilot.wait_for_animation()
        held = rows(app.view)
        app.view.extend(lines(range(100, 200)))
        await pilot.pause()
        assert not app.view.following
        assert rows(app.view) == held
        await pilot.press("end")
        app.view.extend(lines(range(200, 300)))
        await pilot.pause()
        assert rows(app.view)[-1].endswith("line 299")


async def test_the_ring_keeps_the_newest_and_the_place_of_a_reader() -> None:
    app = Shown()
    async with app.run_test(size=(60, 10)) as pilot:
        app.view.extend(lines(range(RING_LINES)))
        app.view.scroll_to(y=10_000, animate=False, force=True)
        await pilot.pause()
        held = rows(app.view)
        app.view.extend(lines(range(RING_LINES, RING_LINES + 500)))
        await pilot.pause()
        assert len(app.view.lines) == RING_LINES
        assert app.view.lines[0].text == "line 500"
        assert rows(app.view) == held
        app.view.extend(lines(range(3 * RING_LINES)))
        assert app.view.lines[-1].text == f"line {3 * RING_LINES - 1}"
        assert app.view.shown == RING_LINES


async def test_the_filter_takes_level_and_text_and_new_lines_pass_through_it() -> None:
    app = Shown()
    async with app.run_test(size=(60, 10)) as pilot:
        app.view.extend([*lines(range(5)), *lines(range(5, 8), "warning", "port"), *lines([8], "error")])
        app.view.set_filter("warning")
        assert app.view.shown == 4
        app.view.set_filter("debug", "PORT")
        assert app.view.shown == 3
        app.view.set_filter("error", "line 9")
        app.view.extend(lines([9], "error"))
        await pilot.pause()
        assert rows(app.view)[0].endswith("E engine    line 9")
        app.view.set_filter()
        assert app.view.shown == 10


async def test_long_lines_scroll_sideways_or_wrap() -> None:
    app = Shown()
    async with app.run_test(size=(40, 10)) as pilot:
        text = "".join(chr(ord("a") + n % 26) for n in range(60)) + "日本"
        app.view.extend([LogLine(0.0, "info", "engine", text)])
        await pilot.pause()
        assert app.view.max_scroll_x > 0
        app.view.focus()
        await pilot.press("w")
        await pilot.pause()
        assert app.view.max_scroll_x == 0
        shown = [row for row in rows(app.view) if row]
        assert "".join(row.split()[-1] for row in shown) == text
        await pilot.press("w")
        assert app.view.max_scroll_x > 0


async def test_wrapped_rows_follow_the_width_of_the_screen() -> None:
    app = Shown()
    async with app.run_test(size=(80, 10)) as pilot:
        app.view.wrap = True
        app.view.extend([LogLine(0.0, "info", "engine", " ".join(["word"] * 40))] * 20)
        for width in (20, 200, 3, 1, 80):
            await pilot.resize_terminal(width, 10)
            await pilot.pause()
            assert rows(app.view)
        assert rows(app.view)[-1].endswith("word")
        assert len([row for row in rows(app.view) if "engine" in row]) == 2


async def test_an_endless_line_is_shortened_and_says_so() -> None:
    app = Shown()
    async with app.run_test(size=(40, 10)) as pilot:
        app.view.extend([LogLine(0.0, "info", "engine", "x" * 1_000_000)])
        await pilot.pause()
        app.view.scroll_to(x=app.view.max_scroll_x, animate=False, force=True)
        assert f"(+{1_000_000 - LONGEST_LINE} characters)" in rows(app.view)[0]


async def test_a_flood_costs_one_screenful_of_drawing(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Shown()
    async with app.run_test(size=(60, 10)) as pilot:
        await pilot.pause()
        drawn: list[int] = []
        draw = app.view.render_line
        monkeypatch.setattr(app.view, "render_line", lambda y: (drawn.append(y), draw(y))[1])
        for start in range(0, 10_000, 100):
            app.view.extend(lines(range(start, start + 100)))
        await pilot.pause()
        assert rows(app.view)[-1].endswith("line 9999")
        assert len(drawn) <= 40


async def test_clearing_forgets_all(screen_text: Callable[[App[Any]], str]) -> None:
    app = Shown()
    async with app.run_test(size=(60, 10)) as pilot:
        app.view.extend(lines(range(50)))
        app.view.clear()
        app.view.extend(lines([77]))
        await pilot.pause()
        assert [row.split()[-1] for row in screen_text(app).splitlines() if row.strip()] == ["77"]
