"""The table of live requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

from rich.cells import cell_len, set_cell_size
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


class RequestLine(NamedTuple):
    """One row. Tokens are counts, `pages` KV pages, `cost` estimated USD, all else seconds; `None` is unknown."""

    id: str
    state: str
    prompt: int
    output: int
    max_tokens: int | None
    age: float
    ttft: float | None
    ttl_p99: float | None
    pages: int | None
    tier: str = ""
    key: str = ""
    lane: str = ""
    waited: float | None = None
    cost: float | None = None


class Column(NamedTuple):
    """One column: `width` in cells, up to `widest` where there is room to spare.

    Those with the lowest `keep` are left out first in a narrow table; text stands `left`, numbers right.
    """

    title: str
    width: int
    keep: int
    text: Callable[[RequestLine, int], str]
    left: bool = False
    widest: int = 0


def short_id(request_id: str) -> str:
    """The part that tells requests apart: without the kind of endpoint in front."""
    kind, mark, rest = request_id.partition("-")
    return rest if mark and kind.isalpha() and rest else request_id


def _beginning(text: str, width: int) -> str:
    """The beginning of a name. Its digits are no number: where it is cut doesn't change what it says."""
    text = one_line(text)
    return text if cell_len(text) <= width else set_cell_size(text, width - 1).rstrip() + "…"


def _progress(line: RequestLine, width: int) -> str:
    done = units.count(line.output, width)
    if line.max_tokens is None:
        return done
    both = f"{done}/{units.count(line.max_tokens)}"
    return both if len(both) <= width else f"{units.count(line.output, 5)}/{units.count(line.max_tokens, 5)}"


def _name(text: str, width: int) -> str:
    return _beginning(text, width) if text else units.NOT_AVAILABLE


BRIEF = (
    Column("request", _ID_WIDTH, 9, lambda line, width: _beginning(line.id, width), left=True),
    Column("state", 7, 8, lambda line, width: elide(one_line(line.state), width), left=True),
    Column("prompt", 7, 4, lambda line, width: units.count(line.prompt, width)),
    Column("output", 11, 7, _progress),
    Column("age", 10, 3, lambda line, width: units.duration(line.age, width)),
    Column("TTFT", 8, 5, lambda line, width: units.milliseconds(line.ttft, width)),
    Column("TTL p99", 8, 6, lambda line, width: units.milliseconds(line.ttl_p99, width)),
    Column("pages", 6, 6, lambda line, width: units.count(line.pages, width)),
)
"""What the engine does for a request."""

FULL = (
    Column("request", _ID_WIDTH, 13, lambda line, width: _beginning(short_id(line.id), width), True, widest=36),
    Column("tier", 11, 11, lambda line, width: _name(line.tier, width), True, widest=16),
    Column("key", 8, 7, lambda line, width: _name(line.key, width), True, widest=24),
    Column("lane", 10, 1, lambda line, width: _name(line.lane, width), True),
    Column("state", 7, 12, lambda line, width: elide(one_line(line.state), width), True),
    Column("age", 7, 4, lambda line, width: units.duration(line.age, width)),
    Column("waited", 7, 9, lambda line, width: units.milliseconds(line.waited, width)),
    Column("prompt", 6, 2, lambda line, width: units.count(line.prompt, width)),
    Column("generated", 9, 10, _progress, widest=13),
    Column("TTFT", 7, 5, lambda line, width: units.milliseconds(line.ttft, width), widest=8),
    Column("TTL p99", 7, 8, lambda line, width: units.milliseconds(line.ttl_p99, width), widest=8),
    Column("pages", 5, 6, lambda line, width: units.count(line.pages, width), widest=7),
    Column("est. cost", 9, 3, lambda line, width: units.usd(line.cost, width)),
)
"""What the gateway knows of it too."""


