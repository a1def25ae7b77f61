"""A bar for a fraction, readable by its shape."""

from __future__ import annotations

import math

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from widgets import units
from widgets.text import elide, one_line

_EIGHTHS = " ▏▎▍▌▋▊▉"
_SMALLEST_BAR = 4


def bar(fraction: float | None, width: int) -> str:
    """A bar of `width` cells in eighths of a cell: `██▌···`; dashes when the fraction is unknown."""
    if fraction is None or not math.isfinite(fraction):
        return "╌" * width
    eighths = round(min(max(fraction, 0.0), 1.0) * width * 8)
    if eighths == 0 and fraction > 0:
        eighths = 1
    full, rest = divmod(eighths, 8)
    return ("█" * full + (_EIGHTHS[rest] if rest else "")).ljust(width, "·")


class Meter(Widget):
    """`label ████▌····  text` on one line; the bar goes first when there is no room, the text last."""

    DEFAULT_CSS = """
    Meter { height: 1; width: 1fr; }
    """

    def __init__(self, label: str, *, label_width: int = 0, id: str | None = None, classes: str | None = None) -> None:
        """`label_width` in cells lines up the bars of meters that stand under each other."""
        super().__init__(id=id, classes=classes)
        self.label = label
        self._label_width = label_width
        self._fraction: float | None = None
        self._text = ""
        self._note = ""

    def set(self, fraction: float | None, text: str = "", note: str = "") -> None:
        """Show a fraction of 0 to 1 (`None`: unknown, no bar) and the text beside it (`n/a` or percent when empty)."""
        shown = (fraction, one_line(text), one_line(note))
        if shown != (self._fraction, self._text, self._note):
            self._fraction, self._text, self._note = shown
            self.refresh()

    def render(self) -> Content:
        """The line that fits: text before label, then bar, then note."""
        width = self.size.width
        text = self._text or units.percent(self._fraction)
        room = width - cell_len(text)
        if room < 0:
            return Content("…"[:width])
        label = one_line(self.label).ljust(self._label_width)
        label = elide(label, room - 1) if room >= 3 else ""
        gap = " " if label else ""
        room -= cell_len(label + gap)
        note = f"  {self._note}" if self._note and cell_len(self._note) + 3 + _SMALLEST_BAR <= room else ""
        room -= cell_len(note) + 1
        drawn = bar(self._fraction, room) + " " if room >= _SMALLEST_BAR else ""
        return Content.assemble(
            (label, "$foreground-muted"), gap, (drawn, "$primary"), (text, "bold"), (note, "$foreground-muted")
        )


if __name__ == "__main__":
    from widgets.demo import Demo

    meter = Meter("memory")
    meter.set(0.65, "91 / 141 GB")
    Demo(meter).run()
