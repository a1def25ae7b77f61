"""The page map on a screen."""

from collections.abc import Sequence

import numpy as np
import pytest
from numpy.typing import NDArray
from textual import events

from widgets import palette
from widgets.demo import Demo
from widgets.page_map import CACHED, FREE, USED, PageMap

Snapshot = tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint16], list[str]]


def snapshot(pages: int, held: Sequence[tuple[str, range]] = (), cached: range = range(0)) -> Snapshot:
    """Pages of which the named requests hold some, and some are cached."""
    state, owner = np.zeros(pages, np.uint8), np.full(pages, -1, np.int32)
    refs = np.zeros(pages, np.uint16)
    for index, (_, where) in enumerate(held):
        for page in where:
            refs[page] += 1
            state[page], owner[page] = USED, index
    state[cached] = CACHED
    return state, owner, refs, [name for name, _ in held]


class Shown(Demo):
    """Remembers what was pointed at."""

    def __init__(self, page_map: PageMap) -> None:
        super().__init__(page_map)
        self.map = page_map
        self.pointed: list[PageMap.PageSelected] = []

    def on_page_map_page_selected(self, message: PageMap.PageSelected) -> None:
        self.pointed.append(message)


def color_at(page_map: PageMap, x: int, y: int) -> str:
    """The colour of a cell's upper half."""
    (segment,) = page_map.render_line(y).crop(x, x + 1)
    assert segment.style is not None
    color = segment.style.bgcolor if segment.text == " " else segment.style.color
    assert color is not None
    return color.name


async def test_pages_show_their_state_and_their_holder() -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(20, 10)) as pilot:
        held = [("one", range(5)), ("two", range(5, 10)), ("three", range(9, 12))]
        app.map.set_pages(*snapshot(400, held, cached=range(12, 15)))
        await pilot.pause()
        colors = [color_at(app.map, x, 0) for x in range(16)]
        one, two, three = (app.map.owner_color(name) for name in ("one", "two", "three"))
        assert colors[:9] == [one] * 5 + [two] * 4
        assert colors[9] == palette.SHARED_PAGE
        assert colors[10:] == [three] * 2 + [palette.CACHED_PAGE] * 3 + [palette.FREE_PAGE]
        assert [(holder.request_id, holder.pages) for holder in app.map.holders()] == [
            ("one", 5),
            ("two", 4),
            ("three", 3),
        ]


async def test_a_request_keeps_its_colour_while_it_lives() -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(20, 10)):
        app.map.set_pages(*snapshot(400, [("one", range(3)), ("two", range(3, 6))]))
        two = app.map.owner_color("two")
        app.map.set_pages(*snapshot(400, [("three", range(3)), ("two", range(3, 6)), ("four", range(6, 9))]))
        assert app.map.owner_color("two") == two
        assert len({app.map.owner_color(name) for name in ("two", "three", "four")}) == 3


async def test_requests_past_the_twelfth_are_grey_until_a_hue_is_free() -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(20, 10)):
        held = [(f"r{n}", range(n, n + 1)) for n in range(13)]
        app.map.set_pages(*snapshot(400, held))
        assert app.map.owner_color("r12") == palette.DIM_PAGE
        assert app.map.owner_color("r11") != palette.DIM_PAGE
        app.map.set_pages(*snapshot(400, held[1:]))
        assert app.map.owner_color("r12") == palette.series(0)


async def test_a_highlight_dims_the_others() -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(20, 10)):
        app.map.set_pages(*snapshot(400, [("one", range(3)), ("two", range(3, 6))]))
        app.map.highlight("two")
        assert color_at(app.map, 0, 0) == palette.DIM_PAGE
        assert color_at(app.map, 3, 0) == app.map.owner_color("two")
        app.map.highlight(None)
        assert color_at(app.map, 0, 0) == app.map.owner_color("one")


async def test_the_overview_fits_any_pool_and_zoom_reaches_one_page_a_pixel() -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(40, 10)) as pilot:
        app.map.set_pages(*snapshot(100_000, [("lonely", range(50_000, 50_001))]))
        await pilot.pause()
        assert app.map.max_scroll_y == 0
        assert app.map.pages_per_pixel == 125
        cells = {color_at(app.map, x, y) for y in range(10) for x in range(40)}
        assert app.map.owner_color("lonely") in cells
        app.map.focus()
        await pilot.press(*["plus"] * 12)
        assert app.map.pages_per_pixel == 1
        await pilot.press("minus")
        assert app.map.pages_per_pixel == 3
        await pilot.press(*["minus"] * 8)
        assert app.map.max_scroll_y == 0


async def test_keys_and_mouse_point_at_pages() -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(20, 10)) as pilot:
        app.map.set_pages(*snapshot(400, [("one", range(30))], cached=range(40, 60)))
        app.map.focus()
        await pilot.press("right", "right", "down", "down")
        await pilot.pause()
        assert [(message.page, message.state, message.owners) for message in app.pointed] == [
            (0, USED, ("one",)),
            (1, USED, ("one",)),
            (21, USED, ("one",)),
            (41, CACHED, ()),
        ]
        await pilot._post_mouse_events([events.MouseMove], app.map, (3, 4))
        await pilot.pause()
        assert (app.pointed[-1].page, app.pointed[-1].state) == (163, FREE)


async def test_only_rows_that_changed_are_painted(monkeypatch: pytest.MonkeyPatch) -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(20, 10)) as pilot:
        app.map.set_pages(*snapshot(400, [("one", range(30))]))
        await pilot.pause()
        painted: list[int] = []
        draw = app.map.render_line
        monkeypatch.setattr(app.map, "render_line", lambda y: (painted.append(y), draw(y))[1])
        app.map.set_pages(*snapshot(400, [("one", range(31))]))
        await pilot.pause()
        assert painted == [0]
        app.map.set_pages(*snapshot(400, [("one", range(31))]))
        await pilot.pause()
        assert painted == [0]


@pytest.mark.parametrize("pages", [1, 7, 400, 5_000])
async def test_every_size_draws(pages: int) -> None:
    app = Shown(PageMap())
    async with app.run_test(size=(40, 10)) as pilot:
        app.map.set_pages(*snapshot(pages, [("one", range(1))]))
        app.map.focus()
        for size in [(1, 1), (2, 30), (200, 2), (40, 10)]:
            await pilot.resize_terminal(*size)
            await pilot.press("right", "down", "plus")
            assert app.map.render_line(0).cell_length == app.map.size.width


async def test_without_colour_letters_and_shades_tell_pages_apart() -> None:
    app = Shown(PageMap(mono=True))
    async with app.run_test(size=(20, 10)):
        app.map.set_pages(*snapshot(40, [("one", range(3)), ("two", range(3, 6))], cached=range(6, 9)))
        assert app.map.render_line(0).text == "aaabbb░░░···········"
        assert [holder.letter for holder in app.map.holders()] == ["a", "b"]
