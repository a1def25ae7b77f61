"""Prefill and decode tokens of each scheduler step, as mirrored bars."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING

from rich.segment import Segment
from rich.style import Style
from textual.strip import Strip
from textual.widget import Widget

from widgets import marks, palette, units

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

MOST_STEPS = 1_000
"""Wider than any screen; older steps are not kept."""
PREFILL_COLOR = palette.SERIES[1]
DECODE_COLOR = palette.SERIES[0]

_RISING = " ▁▂▃▄▅▆▇█"
_SMALLEST_WITH_AXIS = (24, 4)  # cells
_LABEL_WIDTH = 6


class StepBars(Widget):
    """One column a step, the most recent at the right: prefill rises, decode hangs below, each on its own scale.

    The two differ by orders of magnitude (a budget full of prompt tokens, one token a running request), so one scale
    would hide decode. Apart by place, by shape (solid and shaded) and by colour. In one row a step shows the kind it
    has more tokens of.
    """

    DEFAULT_CSS = """
    StepBars { width: 1fr; height: 1fr; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._prefill: Sequence[int] = ()
        self._decode: Sequence[int] = ()
        self._budget: int | None = None
        self._events: tuple[marks.Event, ...] = ()

    def set_steps(
        self,
        prefill: NDArray[np.integer],
        decode: NDArray[np.integer],
        budget: int | None = None,
        events: Sequence[marks.Event] = (),
    ) -> None:
        """Show the last steps.

        Both arrays have one entry a step, oldest first, in tokens; `budget` is the token budget of a step, the top of
        the prefill scale where it's known. `events` are thin vertical marks at the step each lies before (its label is
        not drawn: the bars are too dense).
        """
        newest = slice(-MOST_STEPS, None)
        left_out = max(0, len(prefill) - MOST_STEPS)
        placed = tuple(marks.Event(event.at - left_out, event.label, event.kind) for event in events)
        shown = (prefill[newest].tolist(), decode[newest].tolist(), budget, placed)
        if shown != (self._prefill, self._decode, self._budget, self._events):
            self._prefill, self._decode, self._budget, self._events = shown
            self.refresh()

    @property
    def events_in_view(self) -> list[marks.Event]:
        """The events whose steps have a column."""
        first = len(self._prefill) - (self.size.width - self._axis_width())
        return [event for event in self._events if event.at >= max(0, first)]

    def _tops(self) -> tuple[int, int]:
        """The tops of the two scales, in tokens."""
        return max([self._budget or 0, *self._prefill, 1]), max([*self._decode, 1])

    def _axis_width(self) -> int:
        if self.size.width < _SMALLEST_WITH_AXIS[0] or self.size.height < _SMALLEST_WITH_AXIS[1]:
            return 0
        return max(map(len, _labels(self._tops()))) + 1

    def render_line(self, y: int) -> Strip:
        """One row: the upper ones are prefill, the lower ones decode, with the tops of the scales at the left."""
        width, height = self.size
        base = self.rich_style
        tops = self._tops()
        labels = _labels(tops)
        axis = self._axis_width()
        columns = width - axis
        prefill, decode = (values[-columns:] if columns > 0 else () for values in (self._prefill, self._decode))
        upper = max(1, (height + 1) // 2)
        cells: list[tuple[str, str]]
        if height == 1:
            cells = [_either(*pair, tops) for pair in zip(prefill, decode, strict=True)]
        elif y < upper:
            cells = [(_rising(value / tops[0], upper, upper - 1 - y), PREFILL_COLOR) for value in prefill]
        else:
            cells = [(_hanging(value / tops[1], height - upper, y - upper), DECODE_COLOR) for value in decode]
        for event in self._events:
            x = int(event.at) - len(self._prefill) + len(cells)
            if 0 <= x < len(cells):
                if y == 0:
                    cells[x] = (marks.GLYPHS[event.kind], marks.COLORS[event.kind])
                elif cells[x][0] == " ":
                    cells[x] = (marks.LINE, palette.MUTED)
        label = ""
        if axis:
            label = (labels[0] if y == 0 else labels[1] if y == height - 1 else "").rjust(axis - 1) + "│"
        segments = [
            Segment(label, base + Style(color=palette.MUTED)),
            Segment(" " * (columns - len(cells)), base),
            *(
                Segment("".join(text for text, _ in run), base + Style(color=color))
                for color, run in groupby(cells, key=itemgetter(1))
            ),
        ]
        return Strip(segments).adjust_cell_length(width, base)


def _labels(tops: tuple[int, int]) -> list[str]:
    return [units.count(top, _LABEL_WIDTH) for top in tops]


def _rising(fraction: float, rows: int, row: int) -> str:
    """The cell `row` (0 at the base) of a bar that rises through `rows` cells; a step with any token shows a mark."""
    eighths = max(round(fraction * rows * 8), 1 if fraction > 0 else 0)
    return _RISING[min(max(eighths - row * 8, 0), 8)]


def _hanging(fraction: float, rows: int, row: int) -> str:
    """The same for a shaded bar that hangs; its last cell may be half full, in a lighter shade."""
    halves = max(round(fraction * rows * 2), 1 if fraction > 0 else 0)
    return " ░▒"[min(max(halves - row * 2, 0), 2)]


def _either(prefill: int, decode: int, tops: tuple[int, int]) -> tuple[str, str]:
    """A step in one cell: a tall bar where prefill has more tokens, else a low one."""
    if prefill > decode:
        return _RISING[max(5, round(8 * prefill / tops[0]))], PREFILL_COLOR
    return _RISING[min(4, 1 + 3 * decode // tops[1])] if decode else " ", DECODE_COLOR


def _demo() -> None:
    import numpy as np

    from widgets.demo import Demo

    bars, random = StepBars(), np.random.default_rng(1)

    def tick(time: float) -> None:
        steps = np.arange(int(time * 10), int(time * 10) + 300)
        prefill = np.where(steps % 40 < 6, 2048 - steps % 7 * 200, 0)
        bars.set_steps(prefill, 8 + steps // 20 % 9 + random.integers(0, 2, 300), 2048)

    Demo(bars, tick=tick).run()


if __name__ == "__main__":
    _demo()
