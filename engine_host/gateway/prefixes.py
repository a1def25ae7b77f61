"""How much of a prompt others began with: what a prefix cache could find, whatever it keeps."""

from bisect import bisect_left
from collections import deque
from collections.abc import Sequence

LAST = 16
"""Prompts that a new one is compared with: those just before it are what a cache still has."""

LENGTH = 512
"""Tokens compared: a prefix of this length is longer than any page."""


class Prefixes:
    """The beginnings of the last prompts. They are token ids, kept in memory alone, and soon forgotten."""

    def __init__(self) -> None:
        self._last: deque[Sequence[int]] = deque(maxlen=LAST)

    def shared(self, tokens: Sequence[int]) -> int | None:
        """The most tokens that this prompt and one of the last begin with alike, up to `LENGTH`; the prompt is
        remembered. `None` for the first one."""
        beginning = list(tokens[:LENGTH])
        found = max((_alike(beginning, other) for other in self._last), default=None)
        self._last.append(beginning)
        return found


def _alike(one: Sequence[int], two: Sequence[int]) -> int:
    """Tokens that both begin with."""
    return bisect_left(range(1, min(len(one), len(two)) + 1), True, key=lambda length: one[:length] != two[:length])
