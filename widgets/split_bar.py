"""A whole split into its parts: one bar, and under it a line for each part."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from widgets.text import elide, one_line

_COLUMNS = 3
"""Most columns of the legend; as many as have room for their names and numbers."""
_GAP = 3


@dataclass(frozen=True, slots=True)
class SplitPart:
    """One part: `value` in the unit of the whole, never negative; `texts` are its numbers, as they are to be read.

    `letter` stands for it where there are no colours.
    """

    name: str
    value: float
    color: str
    letter: str
    texts: tuple[str, ...] = ()


def split_cells(values: Sequence[float], width: int) -> list[int]:
    """Cells for each value, `width` together: what is there at all has one, the rest by largest remainder."""
    total = sum(values)
    if total <= 0 or width <= 0:
        return [0] * len(values)
    exact = [value / total * width for value in values]
    cells = [max(int(share), 1 if share > 0 else 0) for share in exact]
    order = sorted(range(len(values)), key=lambda at: exact[at] - cells[at])
    while sum(cells) > width and any(count > 1 for count in cells):
        cells[next(at for at in order if cells[at] > 1)] -= 1
        order.sort(key=lambda at: exact[at] - cells[at])
    while sum(cells) < width:
        cells[order[-1]] += 1
        order.sort(key=lambda at: exact[at] - cells[at])
    return cells


class SplitBar(Widget):
    """The bar, then `■ name  number  number` in as many columns as there is room for."""

    DEFAULT_CSS = """
    SplitBar { width: 1fr; height: auto; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._parts: tuple[SplitPart, ...] = ()
        self._empty = ""

    def set_parts(self, parts: Sequence[SplitPart], empty: str = "") -> None:
        """Show these parts, in this order; `empty` is said in the bar's place where all of them are zero."""
        shown = (tuple(parts), one_line(empty))
        if shown != (self._parts, self._empty):
            self._parts, self._empty = shown
            self.refresh(layout=True)

    def _columns(self, width: int) -> int:
        need = 2 + self._names() + sum(2 + each for each in self._widths())
        return max(1, min((width + _GAP) // (need + _GAP), _COLUMNS, len(self._parts)))

    def _names(self) -> int:
        return max((cell_len(one_line(part.name)) for part in self._parts), default=0)

    def _widths(self) -> list[int]:
        """Cells of each number, over all parts."""
        texts = max((len(part.texts) for part in self._parts), default=0)
        return [
            max(cell_len(part.texts[at]) if at < len(part.texts) else 0 for part in self._parts) for at in range(texts)
        ]

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """The bar and its legend."""
        return 1 + -(-len(self._parts) // self._columns(width))

    def render(self) -> Content:
        """The lines for the width there is."""
        width = self.content_size.width
        lines = [self._bar(width)]
        columns = self._columns(width)
        rows = -(-len(self._parts) // columns)
        cell = (width - _GAP * (columns - 1)) // columns
        names, widths = self._names(), self._widths()
        for row in range(rows):
            shown = self._parts[row::rows]
            pieces = [self._legend(part, cell, names, widths) for part in shown]
            lines.append(Content(" " * _GAP).join(pieces))
        return Content("\n").join(lines)

    def _bar(self, width: int) -> Content:
        cells = split_cells([part.value for part in self._parts], width)
        if not any(cells):
            return Content.styled(elide(self._empty, width), "$foreground-muted")
        plain = self.app.no_color
        return Content.assemble(
            *(
                ((part.letter if plain else "█") * count, part.color)
                for part, count in zip(self._parts, cells, strict=True)
            )
        )

    def _legend(self, part: SplitPart, width: int, names: int, widths: Sequence[int]) -> Content:
        mark = part.letter if self.app.no_color else "■"
        numbers = "".join(f"  {text.rjust(cells)}" for text, cells in zip(part.texts, widths, strict=False))
        room = max(0, width - 2 - cell_len(numbers))
        name = elide(one_line(part.name), min(room, names))
        used = 2 + max(cell_len(name), min(room, names)) + cell_len(numbers)
        return Content.assemble(
            (mark, part.color),
            (f" {name.ljust(min(room, names))}", "$foreground-muted"),
            numbers,
            " " * max(0, width - used),
        )


if __name__ == "__main__":
    from widgets import palette
    from widgets.demo import Demo

    split = SplitBar()
    split.set_parts(
        [
            SplitPart(name, value, palette.series(at), name[0], (f"{value} s",))
            for at, (name, value) in enumerate({"prefill": 12, "decode": 55, "memory": 9, "idle": 30}.items())
        ]
    )
    Demo(split).run()
