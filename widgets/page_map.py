"""The map of a KV cache: one half-block a page, coloured by the request that holds it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets import palette

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

FREE = 0
USED = 1
CACHED = 2

_HUES = 12
_LETTERS = "abcdefghijkl"
_GLYPHS = ("·", "░", "▒", "#", *_LETTERS, " ")


class Holder(NamedTuple):
    """A request that holds pages: the colour (CSS hex) and the letter it's drawn with, and how many pages."""

    request_id: str
    color: str
    letter: str
    pages: int


class PageMap(ScrollView, can_focus=True):
    """Every page of a KV cache, in reading order from page 0.

    A request keeps its hue while it lives. There are 8 hues; up to 12 requests have one, the others are grey, as are
    all but the highlighted one if there is one. Pages held by several requests are white. A pool larger than the
    widget is shown with several pages a pixel: such a pixel is in use if one of its pages is, else cached if one is,
    and takes the colour of the request with most pages in it. Without colours, a page is a letter or a shade.
    """

    BINDINGS = [
        Binding("left,h", "move(-1,0)", "Left", id="pages.left", show=False),
        Binding("right,l", "move(1,0)", "Right", id="pages.right", show=False),
        Binding("up,k", "move(0,-1)", "Up", id="pages.up", show=False),
        Binding("down,j", "move(0,1)", "Down", id="pages.down", show=False),
        Binding("plus,equals_sign", "zoom(1)", "Zoom in", id="pages.zoom-in", tooltip="Fewer pages a pixel"),
        Binding("minus", "zoom(-1)", "Zoom out", id="pages.zoom-out", tooltip="More pages a pixel"),
    ]
    DEFAULT_CSS = """
    PageMap { width: 1fr; height: 1fr; scrollbar-size-vertical: 1; overflow-x: hidden; }
    """

    class PageSelected(Message):
        """A pixel was pointed at: pages `page` to `page + pages - 1`.

        `state` is USED if one of them is, else CACHED if one is; `refs` the most requests that hold one of them;
        `owners` the requests known to hold one, those with most pages first.
        """

        def __init__(
            self, page_map: PageMap, page: int, pages: int, state: int, refs: int, owners: tuple[str, ...]
        ) -> None:
            super().__init__()
            self.page_map = page_map
            self.page = page
            self.pages = pages
            self.state = state
            self.refs = refs
            self.owners = owners

        @property
        def control(self) -> PageMap:
            """The sending map."""
            return self.page_map

    def __init__(self, *, mono: bool | None = None, id: str | None = None, classes: str | None = None) -> None:
        """`mono` draws letters and shades for screens without colour; by default as `NO_COLOR` says."""
        super().__init__(id=id, classes=classes)
        self._mono = mono
        self._snapshot: tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.integer]] | None = None
        self._owners: tuple[str, ...] = ()
        self._slots: dict[str, int] = {}
        self._highlight: str | None = None
        self._cells: NDArray[np.uint16] | None = None
        self._columns = 0
        self._zoom = 0  # steps in from the overview
        self._pages_per_pixel = 1
        self._cursor: int | None = None  # a pixel
        self._styles: dict[int, Style] = {}

    @property
    def pages_per_pixel(self) -> int:
        """How many pages one pixel stands for at the present zoom."""
        return self._pages_per_pixel

    def set_pages(
        self, state: NDArray[np.uint8], owner: NDArray[np.int32], refs: NDArray[np.integer], owners: Sequence[str]
    ) -> None:
        """Show a snapshot, which must not be changed afterwards.

        Arrays have one entry a page: `state` is FREE, USED or CACHED; `owner` an index into `owners`, or -1; `refs` how
        many requests hold the page.
        """
        self._snapshot = (state, owner, refs)
        self._owners = tuple(owners)
        self._give_hues()
        self._draw()

    def highlight(self, request_id: str | None) -> None:
        """Show one request's pages in full colour and the others' in grey; `None` ends it."""
        if request_id != self._highlight:
            self._highlight = request_id
            self._draw()

    def owner_color(self, request_id: str) -> str:
        """The colour (CSS hex) in which a request's pages are drawn, highlights apart."""
        slot = self._slots.get(request_id)
        return palette.DIM_PAGE if slot is None else palette.series(slot)

    def holders(self) -> list[Holder]:
        """The requests that hold pages, for a legend; those with most pages first."""
        if self._snapshot is None:
            return []
        import numpy as np

        state, owner, _ = self._snapshot
        held = np.bincount(owner[(state == USED) & (owner >= 0)], minlength=len(self._owners)).tolist()
        holders = [
            Holder(name, self.owner_color(name), _letter(self._slots.get(name)), pages)
            for name, pages in zip(self._owners, held, strict=True)
            if pages
        ]
        return sorted(holders, key=lambda holder: -holder.pages)

    def action_zoom(self, steps: int) -> None:
        """Halve (positive) or double the pages a pixel stands for, between one page and the whole pool in view."""
        page = None if self._cursor is None else self._cursor * self._pages_per_pixel
        before = self._pages_per_pixel
        self._zoom = max(0, self._zoom + steps)
        self._draw()
        if steps > 0 and self._pages_per_pixel == before:
            self._zoom -= steps
        if page is not None:
            self._point(page // self._pages_per_pixel)

    def action_move(self, right: int, down: int) -> None:
        """Move the cursor by pixels."""
        at = 0 if self._cursor is None else self._cursor + right + down * self._columns
        if self._cursor is None or 0 <= at < self._pixels():
            self._point(at)

    def on_mouse_move(self, event: events.MouseMove) -> None:
        """Point at the page under the mouse (the upper of a cell's two)."""
        pixel = (event.y + self.scroll_offset.y) * self._stack * self._columns + event.x
        if event.x < self._columns and pixel < self._pixels() and pixel != self._cursor:
            self._point(pixel)

    def on_resize(self) -> None:
        """Lay the pages out anew."""
        self._draw()

    def notify_style_update(self) -> None:
        """Drop styles made for another theme."""
        self._styles.clear()
        super().notify_style_update()

    @property
    def _stack(self) -> int:
        return 1 if self._mono or (self._mono is None and self.app.no_color) else 2

    def _pixels(self) -> int:
        return 0 if self._snapshot is None else -(-len(self._snapshot[0]) // self._pages_per_pixel)

    def _give_hues(self) -> None:
        """Take hues back from requests that are gone, and give free ones to those without, in their order."""
        live = set(self._owners)
        self._slots = {name: slot for name, slot in self._slots.items() if name in live}
        free = sorted(set(range(_HUES)) - set(self._slots.values()), reverse=True)
        for name in self._owners:
            if name not in self._slots and free:
                self._slots[name] = free.pop()

    def _layout(self, pages: int) -> None:
        """Choose columns and pages a pixel: the overview fits everything, each zoom step halves it and scrolls."""
        width, height = self.size.width, self.size.height * self._stack
        overview = max(1, -(-pages // (width * height)))
        self._pages_per_pixel = max(1, overview >> self._zoom)
        scrolls = self._pages_per_pixel < overview
        self._columns = width - 1 if scrolls and width > 1 else width

    def _draw(self) -> None:
        """Work out the cells, and repaint the rows in which one changed."""
        if self._snapshot is None or not self.size.width or not self.size.height:
            return
        import numpy as np

        from widgets import page_grid

        state, owner, refs = self._snapshot
        self._layout(len(state))
        slots = self._slots
        codes = np.full(len(self._owners) + 1, page_grid.CODE_DIM, np.uint8)
        marked = self._owners.index(self._highlight) if self._highlight in self._owners else -1
        for index, name in enumerate(self._owners):
            if name in slots and self._highlight in (None, name):
                codes[index] = page_grid.CODE_HUE + slots[name]
        if marked >= 0 and codes[marked] == page_grid.CODE_DIM:
            codes[marked] = page_grid.CODE_HUE
        first = int(codes[marked]) if marked >= 0 else -1
        of_page = page_grid.page_codes(state, owner, refs, codes, marked)
        of_pixel = page_grid.pixel_codes(of_page, self._pages_per_pixel, first)
        cells = page_grid.cell_codes(of_pixel, self._columns, self._stack)
        before, self._cells = self._cells, cells
        if before is None or before.shape != cells.shape:
            self.virtual_size = Size(0, len(cells))
            self._cursor = None if self._cursor is None else min(self._cursor, self._pixels() - 1)
            self.refresh()
            return
        for row in np.flatnonzero((before != cells).any(axis=1)).tolist():
            self.refresh_line(row)

    def _point(self, pixel: int) -> None:
        """Put the cursor on a pixel, in view, and say what's there."""
        assert self._snapshot is not None
        import numpy as np

        for at in (self._cursor, pixel):
            if at is not None:
                self.refresh_line(at // self._columns // self._stack)
        self._cursor = pixel
        row, top = pixel // self._columns // self._stack, self.scroll_offset.y
        target = min(max(top, row - self.size.height + 1), row)
        if target != top:
            self.scroll_to(y=target, animate=False, force=True)
        first = pixel * self._pages_per_pixel
        state, owner, refs = (array[first : first + self._pages_per_pixel] for array in self._snapshot)
        holding = owner[(state == USED) & (owner >= 0)]
        held = np.bincount(holding) if len(holding) else np.zeros(0, int)
        owners = tuple(self._owners[index] for index in np.argsort(-held, kind="stable").tolist() if held[index])
        code = next((code for code in (USED, CACHED) if (state == code).any()), FREE)
        self.post_message(self.PageSelected(self, first, len(state), code, int(refs.max()), owners))

    def render_line(self, y: int) -> Strip:
        """One row of cells: a segment for each run of equal ones."""
        row, width = y + self.scroll_offset.y, self.size.width
        if self._cells is None or row >= len(self._cells):
            return Strip.blank(width, self.rich_style)
        from widgets import page_grid

        segments = [
            Segment(self._glyph(code) * length, self._style(code)) for code, length in page_grid.runs(self._cells[row])
        ]
        strip = Strip(segments, self._columns)
        at = self._cursor
        if at is not None and self.has_focus | self.mouse_hover and at // self._columns // self._stack == row:
            strip = self._with_cursor(strip, int(self._cells[row, at % self._columns]), at)
        return strip.extend_cell_length(width, self.rich_style)

    def _with_cursor(self, strip: Strip, code: int, at: int) -> Strip:
        lower = self._stack == 2 and at // self._columns % 2 == 1
        column = at % self._columns
        if self._stack == 1:
            mark = Segment(self._glyph(code), self._style(code) + Style(reverse=True, bold=True))
        else:
            half = code % 32 if lower else code // 32
            ink = "#000000" if half > 1 else "#ffffff"
            mark = Segment("▼" if lower else "▲", Style(color=ink, bgcolor=_color(half), bold=True))
        left, _, right = strip.divide([column, column + 1, self._columns])
        return Strip.join([left, Strip([mark], 1), right])

    def _glyph(self, code: int) -> str:
        upper, lower = divmod(code, 32)
        return _GLYPHS[upper] if self._stack == 1 else " " if upper == lower else "▀"

    def _style(self, code: int) -> Style:
        style = self._styles.get(code)
        if style is None:
            base = self.rich_style
            if self._stack == 2:
                background = base.bgcolor
                upper, lower = (_color(half) for half in divmod(code, 32))
                style = Style(color=upper or background, bgcolor=lower or background)
            else:
                style = base
            self._styles[code] = style
        return style


def _color(code: int) -> str | None:
    """The colour of a pixel; `None` where there is no page."""
    states = (palette.FREE_PAGE, palette.CACHED_PAGE, palette.DIM_PAGE, palette.SHARED_PAGE)
    if code < len(states):
        return states[code]
    return palette.series(code - len(states)) if code < len(states) + _HUES else None


def _demo() -> None:
    import numpy as np

    from widgets.demo import Demo

    page_map, random = PageMap(), np.random.default_rng(1)
    state, owner = np.zeros(4_000, np.uint8), np.full(4_000, -1, np.int32)

    def tick(_: float) -> None:
        at, length = int(random.integers(3_900)), int(random.integers(100))
        state[at : at + length], owner[at : at + length] = random.integers(3), random.integers(8)
        page_map.set_pages(state.copy(), owner.copy(), (state == USED).astype(np.uint16), [f"r{n}" for n in range(8)])

    Demo(page_map, tick=tick).run()


def _letter(slot: int | None) -> str:
    return "▒" if slot is None else _LETTERS[slot]


if __name__ == "__main__":
    _demo()
