"""Lines drawn in braille dots: two columns and four rows of dots a cell."""

import math
from collections.abc import Sequence
from itertools import pairwise

_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))
_ROUND_STEPS = (1.0, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 8.0, 10.0)

Span = tuple[float, float]


class Canvas:
    """A grid of cells, each with its dots and the line that was last drawn in it (-1: none)."""

    def __init__(self, columns: int, rows: int) -> None:
        self.columns = columns
        self.rows = rows
        self.dots = [[0] * columns for _ in range(rows)]
        self.line = [[-1] * columns for _ in range(rows)]

    def draw(self, spans: Sequence[Span | None], top: float, line: int, dash: int = 1) -> None:
        """Draw a line: for each column of dots the span of values it covers, on a scale from 0 to `top`.

        With `dash` 2 or 3, only every second or third pair of columns is drawn, to tell lines apart without colour.
        """
        last = self.rows * 4 - 1
        scale = last / top
        for x, span in enumerate(spans):
            if span is None or x // 2 % dash:
                continue
            low = min(last, max(0, last - round(span[0] * scale)))
            high = min(last, max(0, last - round(span[1] * scale)))
            column, half = divmod(x, 2)
            for y in range(high, low + 1):
                row, dot = divmod(y, 4)
                self.dots[row][column] |= _DOTS[dot][half]
                self.line[row][column] = line


def spans(values: Sequence[float | None], count: int) -> list[Span | None]:
    """The lowest and highest value in each of `count` columns, joined to the column before; `None` where unknown.

    Many values a column: the extremes of its share, so that a spike survives. Few: straight lines between known
    neighbours; the newest value is in the last column.
    """
    if not values or count <= 0:
        return [None] * max(count, 0)
    found = _shares(values, count) if len(values) > count else _interpolated(values, count)
    joined: list[Span | None] = []
    previous: Span | None = None
    for span in found:
        if span is None or previous is None:
            joined.append(span)
        else:
            joined.append((min(span[0], previous[1]), max(span[1], previous[0])))
        previous = span
    return joined


def _shares(values: Sequence[float | None], count: int) -> list[Span | None]:
    found: list[Span | None] = []
    for start, end in pairwise(index * len(values) // count for index in range(count + 1)):
        known = [value for value in values[start:end] if value is not None]
        found.append((min(known), max(known)) if known else None)
    return found


def _interpolated(values: Sequence[float | None], count: int) -> list[Span | None]:
    found: list[Span | None] = [None] * count
    step = (count - 1) / (len(values) - 1) if len(values) > 1 else 0.0
    places = [round(index * step) for index in range(len(values))] if step else [count - 1]
    for index, value in enumerate(values):
        if value is None:
            continue
        found[places[index]] = (value, value)
        before = values[index - 1] if index else None
        if before is not None:
            start, end = places[index - 1], places[index]
            for x in range(start + 1, end):
                between = before + (value - before) * (x - start) / (end - start)
                found[x] = (between, between)
    return found


def round_up(value: float) -> float:
    """The next number from `value` on that reads well at the end of an axis: 1, 1.5, 2, 2.5 … times a power of ten."""
    if value <= 0 or not math.isfinite(value):
        return 1.0
    power = 10.0 ** math.floor(math.log10(value))
    return next(step * power for step in _ROUND_STEPS if step * power >= value * (1 - 1e-9))
