"""One small bar for each core of a processor."""

from __future__ import annotations

from collections.abc import Sequence

from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from widgets import units
from widgets.meter import bar

_EIGHTHS = "▁▂▃▄▅▆▇█"
_CELL = 22
"""Cells of a core with its number, bar and share: `12 ██████▌···  93 %`."""
_MOST_WIDE = 16
"""Cores up to which each has a bar of its own with its number; more are one column of a skyline each."""


def skyline(shares: Sequence[float]) -> str:
    """A character a core, the taller the busier."""
    return "".join(_EIGHTHS[min(7, int(min(max(share, 0.0), 1.0) * 8))] for share in shares)


class CoreBars(Widget):
    """Few cores as bars with their share, many as a skyline with the number of the first core of each row."""

    DEFAULT_CSS = """
    CoreBars { width: 1fr; height: auto; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._shares: tuple[float, ...] = ()

    def set_shares(self, shares: Sequence[float]) -> None:
        """Show the busy share (0 to 1) of each core."""
        shown = tuple(shares)
        if shown != self._shares:
            taller = len(shown) != len(self._shares)
            self._shares = shown
            self.refresh(layout=taller)

    def _in_row(self, width: int) -> int:
        return max(1, width // _CELL) if len(self._shares) <= _MOST_WIDE else max(1, width - 5)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """As many rows as the cores take."""
        return -(-len(self._shares) // self._in_row(width))

    def render(self) -> Content:
        """The rows for the width there is."""
        in_row = self._in_row(self.content_size.width)
        rows = [range(at, min(at + in_row, len(self._shares))) for at in range(0, len(self._shares), in_row)]
        return Content("\n").join(self._row(row) for row in rows)

    def _row(self, cores: range) -> Content:
        if len(self._shares) > _MOST_WIDE:
            text = skyline([self._shares[core] for core in cores])
            return Content.assemble((f"{cores[0]:>4} ", "$foreground-muted"), (text, "$primary"))
        return Content("  ").join(
            Content.assemble(
                (f"{core:>3} ", "$foreground-muted"),
                (bar(self._shares[core], 9), "$primary"),
                f" {units.percent(self._shares[core]):>5}",
            )
            for core in cores
        )


if __name__ == "__main__":
    from widgets.demo import Demo

    few, many = CoreBars(), CoreBars()
    few.set_shares([0.93, 0.5, 0.1, 0.0])
    many.set_shares([at % 13 / 12 for at in range(192)])
    Demo(few, many).run()
