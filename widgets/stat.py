"""One number with its name, a note and a sparkline."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

from textual.widget import Widget

StatState = Literal["normal", "warn", "bad", "unknown"]


class Stat(Widget):
    """`label  value  note  sparkline` on one line, the least important left out first when narrow."""

    def __init__(self, label: str, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.label = label

    def set(self, value: str, note: str = "", state: StatState = "normal", trend: Sequence[float | None] = ()) -> None:
        """Show a formatted value (never markup). `trend` is the sparkline's values, oldest first."""
