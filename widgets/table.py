"""A table of rows of any kind: a cursor that stays on its row, columns that leave where there is no room."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, replace
from typing import Generic, TypeVar

from rich.cells import cell_len, set_cell_size
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from widgets.text import one_line

Row = TypeVar("Row")

_LEAD = 2
"""Cells in front of a row, for its mark."""


@dataclass(frozen=True, slots=True)
class Column(Generic[Row]):
    """One column: `text` is given the row and the cells there are.

    It is `width` cells wide, up to `widest` where there is room to spare. Those with the lowest `keep` are left out
    first in a narrow table; text stands `left`, numbers right.
    """

    title: str
    width: int
    keep: int
    text: Callable[[Row, int], str]
    left: bool = False
    widest: int = 0


class Table(ScrollView, Generic[Row], can_focus=True):
    """Rows under a header; only those in view are drawn, and no number is cut.

    Updates keep the cursor on its row, known by `key`, and that row where it is on the screen.
    """

    BINDINGS = [
        Binding("up,k", "move(-1)", "Up", id="table.up", show=False),
        Binding("down,j", "move(1)", "Down", id="table.down", show=False),
        Binding("pageup", "page(-1)", "Page up", id="table.page-up", show=False),
        Binding("pagedown", "page(1)", "Page down", id="table.page-down", show=False),
        Binding("home", "move(-1000000)", "First", id="table.first", show=False),
        Binding("end", "move(1000000)", "Last", id="table.last", show=False),
    ]
    COMPONENT_CLASSES = {"table--header", "table--cursor", "table--cursor-blurred", "table--muted"}
    DEFAULT_CSS = """
    Table { width: 1fr; height: 1fr; }
    Table > .table--header { color: $foreground-muted; text-style: bold; }
    Table > .table--muted { color: $foreground-muted; }
    Table > .table--cursor {
        background: $block-cursor-background; color: $block-cursor-foreground; text-style: bold;
    }
    Table > .table--cursor-blurred { text-style: underline; }
    """

    class Selected(Message):
        """The cursor is on another row, or its row has changed."""

        def __init__(self, table: Widget, row: object) -> None:
            super().__init__()
            self.table = table
            self.row = row

        @property
        def control(self) -> Widget:
            """The sending table."""
            return self.table

    def __init__(
        self,
        columns: Sequence[Column[Row]],
        key: Callable[[Row], Hashable],
        *,
        mark: Callable[[Row], tuple[str, str]] = lambda row: ("", ""),
        empty: str = "",
        id: str | None = None,
        classes: str | None = None,
    ) -> None:
        """`mark` gives the character in front of a row and its colour; `empty` is said where there are no rows."""
        super().__init__(id=id, classes=classes)
        self._all_columns = tuple(columns)
        self._key, self._mark, self._empty = key, mark, empty
        self._fitted: tuple[int, list[Column[Row]]] = (-1, [])
        self._rows: Sequence[Row] = ()
        self._cursor = 0
        self._sorted_by = ""

    @property
    def selected_row(self) -> Row | None:
        """The row under the cursor."""
        return self._rows[self._cursor] if self._rows else None

    @property
    def rows(self) -> Sequence[Row]:
        """What is shown, in order."""
        return self._rows

    def set_columns(self, columns: Sequence[Column[Row]]) -> None:
        """Show other columns."""
        self._all_columns, self._fitted = tuple(columns), (-1, [])
        self.refresh()

    def set_rows(self, rows: Sequence[Row], sorted_by: str = "", empty: str | None = None) -> None:
        """Show these rows, in this order; the column `sorted_by` is marked."""
        before = self.selected_row
        if empty is not None:
            self._empty = empty
        at = -1
        if before is not None:
            wanted = self._key(before)
            at = next((index for index, row in enumerate(rows) if self._key(row) == wanted), -1)
        top = self.scroll_offset.y
        moved = at - self._cursor if at >= 0 else 0
        in_view = top <= self._cursor < top + self.size.height - 1
        self._rows, self._sorted_by = rows, sorted_by
        self.virtual_size = Size(0, len(rows) + 1)
        self._cursor = max(0, min(self._cursor + moved, len(rows) - 1))
        if moved and in_view:
            self.scroll_to(y=top + moved, animate=False, force=True, immediate=True)
        self.tell_selected(before)
        self.refresh()

    def tell_selected(self, before: Row | None) -> None:
        """Post a message if the row under the cursor is not what it was before."""
        if self.selected_row != before:
            self.post_message(self.Selected(self, self.selected_row))

    def select(self, at: int, center: bool = False) -> None:
        """Put the cursor on the row at this index, or the nearest, and bring it into view, or to its middle."""
        before, self._cursor = self.selected_row, max(0, min(at, len(self._rows) - 1))
        rows, top = max(1, self.size.height - 1), self.scroll_offset.y
        target = max(0, self._cursor - rows // 2) if center else min(max(top, self._cursor - rows + 1), self._cursor)
        if target != top:
            self.scroll_to(y=target, animate=False, force=True)
        self.tell_selected(before)
        self.refresh()

    @property
    def cursor(self) -> int:
        """The index of the row under the cursor."""
        return self._cursor

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """A table that is in view as a whole leaves the page keys to the screen."""
        return action != "page" or len(self._rows) >= self.size.height

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows (negative: up), as far as there are any."""
        self.select(self._cursor + rows)

    def action_page(self, pages: int) -> None:
        """Move the cursor by a screenful."""
        self.action_move(pages * max(1, self.size.height - 2))

    def on_resize(self) -> None:
        """The cursor stays in view."""
        self.call_after_refresh(lambda: self.select(self._cursor))

    def on_click(self, event: events.Click) -> None:
        """Move the cursor to the row under the mouse."""
        row = event.y - 1 + self.scroll_offset.y
        if event.y > 0 and row < len(self._rows):
            self.action_move(row - self._cursor)

    def _columns(self) -> list[Column[Row]]:
        width = self.scrollable_content_region.width
        if self._fitted[0] != width:
            self._fitted = (width, _fit(self._all_columns, width - _LEAD))
        return self._fitted[1]

    def render_line(self, y: int) -> Strip:
        """The header, then a row a line."""
        columns, width, style = self._columns(), self.size.width, self.rich_style
        muted = self.get_component_rich_style("table--muted", partial=True)
        if y == 0:
            header = style + self.get_component_rich_style("table--header", partial=True)
            titles = [
                _aligned(column, column.title + (" ▾" if column.title == self._sorted_by else "")) for column in columns
            ]
            return Strip([Segment(" " * _LEAD + " ".join(titles), header)]).adjust_cell_length(width, style)
        index = y - 1 + self.scroll_offset.y
        if index >= len(self._rows):
            text = " " * _LEAD + self._empty if y == 1 and not self._rows else ""
            return Strip([Segment(text, style + muted)]).adjust_cell_length(width, style)
        row = self._rows[index]
        sign, color = self._mark(row)
        lead = style + Style(color=color) if color else style
        if index == self._cursor:
            cursor = "table--cursor" if self.has_focus else "table--cursor-blurred"
            style = style + self.get_component_rich_style(cursor, partial=True)
        cells = [_aligned(column, one_line(column.text(row, column.width))) for column in columns]
        return Strip([Segment(sign.ljust(_LEAD), lead), Segment(" ".join(cells), style)]).adjust_cell_length(
            width, style
        )


