"""Where the time of one request went: a bar for each part, under one time axis."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets import palette, units
from widgets.text import elide, one_line

NAME_WIDTH = 10
_TIME_WIDTH = 9
_NOTE_WIDTH = 30
_TOKENS_WIDTH = 13
_SMALLEST_BAR = 12
_TICK_CELLS = 10
"""Least cells from one tick of the axis to the next: most labels take six to eight."""

_COLORS = {
    "received": palette.series(7),
    "validated": palette.series(2),
    "queued": palette.series(3),
    "scheduled": palette.series(4),
    "prefill": palette.series(1),
    "decode": palette.series(0),
    "held": palette.series(5),
}
"""Prefill and decode have the colours they have among the steps."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part, in seconds from the request's arrival; `end` is `None` while it lasts. `note` is plain text."""

    name: str
    start: float
    end: float | None
    tokens: int | None = None
    note: str = ""


class WaterfallView(ScrollView, can_focus=True):
    """One row a part: its name, its bar, how long it took, how many tokens, and a note where there is room.

    A part that lasts ends in `▶`, an instant is a `◆`; `│` within the prefill are the ends of its chunks.
    """

    BINDINGS = [
        Binding("up,k", "scroll_up", "Up", id="waterfall.up", show=False),
        Binding("down,j", "scroll_down", "Down", id="waterfall.down", show=False),
    ]
    COMPONENT_CLASSES = {"waterfall--axis", "waterfall--note"}
    DEFAULT_CSS = """
    WaterfallView { width: 1fr; height: 1fr; }
    WaterfallView > .waterfall--axis { color: $foreground-muted; }
    WaterfallView > .waterfall--note { color: $foreground-muted; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._parts: tuple[Part, ...] = ()
        self._chunks: tuple[float, ...] = ()
        self._now = 0.0
        self._until: float | None = None

    def set_parts(
        self, parts: Sequence[Part], now: float = 0.0, chunks: Sequence[float] = (), until: float | None = None
    ) -> None:
        """Show these parts; those that last are drawn up to `now`, the seconds since the arrival.

        `chunks` are the ends of the steps that computed the prompt. The axis ends at the last end, or at `until`.
        """
        ends = [part.start if part.end is None else part.end for part in parts]
        self._parts, self._chunks, self._until = tuple(parts), tuple(chunks), until
        self._now = max([now, *ends])
        self.virtual_size = Size(0, len(parts) + 1)
        self.refresh()

    @property
    def span(self) -> float:
        """Seconds on the axis; never zero."""
        return max(self._now if self._until is None else self._until, 1e-6)

    def render_line(self, y: int) -> Strip:
        """The axis, then one part a row."""
        width, style = self.size.width, self.rich_style
        room, note_width = self._bar_width(width)
        if y == 0:
            axis = style + self.get_component_rich_style("waterfall--axis", partial=True)
            text = " " * (NAME_WIDTH + 1) + ticks(self.span, room)
            return Strip([Segment(text, axis)]).adjust_cell_length(width, style)
        row = y - 1 + self.scroll_offset.y
        if row >= len(self._parts):
            return Strip.blank(width, style)
        part = self._parts[row]
        name = elide(one_line(part.name), NAME_WIDTH)
        segments = [Segment(name + " " * (NAME_WIDTH + 1 - cell_len(name)), style), *self._bar(part, room, style)]
        segments.append(Segment(f" {self._took(part).rjust(_TIME_WIDTH)}", style + Style(bold=True)))
        if note_width:
            note = style + self.get_component_rich_style("waterfall--note", partial=True)
            segments.append(Segment("  " + elide(_note(part), note_width - 2), note))
        return Strip(segments).adjust_cell_length(width, style)

    def _bar_width(self, width: int) -> tuple[int, int]:
        """Cells for the bars, and for what stands after the durations."""
        room = width - NAME_WIDTH - 1 - 1 - _TIME_WIDTH
        for note_width in (_NOTE_WIDTH + 2, _TOKENS_WIDTH + 2):
            if room - note_width >= 2 * _SMALLEST_BAR:
                return room - note_width, note_width
        return max(0, room), 0

    def _took(self, part: Part) -> str:
        """How long it took, or for the end when it was."""
        if part.name == "done":
            return units.milliseconds(part.start, _TIME_WIDTH)
        end = self._now if part.end is None else part.end
        return units.milliseconds(max(0.0, end - part.start), _TIME_WIDTH)

    def _bar(self, part: Part, room: int, style: Style) -> list[Segment]:
        """The bar in half cells, at least one of them wide; what lies beyond the axis is a `›` at its end."""
        if room <= 0:
            return []
        color = _COLORS.get(part.name, "")
        lit = style + Style(color=color) if color else style
        end = self._now if part.end is None else part.end
        first = int(2 * room * part.start / self.span)
        if first >= 2 * room and part.start > self.span:
            return [Segment(" " * (room - 1), style), Segment("›", lit)]
        first = min(first, 2 * room - 1)
        last = min(max(first + 1, round(2 * room * end / self.span)), 2 * room)
        at = first // 2
        if part.name == "done" or part.end == part.start:
            return [Segment(" " * at, style), Segment("◆", lit), Segment(" " * (room - at - 1), style)]
        cells = ["▐" if first % 2 else "█"] + ["█"] * ((last + 1) // 2 - at - 1)
        if last % 2:
            cells[-1] = "▌" if last - 1 > first or not first % 2 else cells[-1]
        if part.end is None:
            cells[-1] = "▶"
        before, after = Segment(" " * at, style), Segment(" " * (room - at - len(cells)), style)
        ticked = self._ticked(part, end, room, at) if part.name == "prefill" else set()
        tick = style + Style(color=style.bgcolor, bgcolor=color) if color else style
        bar = [Segment("│", tick) if n in ticked else Segment(cell, lit) for n, cell in enumerate(cells)]
        return list(Segment.simplify([before, *bar, after]))

    def _ticked(self, part: Part, end: float, room: int, at: int) -> set[int]:
        """The cells of the bar in which a chunk ends before the whole does."""
        inner = [chunk for chunk in self._chunks if part.start < chunk < end]
        return {int(room * chunk / self.span) - at for chunk in inner}


def _note(part: Part) -> str:
    tokens = f"{units.count(part.tokens)} token{'s' if part.tokens != 1 else ''}" if part.tokens is not None else ""
    return " · ".join(text for text in (tokens, one_line(part.note)) if text)


def ticks(span: float, width: int) -> str:
    """An axis of `width` cells for `span` seconds: `0 s         500 ms      1.0 s`, each label at its place."""
    line = ""
    step = _round_up(span * _TICK_CELLS / max(1, width))
    for number in range(int(span / step) + 1):
        at, label = int(width * number * step / span), units.duration(number * step)
        if at + len(label) <= width and (not line or at > len(line)):
            line = line.ljust(at) + label
    return line.ljust(width)[:width]


def _round_up(seconds: float) -> float:
    """The next of 1, 2 and 5 times a power of ten; from a minute on whole parts of minutes and hours."""
    for whole in (60, 120, 300, 600, 1800, 3600, 7200, 21600):
        if whole / 2 < seconds <= whole and seconds > 20:
            return float(whole)
    power: float = 10.0 ** math.floor(math.log10(seconds))
    return next(factor * power for factor in (1, 2, 5, 10) if factor * power >= seconds)


if __name__ == "__main__":
    from widgets.demo import Demo

    view = WaterfallView()

    def tick(time: float) -> None:
        """Let the decode go on."""
        parts = [
            Part("received", 0.0, 0.002),
            Part("validated", 0.002, 0.006, 1802),
            Part("queued", 0.006, 0.31, note="long"),
            Part("prefill", 0.31, 0.9, 1802),
            Part("decode", 0.9, None, int(time * 30)),
        ]
        view.set_parts(parts, 0.9 + time, (0.5, 0.7, 0.9))

    Demo(view, tick=tick).run()
