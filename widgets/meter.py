"""A bar for a fraction, readable by its shape."""

from __future__ import annotations

from textual.widget import Widget


class Meter(Widget):
    """`label ████▌····  text` on one line."""

    def __init__(self, label: str, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.label = label

    def set(self, fraction: float | None, text: str = "", note: str = "") -> None:
        """Show a fraction of 0 to 1 (`None`: unknown, no bar) and the text beside it (`n/a` or percent when empty)."""