def beginning(text: str, width: int) -> str:
    """The beginning of a name. Its digits are no number: where it is cut doesn't change what it says."""
    text = one_line(text)
    return text if cell_len(text) <= width else set_cell_size(text, max(0, width - 1)).rstrip() + "…"


def _fit(columns: Sequence[Column[Row]], room: int) -> list[Column[Row]]:
    """The columns that fit; room to spare goes to text, the first to be left out first, then to numbers."""
    kept = []
    for column in sorted(columns, key=lambda column: -column.keep):
        if column.width + 1 > room:
            break
        room -= column.width + 1
        kept.append(column.title)
    widths: dict[str, int] = {}
    for column in sorted(columns, key=lambda column: (not column.left, column.keep)):
        if column.title in kept:
            more = min(room, max(0, column.widest - column.width))
            room -= more
            widths[column.title] = column.width + more
    return [replace(column, width=widths[column.title]) for column in columns if column.title in widths]


def _aligned(column: Column[Row], text: str) -> str:
    if cell_len(text) > column.width:
        text = "…" if not column.left else beginning(text, column.width)
    gap = " " * (column.width - cell_len(text))
    return text + gap if column.left else gap + text


if __name__ == "__main__":
    from widgets import units
    from widgets.demo import Demo

    table: Table[tuple[str, float]] = Table(
        [
            Column("name", 8, 9, lambda row, width: beginning(row[0], width), left=True, widest=20),
            Column("latency", 9, 8, lambda row, width: units.milliseconds(row[1], width)),
        ],
        key=lambda row: row[0],
    )
    table.set_rows([(f"row {n}", n * 0.01) for n in range(100)], sorted_by="latency")
    Demo(table).run()
