"""A whole split into its parts on one line, the parts' names on the lines under it."""

from __future__ import annotations

from collections.abc import Sequence

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from widgets.meter import bar
from widgets.split_bar import SplitPart, split_cells
from widgets.text import elide, one_line

_SMALLEST_BAR = 4
_GAP = 2


class SplitLine(Widget):
    """`label ████████  text`, and in the rows under it `■ name number`, the largest parts first.

    The bar goes first when there is no room, the text last; a part is named whole or not at all.
    """

    DEFAULT_CSS = """
    SplitLine { width: 1fr; height: 3; }
    """

    def __init__(self, label: str, *, label_width: int = 0, id: str | None = None, classes: str | None = None) -> None:
        """`label_width` in cells lines up the bar with what stands above."""
        super().__init__(id=id, classes=classes)
        self._label = label.ljust(label_width)
        self._parts: tuple[SplitPart, ...] = ()
        self._text = ""

    def set_parts(self, parts: Sequence[SplitPart], text: str) -> None:
        """Show these parts in this order, and the text beside them; dashes where there are none or all are zero."""
        shown = (tuple(parts), one_line(text))
        if shown != (self._parts, self._text):
            self._parts, self._text = shown
            self.refresh()

    def render(self) -> Content:
        """The lines that fit."""
        width, height = self.size
        room = width - cell_len(self._text)
        if room < 0:
            return Content("…"[:width])
        label = elide(self._label, room - 2) if room >= 4 else ""
        gap = "  " if label else ""
        room -= cell_len(label + gap) + 2
        line = Content.assemble(
            (label, "$foreground-muted"),
            gap,
            *(self._bar(room) if room >= _SMALLEST_BAR else ()),
            (self._text, "bold"),
        )
        return Content("\n").join([line, *self._names(width, height - 1)])

    def _bar(self, width: int) -> list[tuple[str, str]]:
        cells = split_cells([part.value for part in self._parts], width)
        if not any(cells):
            return [(bar(None, width), "$foreground-muted"), ("  ", "")]
        plain = self.app.no_color
        drawn = zip(self._parts, cells, strict=True)
        return [*(((part.letter if plain else "█") * count, part.color) for part, count in drawn), ("  ", "")]

    def _names(self, width: int, rows: int) -> list[Content]:
        """The largest parts, row by row, as many as fit."""
        lines: list[list[tuple[str, str]]] = [[]]
        room = width
        for part in sorted((part for part in self._parts if part.value > 0), key=lambda part: -part.value):
            mark = part.letter if self.app.no_color else "■"
            text = " ".join((mark, one_line(part.name), *part.texts))
            if lines[-1] and cell_len(text) > room:
                lines.append([])
                room = width
            if cell_len(text) > room:
                break
            lines[-1].append((text, part.color))
            room -= cell_len(text) + _GAP
        drawn = [Content(" " * _GAP).join(Content.styled(*named) for named in line) for line in lines[:rows] if line]
        return drawn if rows > 0 else []


if __name__ == "__main__":
    from widgets import palette
    from widgets.demo import Demo

    line = SplitLine("bill")
    amounts = {"prefill": 12.0, "decode": 55.0, "memory": 9.0, "idle": 30.0}
    line.set_parts(
        [
            SplitPart(name, value, palette.series(at), name[0], (f"{value:.0f} s",))
            for at, (name, value) in enumerate(amounts.items())
        ],
        "idle 28 %",
    )
    Demo(line).run()
