"""A sparkline as text: two braille columns a cell, from zero to the largest value."""

from collections.abc import Sequence
from itertools import pairwise

_LEFT = (0x00, 0x40, 0x44, 0x46, 0x47)
_RIGHT = (0x00, 0x80, 0xA0, 0xB0, 0xB8)


def sparkline(values: Sequence[float | None], width: int) -> str:
    """The last values in at most `width` cells, each two columns of one to four dots; unknown values leave a gap.

    With more values than columns, a column shows the largest of its share, so that a spike survives.
    """
    columns = _columns(values, width * 2)
    top = max((value for value in columns if value is not None), default=0.0)
    levels = [0 if value is None else 1 + round(3 * max(value, 0) / top) if top > 0 else 1 for value in columns]
    if len(levels) % 2:
        levels.insert(0, 0)
    pairs = zip(levels[::2], levels[1::2], strict=True)
    return "".join(chr(0x2800 | _LEFT[left] | _RIGHT[right]) for left, right in pairs)


def _columns(values: Sequence[float | None], count: int) -> list[float | None]:
    if len(values) <= count:
        return list(values)
    if count <= 0:
        return []
    edges = [index * len(values) // count for index in range(count + 1)]
    shares = ([value for value in values[start:end] if value is not None] for start, end in pairwise(edges))
    return [max(share, default=None) for share in shares]
