"""A line plot in braille dots on Textual's line API."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from widgets import marks, palette, units
from widgets.braille import Canvas, round_up, spans
from widgets.text import one_line

_SMALLEST_WITH_AXIS = (24, 3)  # cells
_SMALLEST_WITH_LEGEND = (24, 5)
_SMALLEST_WITH_TIME = (24, 6)
_FAR_THRESHOLD = 2.0  # times the largest value; a threshold farther away would flatten the lines
_LEGEND_MARKS = ("─", "╌", "┄")

_Cell = tuple[str, str]  # a character and its colour


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: a value a step of time, oldest first, `None` where unknown; `color` in CSS hex."""

    name: str
    values: Sequence[float | None]
    color: str


class LinePlot(Widget):
    """Lines over time from zero up, with a y axis in units; down to a sparkline at small sizes."""

    DEFAULT_CSS = """
    LinePlot { width: 1fr; height: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._series: tuple[Series, ...] = ()
        self._unit: Callable[[float | None], str] = units.count
        self._thresholds: tuple[tuple[float, str], ...] = ()
        self._events: tuple[marks.Event, ...] = ()
        self._ends: tuple[str, str] | None = None
        self._strips: list[Strip] = []
        self._drawn: tuple[int, int] | None = None

    def set_series(
        self,
        series: Sequence[Series],
        *,
        unit: Callable[[float | None], str] = units.count,
        thresholds: Sequence[tuple[float, str]] = (),
        events: Sequence[marks.Event] = (),
        ends: tuple[str, str] | None = None,
    ) -> None:
        """Show these lines.

        `unit` formats y labels; `thresholds` are (value, label), drawn as horizontal lines; `events` are drawn as thin
        vertical marks, each with the glyph of its kind; `ends` are the words at the two ends of the time axis (none is
        drawn without them).
        """
        self._series = tuple(series)
        self._unit = unit
        self._thresholds = tuple((value, one_line(label)) for value, label in thresholds)
        self._events = tuple(event for event in events if 0 <= event.at < self._length())
        self._ends = ends
        self._drawn = None
        self.refresh()

    def notify_style_update(self) -> None:
        """Draw again in the new theme's colours."""
        self._drawn = None
        super().notify_style_update()

    def render_line(self, y: int) -> Strip:
        """One row of the picture, which is drawn whole when something changed."""
        if self._drawn != tuple(self.size):
            self._strips = self._draw(*self.size)
            self._drawn = (self.size.width, self.size.height)
        return self._strips[y] if y < len(self._strips) else Strip.blank(self.size.width, self.rich_style)

    def _draw(self, width: int, height: int) -> list[Strip]:
        if not width or not height:
            return []
        top = self._top()
        legend = self._legend(width) if _fits(_SMALLEST_WITH_LEGEND, width, height) else []
        ends = self._ends if _fits(_SMALLEST_WITH_TIME, width, height) else None
        rows = height - bool(legend) - bool(ends)
        labels = self._labels(top, rows) if _fits(_SMALLEST_WITH_AXIS, width, height) else {}
        axis = max((cell_len(label) for label in labels.values()), default=-1) + 1
        plot = self._plot(width - axis, rows, top)
        picture = [legend] if legend else []
        for row, cells in enumerate(plot):
            label = [(labels.get(row, "").rjust(axis - 1) + "│", palette.MUTED)] if labels else []
            picture.append([*label, *cells])
        if ends:
            picture.append(self._time_axis(axis, width, *ends))
        base = self.rich_style
        styles = {color: base + Style(color=color or None) for cells in picture for _, color in cells}
        return [_strip(cells, styles).adjust_cell_length(width, base) for cells in picture]

    def _length(self) -> int:
        return max((len(line.values) for line in self._series), default=0)

    def _top(self) -> float:
        """The value at the top of the scale."""
        known = [v for line in self._series for v in line.values if v is not None and math.isfinite(v)]
        largest = max(known, default=0.0)
        near = [value for value, _ in self._thresholds if largest <= 0 or value <= largest * _FAR_THRESHOLD]
        return round_up(max([largest, *near]))

    def _labels(self, top: float, rows: int) -> dict[int, str]:
        """The y labels by row: top and zero, and the middle where there's room."""
        labels = {0: self._unit(top), rows - 1: self._unit(0)}
        if rows >= 5 and rows % 2:
            labels[rows // 2] = self._unit(top / 2)
        return labels

    def _plot(self, columns: int, rows: int, top: float) -> list[list[_Cell]]:
        canvas = Canvas(columns, rows)
        for index, line in enumerate(self._series):
            finite = [value if value is not None and math.isfinite(value) else None for value in line.values]
            dash = index % 3 + 1 if self.app.no_color else 1
            canvas.draw(spans(finite, columns * 2), top, index, dash)
        cells = [
            [
                (chr(0x2800 | dots), self._series[line].color) if dots else (" ", "")
                for dots, line in zip(dots_row, line_row, strict=True)
            ]
            for dots_row, line_row in zip(canvas.dots, canvas.line, strict=True)
        ]
        labels = self._mark_thresholds(cells, columns, rows, top)
        self._mark_events(cells, columns, taken=labels)
        return cells

    def _mark_thresholds(self, cells: list[list[_Cell]], columns: int, rows: int, top: float) -> set[int]:
        """The labels stand at the left, so that what is newest stays in view. The columns one takes at the top."""
        taken: set[int] = set()
        for value, label in self._thresholds:
            if value > top:
                continue
            y = min(rows - 1, int((1 - value / top) * rows))
            for x in range(columns):
                if cells[y][x][0] == " ":
                    cells[y][x] = ("┈", palette.BAD)
            if rows >= _SMALLEST_WITH_LEGEND[1]:
                _write(cells[y], 1, label, palette.BAD)
                taken.update(range(1 + cell_len(label)) if y == 0 else ())
        return taken

    def _mark_events(self, cells: list[list[_Cell]], columns: int, taken: set[int]) -> None:
        """The latest first: its label stands at the right of its glyph, else at the left, else nowhere."""
        last = max(1, self._length() - 1)
        with_labels = len(cells) >= _SMALLEST_WITH_AXIS[1]
        places = [(min(columns - 1, int(event.at / last * columns)), event) for event in self._events]
        taken = taken | {x for x, _ in places}
        for x, event in sorted(places, key=lambda place: -place[1].at):
            for row in cells:
                if row[x][0] == " ":
                    row[x] = (marks.LINE, palette.MUTED)
            cells[0][x] = (marks.GLYPHS[event.kind], marks.COLORS[event.kind])
            label = one_line(event.label)
            for start in (x + 1, x - cell_len(label)) if with_labels else ():
                place = range(start, start + cell_len(label))
                if start >= 0 and place.stop <= columns and taken.isdisjoint(place):
                    _write(cells[0], start, label, palette.MUTED)
                    taken.update(place)
                    break

    def _legend(self, width: int) -> list[_Cell]:
        """The names of the lines and the kinds of events, as many as fit; nothing for a line without a name."""
        cells: list[_Cell] = []
        for index, line in enumerate(self._series):
            mark = _LEGEND_MARKS[index % 3] if self.app.no_color else "━"
            text = f"{mark * 2} {one_line(line.name)}  "
            if line.name and sum(cell_len(cell) for cell, _ in cells) + cell_len(text) <= width:
                cells.append((text, line.color))
        for text, color in marks.legend(self._events):
            if sum(cell_len(cell) for cell, _ in cells) + cell_len(text) <= width:
                cells.append((f"{text} ", color))
        return cells

    def _time_axis(self, axis: int, width: int, start: str, end: str) -> list[_Cell]:
        room = width - axis - cell_len(start)
        return [(" " * axis + start + end.rjust(room), palette.MUTED)]


def _fits(smallest: tuple[int, int], width: int, height: int) -> bool:
    return width >= smallest[0] and height >= smallest[1]


def _strip(cells: list[_Cell], styles: dict[str, Style]) -> Strip:
    """Cells as segments, one a run of equal colour."""
    runs = groupby(cells, key=itemgetter(1))
    return Strip([Segment("".join(text for text, _ in run), styles[color]) for color, run in runs])


def _write(row: list[_Cell], start: int, text: str, color: str) -> None:
    """Put text into a row of one-cell characters, if it fits whole."""
    if 0 <= start <= len(row) - len(text) and len(text) == cell_len(text):
        row[start : start + len(text)] = [(character, color) for character in text]


def _demo() -> None:
    from widgets.demo import Demo

    plot = LinePlot()

    def tick(time: float) -> None:
        values = [0.03 + 0.01 * math.sin(time + n / 20) + (0.1 if n % 97 == 3 else 0) for n in range(300)]
        lines = [
            Series("TTL p50", [value * 0.7 for value in values], palette.series(0)),
            Series("TTL p99", [None if 100 < n < 130 else value for n, value in enumerate(values)], palette.series(1)),
        ]
        events = [marks.Event(90, "short steps"), marks.Event(200, "balanced", "rebuild")]
        targets = [(0.1, "target 100 ms")]
        plot.set_series(lines, unit=units.milliseconds, thresholds=targets, events=events, ends=("-5 min", "now"))

    Demo(plot, tick=tick).run()


if __name__ == "__main__":
    _demo()
