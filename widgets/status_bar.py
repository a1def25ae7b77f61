"""The one-line summary at the top of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from textual.widget import Widget


@dataclass(frozen=True, slots=True)
class Segment:
    """One part of the bar.

    `short` is the form for narrow bars (none when empty); the lowest `priority` is shortened and dropped first; `color`
    in CSS hex, or empty for the bar's own.
    """

    text: str
    short: str = ""
    priority: int = 0
    color: str = ""


class StatusBar(Widget):
    """Segments side by side with ` · ` between; whole segments are shortened, then dropped, never cut."""

    def set_segments(self, segments: Sequence[Segment], right: str = "") -> None:
        """Show these segments from the left; `right` (a clock) stands at the right edge while there is room."""
