"""The one-line summary at the top of a screen."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from textual.content import Content
from textual.widget import Widget

from widgets.text import elide, one_line

_BETWEEN = " · "


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


def fit(segments: Sequence[Segment], width: int) -> list[tuple[str, str]]:
    """The texts and colours of the segments that fit in `width` cells: all are shortened before one is dropped."""
    shown = [(one_line(segment.text), segment) for segment in segments if segment.text]
    by_priority = sorted(range(len(shown)), key=lambda index: shown[index][1].priority)

    def too_wide() -> bool:
        texts = [text for text, _ in shown if text]
        return sum(map(cell_len, texts)) + len(_BETWEEN) * (len(texts) - 1) > width

    for index in by_priority:
        if too_wide() and shown[index][1].short:
            shown[index] = (one_line(shown[index][1].short), shown[index][1])
    for index in by_priority[:-1]:
        if too_wide():
            shown[index] = ("", shown[index][1])
    left = [(text, segment.color) for text, segment in shown if text]
    return [(elide(left[0][0], width), left[0][1])] if len(left) == 1 else left


class StatusBar(Widget):
    """Segments side by side with ` · ` between; whole segments are shortened, then dropped, never cut."""

    DEFAULT_CSS = """
    StatusBar { height: 1; width: 1fr; padding: 0 1; background: $panel; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._segments: tuple[Segment, ...] = ()
        self._right = ""

    def set_segments(self, segments: Sequence[Segment], right: str = "") -> None:
        """Show these segments from the left; `right` (a clock) stands at the right edge while there is room."""
        shown = (tuple(segments), one_line(right))
        if shown != (self._segments, self._right):
            self._segments, self._right = shown
            self.refresh()

    def render(self) -> Content:
        """What fits; the right-hand text goes before a segment is shortened."""
        width = self.content_size.width
        parts: list[tuple[str, str]] = []
        for text, color in fit(self._segments, width):
            parts += [(_BETWEEN, "$foreground-muted")] if parts else []
            parts.append((text, color))
        used = sum(cell_len(text) for text, _ in parts)
        full = _BETWEEN.join(one_line(segment.text) for segment in self._segments if segment.text)
        if self._right and cell_len(full) + 2 + cell_len(self._right) <= width:
            parts.append((self._right.rjust(width - used), "$foreground-muted"))
        return Content.assemble(*parts)


if __name__ == "__main__":
    from widgets.demo import Demo

    status_bar = StatusBar()
    status_bar.set_segments([Segment("SmolLM2"), Segment("balanced"), Segment("● ready", "●", priority=1)], "14:03:22")
    Demo(status_bar).run()
