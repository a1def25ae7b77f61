"""The table of live requests: cursor and scroll survive updates, columns give way whole."""

from collections.abc import Callable, Iterable
from typing import Any

import pytest
from textual.app import App

from widgets.demo import Demo
from widgets.request_table import RequestLine, RequestTable
from widgets.table import beginning


def line(name: str, output: int = 412) -> RequestLine:
    return RequestLine(name, "decode", 8192, output, 1024, 12.3, 0.082, None, 212)


def lines(numbers: Iterable[int]) -> list[RequestLine]:
    return [line(f"r{number:02}") for number in numbers]


class Shown(Demo):
    def __init__(self) -> None:
        self.table = RequestTable()
        super().__init__(self.table)
        self.selected: list[str | None] = []

    def on_request_table_request_selected(self, message: RequestTable.RequestSelected) -> None:
        self.selected.append(message.request_id)


async def test_rows_read_as_numbers_with_units(screen_text: Callable[[App[Any]], str]) -> None:
    app = Shown()
    async with app.run_test(size=(90, 5)) as pilot:
        app.table.set_requests([line("7f3a")])
        await pilot.pause()
        header, row, *_ = screen_text(app).splitlines()
        assert header.split() == ["request", "state", "prompt", "output", "age", "TTFT", "TTL", "p99", "pages"]
        cells = [cell.strip() for cell in row.replace("\u202f", "_").split("  ") if cell.strip()]
        assert cells == ["7f3a", "decode", "8_192", "412/1_024", "12 s", "82 ms", "n/a", "212"]


async def test_the_cursor_stays_on_its_request_as_others_come_and_go() -> None:
    app = Shown()
    async with app.run_test(size=(80, 10)) as pilot:
        app.table.set_requests(lines(range(5)))
        app.table.focus()
        await pilot.press("down", "down")
        assert app.table.selected == "r02"
        app.table.set_requests(lines([9, 8, 2, 7]))
        await pilot.pause()
        assert app.table.selected == "r02"
        assert app.selected == ["r00", "r01", "r02"]
        app.table.set_requests(lines([9, 8, 7]))
        assert app.table.selected == "r07"
        app.table.set_requests([])
        await pilot.pause()
        assert app.selected[-1] is None


async def test_updates_keep_the_scroll_position() -> None:
    app = Shown()
    async with app.run_test(size=(80, 6)) as pilot:
        app.table.set_requests(lines(range(50)))
        await pilot.pause()
        app.table.focus()
        await pilot.press("end")
        place = app.table.scroll_offset.y
        assert place == 45
        app.table.set_requests([line(f"r{number:02}", output=500) for number in range(50)])
        await pilot.pause()
        assert app.table.scroll_offset.y == place
        assert app.table.render_line(5).text.split()[0] == "r49"


async def test_a_click_moves_the_cursor() -> None:
    app = Shown()
    async with app.run_test(size=(80, 10)) as pilot:
        app.table.set_requests(lines(range(5)))
        await pilot.pause()
        await pilot.click(app.table, offset=(10, 4))
        assert app.table.selected == "r03"


@pytest.mark.parametrize(
    ("width", "titles"),
    [(90, 9), (60, 7), (30, 3), (12, 1)],
)
async def test_columns_leave_whole_the_least_important_first(width: int, titles: int) -> None:
    app = Shown()
    async with app.run_test(size=(width, 10)):
        app.table.set_requests(lines(range(5)))
        header = app.table.render_line(0).text.replace("TTL p99", "TTL-p99").split()
        assert header[0] == "request"
        assert len(header) <= titles
        assert app.table.render_line(1).cell_length == width
        assert "…" not in app.table.render_line(1).text


async def test_a_request_is_marked_with_its_colour_in_the_page_map() -> None:
    app = Shown()
    async with app.run_test(size=(80, 10)):
        app.table.set_requests(lines(range(2)), {"r01": "#ffaf00"})
        assert app.table.render_line(1).text.startswith("  r00")
        assert app.table.render_line(2).text.startswith("■ r01")


def test_an_id_of_digits_is_cut_like_any_other() -> None:
    assert beginning("9259418167", 8) == "9259418…"
    assert beginning("92594181", 8) == "92594181"
