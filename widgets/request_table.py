"""The table of live requests."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from rich.segment import Segment
from textual.message import Message
from textual.strip import Strip

from widgets import units
from widgets.table import Column, Table, beginning
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


def short_id(request_id: str) -> str:
    """The part that tells requests apart: without the kind of endpoint in front."""
    kind, mark, rest = request_id.partition("-")
    return rest if mark and kind.isalpha() and rest else request_id


def _progress(line: RequestLine, width: int) -> str:
    done = units.count(line.output, width)
    if line.max_tokens is None:
        return done
    both = f"{done}/{units.count(line.max_tokens)}"
    return both if len(both) <= width else f"{units.count(line.output, 5)}/{units.count(line.max_tokens, 5)}"


def _name(text: str, width: int) -> str:
    return beginning(text, width) if text else units.NOT_AVAILABLE


BRIEF: tuple[Column[RequestLine], ...] = (
    Column("request", _ID_WIDTH, 9, lambda line, width: beginning(line.id, width), left=True),
    Column("state", 7, 8, lambda line, width: elide(one_line(line.state), width), left=True),
    Column("prompt", 7, 4, lambda line, width: units.count(line.prompt, width)),
    Column("output", 11, 7, _progress),
    Column("age", 10, 3, lambda line, width: units.duration(line.age, width)),
    Column("TTFT", 8, 5, lambda line, width: units.milliseconds(line.ttft, width)),
    Column("TTL p99", 8, 6, lambda line, width: units.milliseconds(line.ttl_p99, width)),
    Column("pages", 6, 6, lambda line, width: units.count(line.pages, width)),
)
"""What the engine does for a request."""

FULL: tuple[Column[RequestLine], ...] = (
    Column("request", _ID_WIDTH, 13, lambda line, width: beginning(short_id(line.id), width), True, widest=36),
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


class RequestTable(Table[RequestLine]):
    """One row a request, known by its id. Rows can be marked; a mark lasts as long as its row is shown."""

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

    def __init__(
        self, columns: Sequence[Column[RequestLine]] = BRIEF, *, id: str | None = None, classes: str | None = None
    ) -> None:
        super().__init__(columns, lambda line: line.id, mark=self._sign, id=id, classes=classes)
        self._slid = False
        self._marked: frozenset[str] = frozenset()
        self._colors: dict[str, str] = {}

    @property
    def selected(self) -> str | None:
        """The id of the request under the cursor."""
        return _id(self.selected_row)

    @property
    def slid(self) -> bool:
        """Whether the cursor came to its request by itself, because the one it was on is no longer shown."""
        return self._slid

    @property
    def marked(self) -> tuple[str, ...]:
        """The ids of the marked requests, in the order of the rows."""
        return tuple(line.id for line in self.rows if line.id in self._marked)

    def toggle_mark(self) -> None:
        """Mark the request under the cursor, or take its mark away, and go on to the next row."""
        if self.selected is not None:
            self._marked ^= {self.selected}
            self.action_move(1)

    def toggle_marks(self) -> None:
        """Mark every request shown; if all are, take the marks away."""
        shown = frozenset(line.id for line in self.rows)
        self._marked = frozenset() if self._marked == shown else shown
        self.refresh()

    def clear_marks(self) -> None:
        """Take all marks away."""
        self._marked = frozenset()
        self.refresh()

    def set_requests(self, lines: Sequence[RequestLine], colors: dict[str, str] | None = None) -> None:
        """Show these requests, in this order; `colors` (id to CSS hex) marks each with its colour in the page map."""
        shown, hues = tuple(lines), colors or {}
        if shown == self.rows and hues == self._colors:
            return
        ids = {line.id for line in shown}
        self._slid |= self.selected is not None and self.selected not in ids
        self._marked &= ids
        self._colors = hues
        self.set_rows(shown)

    def action_move(self, rows: int) -> None:
        """Move the cursor by rows (negative: up), as far as there are any."""
        self._slid = False
        super().action_move(rows)

    def tell_selected(self, before: RequestLine | None) -> None:
        """Only another request is told: the figures of a live one change all the time."""
        if self.selected != _id(before):
            self.post_message(self.RequestSelected(self, self.selected))

    def render_line(self, y: int) -> Strip:
        """The header, muted, then one request a row."""
        strip = super().render_line(y)
        return strip if y else Strip([Segment(strip.text, self.get_component_rich_style("table--header"))])

    def _sign(self, line: RequestLine) -> tuple[str, str]:
        color = self._colors.get(line.id, "")
        return "✓" if line.id in self._marked else "■" if color else "", color


def _id(line: RequestLine | None) -> str | None:
    return None if line is None else line.id


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
