"""A view of many log lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, NamedTuple

from textual.scroll_view import ScrollView

LogLevel = Literal["debug", "info", "warning", "error"]


class LogLine(NamedTuple):
    """One line: `time` in Unix seconds, `text` as it came."""

    time: float
    level: LogLevel
    source: str
    text: str


class LogView(ScrollView, can_focus=True):
    """The last 20 000 lines, filtered by level and text; follows the end until scrolled away."""

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines at the end; the oldest leave when the ring is full."""

    def set_filter(self, min_level: LogLevel = "debug", text: str = "") -> None:
        """Show only lines of at least this level that contain the text (in source or text, any case)."""

    def clear(self) -> None:
        """Forget all lines."""
