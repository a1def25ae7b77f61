"""The table of live requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets import units
from widgets.text import elide, one_line

_ID_WIDTH = 8


@dataclass(frozen=True, slots=True)
class RequestLine:
    """One row. Tokens are counts, `age`, `ttft` and `ttl_p99` seconds, `pages` KV pages; `None` is unknown."""

    id: str
    state: str
    prompt: int
    output: int
    max_tokens: int | None
    age: float
    ttft: float | None
    ttl_p99: float | None
    pages: int | None


class _Column(NamedTuple):
    title: str
    width: int
    keep: int  # columns with the lowest `keep` are left out first in a narrow table
    text: Callable[[RequestLine, int], str]


def _beginning(request_id: str, width: int) -> str:
    """The beginning of an id. Its digits are no number: where it is cut doesn't change what it says."""
    text = one_line(request_id)
    return text if len(text) <= width else f"{text[: width - 1]}…"


def _progress(line: RequestLine, width: int) -> str:
    done = units.count(line.output, width)
    if line.max_tokens is None:
        return done
    both = f"{done}/{units.count(line.max_tokens)}"
    return both if len(both) <= width else f"{units.count(line.output, 5)}/{units.count(line.max_tokens, 5)}"


_COLUMNS = (
    _Column("request", _ID_WIDTH, 9, lambda line, width: _beginning(line.id, width)),
    _Column("state", 7, 8, lambda line, width: elide(one_line(line.state), width)),
    _Column("prompt", 7, 4, lambda line, width: units.count(line.prompt, width)),
    _Column("output", 11, 7, _progress),
    _Column("age", 10, 3, lambda line, width: units.duration(line.age, width)),
    _Column("TTFT", 8, 5, lambda line, width: units.milliseconds(line.ttft, width)),
    _Column("TTL p99", 8, 6, lambda line, width: units.milliseconds(line.ttl_p99, width)),
    _Column("pages", 6, 6, lambda line, width: units.count(line.pages, width)),
)
_LEFT_ALIGNED = ("request", "state")


class RequestTable(ScrollView, can_focus=True):
    """One row a request; updates keep the cursor on its request, and the scroll position.

    Columns that don't fit are left out, the least important first; no number is cut.
    """

    BINDINGS = [
        Binding("up,k", "move(-1)", "Up", id="requests.up", show=False),
        Binding("down,j", "move(1)", "Down", id="requests.down", show=False),
        Binding("pageup", "page(-1)", "Page up", id="requests.page-up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="requests.page-down", show=False),
        Binding("home", "move(-1000000)", "First", id="requests.first", show=False),
        Binding("end", "move(1000000)", "Last", id="requests.last", show=False),
    ]
    COMPONENT_CLASSES = {"request-table--header", "request-table--cursor", "request-table--cursor-blurred"}
    DEFAULT_CSS = """
    RequestTable { width: 1fr; height: 1fr; }
    RequestTable > .request-table--header { color: $foreground-muted; text-style: bold; }
    RequestTable > .request-table--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
    }
    RequestTable > .request-table--cursor-blurred { text-style: underline; }
    """

    class RequestSelected(Message):
        """The cursor is on another request (`None`: the table is empty)."""

        def __init__(self, table: RequestTable, request_id: str | None) -> None:
            super().__init__()
            self.table = table
            self.request_id = request_id

        @property
        def control(self) -> RequestTable:
            """The sending table."""
            return self.table

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: tuple[RequestLine, ...] = ()
        self._cursor = 0
        self._selected: str | None = None
        self._colors: dict[str, str] = {}

    @property
    def selected(self) -> str | None:
        """The id of the request under the cursor."""
        return self._selected

    def set_requests(self, lines: Sequence[RequestLine], colors: dict[str, str] | None = None) -> None:
        """Show these requests, in this order; `colors` (id to CSS hex) marks each with its colour in the page map."""
        shown, hues = tuple(lines), colors or {}
        if shown == self._lines and hues == self._colors:
            return
        self._lines, self._colors = shown, hues
        ids = [line.id for line in shown]
        if self._selected in ids:
            self._cursor = ids.index(self._selected)
        self.virtual_size = Size(0, len(shown) + 1)
        self._select(self._cursor, follow=False)
        self.refresh()

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows (negative: up), as far as there are any."""
        self._select(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self._select(self._cursor + pages * max(1, self.size.height - 2))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row under the mouse."""
        row = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and row < len(self._lines):
            self._select(row)

    def _select(self, row: int, follow: bool = True) -> None:
        self._cursor = max(0, min(row, len(self._lines) - 1))
        selected = self._lines[self._cursor].id if self._lines else None
        if selected != self._selected:
            self._selected = selected
            self.post_message(self.RequestSelected(self, selected))
        if follow:
            rows, top = max(1, self.size.height - 1), self.scroll_offset.y
            target = min(max(top, self._cursor - rows + 1), self._cursor)
            if target != top:
                self.scroll_to(y=target, animate=False, force=True)
        self.refresh()

    def _columns(self) -> list[_Column]:
        columns, room = [], self.scrollable_content_region.width - 2
        for column in sorted(_COLUMNS, key=lambda column: -column.keep):
            if column.width + 1 > room:
                break
            room -= column.width + 1
            columns.append(column)
        return [column for column in _COLUMNS if column in columns]

    def render_line(self, y: int) -> Strip:
        """The header, then one request a row."""
        columns, width = self._columns(), self.size.width
        if y == 0:
            style = self.get_component_rich_style("request-table--header")
            cells = [_aligned(column, column.title) for column in columns]
            return _row("  ", style, " ".join(cells), style, width)
        row = y - 1 + self.scroll_offset.y
        style = self.rich_style
        if row >= len(self._lines):
            return Strip.blank(width, style)
        line = self._lines[row]
        mark = style
        if color := self._colors.get(line.id):
            mark = style + Style(color=color)
        if row == self._cursor:
            cursor = "request-table--cursor" if self.has_focus else "request-table--cursor-blurred"
            style = style + self.get_component_rich_style(cursor, partial=True)
        cells = [_aligned(column, column.text(line, column.width)) for column in columns]
        return _row("■ " if color else "  ", mark, " ".join(cells), style, width)


def _aligned(column: _Column, text: str) -> str:
    if cell_len(text) > column.width:
        text = "…"
    gap = " " * (column.width - cell_len(text))
    return text + gap if column.title in _LEFT_ALIGNED else gap + text


def _row(mark: str, mark_style: Style, text: str, style: Style, width: int) -> Strip:
    return Strip([Segment(mark, mark_style), Segment(text, style)]).adjust_cell_length(width, style)


if __name__ == "__main__":
    from widgets.demo import Demo

    table = RequestTable()

    def tick(time: float) -> None:
        """Let the requests grow."""
        table.set_requests(
            [
                RequestLine(f"{n:04x}", "decode", 100 * n, int(time * 30), 1024, time, 0.08, 0.031, n * 3 + int(time))
                for n in range(1, 40)
            ]
        )

    Demo(table, tick=tick).run()