class RequestTable(ScrollView, can_focus=True):
    """One row a request; updates keep the cursor on its request, and that request where it is on the screen.

    Columns that don't fit are left out, the least important first; no number is cut. Only the rows in view are drawn.
    Rows can be marked; a mark lasts as long as its row is shown.
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

    def __init__(self, columns: Sequence[Column] = BRIEF, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._all_columns = tuple(columns)
        self._fitted: tuple[int, list[Column]] = (-1, [])
        self._lines: tuple[RequestLine, ...] = ()
        self._cursor = 0
        self._selected: str | None = None
        self._slid = False
        self._marked: frozenset[str] = frozenset()
        self._colors: dict[str, str] = {}

    @property
    def selected(self) -> str | None:
        """The id of the request under the cursor."""
        return self._selected

    @property
    def slid(self) -> bool:
        """Whether the cursor came to its request by itself, because the one it was on is no longer shown."""
        return self._slid

    @property
    def marked(self) -> tuple[str, ...]:
        """The ids of the marked requests, in the order of the rows."""
        return tuple(line.id for line in self._lines if line.id in self._marked)

    def toggle_mark(self) -> None:
        """Mark the request under the cursor, or take its mark away, and go on to the next row."""
        if self._selected is not None:
            self._marked ^= {self._selected}
            self.action_move(1)

    def toggle_marks(self) -> None:
        """Mark every request shown; if all are, take the marks away."""
        shown = frozenset(line.id for line in self._lines)
        self._marked = frozenset() if self._marked == shown else shown
        self.refresh()

    def clear_marks(self) -> None:
        """Take all marks away."""
        self._marked = frozenset()
        self.refresh()

    def set_requests(self, lines: Sequence[RequestLine], colors: dict[str, str] | None = None) -> None:
        """Show these requests, in this order; `colors` (id to CSS hex) marks each with its colour in the page map."""
        shown, hues = tuple(lines), colors or {}
        if shown == self._lines and hues == self._colors:
            return
        self._lines, self._colors = shown, hues
        ids = [line.id for line in shown]
        self._marked &= frozenset(ids)
        moved = 0
        if self._selected in ids:
            moved = ids.index(self._selected) - self._cursor
        elif self._selected is not None:
            self._slid = True
        top = self.scroll_offset.y
        in_view = top <= self._cursor < top + self.size.height - 1
        self.virtual_size = Size(0, len(shown) + 1)
        self._select(self._cursor + moved, follow=False)
        if moved and in_view:
            self.scroll_to(y=top + moved, animate=False, force=True, immediate=True)
        self.refresh()

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows (negative: up), as far as there are any."""
        self._slid = False
        self._select(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(pages * max(1, self.size.height - 2))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row under the mouse."""
        row = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and row < len(self._lines):
            self.action_move(row - self._cursor)

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

    def _columns(self) -> list[Column]:
        """The columns for the width there is; worked out once for each width."""
        width = self.scrollable_content_region.width
        if self._fitted[0] != width:
            self._fitted = (width, self._fit(width - 2))
        return self._fitted[1]

    def _fit(self, room: int) -> list[Column]:
        """The columns that fit; room to spare goes to the names, the first to be left out first, then to numbers."""
        kept = []
        for column in sorted(self._all_columns, key=lambda column: -column.keep):
            if column.width + 1 > room:
                break
            room -= column.width + 1
            kept.append(column.title)
        widths: dict[str, int] = {}
        for column in sorted(self._all_columns, key=lambda column: (not column.left, column.keep)):
            if column.title in kept:
                more = min(room, max(0, column.widest - column.width))
                room -= more
                widths[column.title] = column.width + more
        return [column._replace(width=widths[column.title]) for column in self._all_columns if column.title in widths]

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
        lead = "✓ " if line.id in self._marked else "■ " if color else "  "
        return _row(lead, mark, " ".join(cells), style, width)


def _aligned(column: Column, text: str) -> str:
    if cell_len(text) > column.width:
        text = "…"
    gap = " " * (column.width - cell_len(text))
    return text + gap if column.left else gap + text


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
