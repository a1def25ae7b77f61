"""One number with its name, a note and a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from widgets.sparkline import sparkline
from widgets.text import elide, one_line

StatState = Literal["normal", "warn", "bad", "unknown"]

_STYLES = {"normal": "bold", "warn": "bold $text-warning", "bad": "bold $text-error", "unknown": "$foreground-muted"}
_MARKS = {"normal": "", "warn": "▲ ", "bad": "✖ ", "unknown": ""}
_SMALLEST_TREND = 4


class Stat(Widget):
    """`label  value  note  sparkline` on one line, the least important left out first when narrow."""

    DEFAULT_CSS = """
    Stat { height: 1; width: 1fr; }
    """

    def __init__(self, label: str, *, label_width: int = 0, id: str | None = None, classes: str | None = None) -> None:
        """`label_width` in cells lines up the values of stats that stand under each other."""
        super().__init__(id=id, classes=classes)
        self.label = label
        self._label_width = label_width
        self._value = "n/a"
        self._note = ""
        self._state: StatState = "unknown"
        self._trend: tuple[float | None, ...] = ()

    def set(self, value: str, note: str = "", state: StatState = "normal", trend: Sequence[float | None] = ()) -> None:
        """Show a formatted value (never markup). `trend` is the sparkline's values, oldest first."""
        shown = (one_line(value), one_line(note), state, tuple(trend))
        if shown != (self._value, self._note, self._state, self._trend):
            self._value, self._note, self._state, self._trend = shown
            self.refresh()

    def render(self) -> Content:
        """The line that fits: value before label, then note, then sparkline."""
        width = self.size.width
        value = _MARKS[self._state] + self._value
        room = width - cell_len(value)
        if room < 0:
            return Content("…"[:width])
        label = one_line(self.label).ljust(self._label_width)
        label = elide(label, room - 2) if room >= 4 else ""
        gap = "  " if label else ""
        room -= cell_len(label + gap)
        note = f"  {self._note}" if self._note and cell_len(self._note) + 2 <= room else ""
        room -= cell_len(note) + 2
        trend = sparkline(self._trend, room) if self._trend and room >= _SMALLEST_TREND else ""
        return Content.assemble(
            (label, "$foreground-muted"),
            gap,
            (value, _STYLES[self._state]),
            (note, "$foreground-muted"),
            "  " if trend else "",
            (trend, "$primary"),
        )


if __name__ == "__main__":
    from widgets.demo import Demo

    stat = Stat("TTFT")
    stat.set("82 ms", "p99 240 ms", trend=[3, 5, 2, None, 8, 9, 4] * 5)
    Demo(stat).run()
