"""Lines of what is known: a name, a bar where it is a share, the value, and a note."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from rich.cells import cell_len
from textual.content import Content
from textual.geometry import Size
from textual.widget import Widget

from widgets.meter import bar
from widgets.text import elide, one_line

FactLevel = Literal["normal", "warn", "bad", "unknown"]

_STYLES = {"normal": "bold", "warn": "bold $text-warning", "bad": "bold $text-error", "unknown": "$foreground-muted"}
_MARKS = {"normal": "", "warn": "▲ ", "bad": "✖ ", "unknown": ""}
_MOST_VALUE = 26
_LARGEST_BAR = 24
_SMALLEST_BAR = 6


@dataclass(frozen=True, slots=True)
class Fact:
    """One line. `share` (0 to 1) draws a bar; `bar` keeps its place where the share isn't known. Texts are plain."""

    label: str
    value: str
    note: str = ""
    share: float | None = None
    bar: bool = False
    level: FactLevel = "normal"


class Facts(Widget):
    """`label  ███▌···  value  note`, all lined up.

    Where there is no room the bar gets shorter, then the note; the value stays.
    """

    DEFAULT_CSS = """
    Facts { width: 1fr; height: auto; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._facts: tuple[Fact, ...] = ()

    def set_facts(self, facts: Sequence[Fact]) -> None:
        """Show these lines."""
        shown = tuple(facts)
        if shown != self._facts:
            taller = len(shown) != len(self._facts)
            self._facts = shown
            self.refresh(layout=taller)

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        """A row a line."""
        return len(self._facts)

    def render(self) -> Content:
        """The lines for the width there is."""
        return Content("\n").join(_lines(self._facts, self.content_size.width))


def _lines(facts: Sequence[Fact], width: int) -> list[Content]:
    values = [_MARKS[fact.level] + one_line(fact.value) for fact in facts]
    value_width = min(max((cell_len(value) for value in values), default=0), _MOST_VALUE)
    note_width = max((cell_len(fact.note) + 2 for fact in facts if fact.note), default=0)
    label_width = max((cell_len(fact.label) for fact in facts), default=0)
    label_width = min(label_width, max(width // 2 - 2, width - value_width - note_width - 2))
    barred = [(fact, value) for fact, value in zip(facts, values, strict=True) if fact.share is not None]
    after = max((cell_len(value) + cell_len(fact.note) + 2 * bool(fact.note) for fact, value in barred), default=0)
    room = width - label_width - 2
    bar_width = min(max(room - after - 2, _SMALLEST_BAR), room - value_width - 2, _LARGEST_BAR)
    return [_line(fact, value, width, label_width, bar_width) for fact, value in zip(facts, values, strict=True)]


def _line(fact: Fact, value: str, width: int, label_width: int, bar_width: int) -> Content:
    label = elide(one_line(fact.label), label_width)
    label += " " * (label_width - cell_len(label) + 2)
    drawn = ""
    after = cell_len(value) + cell_len(fact.note) + 4
    cramped = fact.share is None and cell_len(label) + bar_width + after > width  # a reason says more than dashes
    if bar_width >= _SMALLEST_BAR and (fact.bar or fact.share is not None) and not cramped:
        drawn = bar(fact.share, bar_width) + "  "
    room = width - cell_len(label + drawn)
    value = elide(value, room)
    room -= cell_len(value) + 2
    note = "  " + elide(one_line(fact.note), room) if fact.note and room >= 4 else ""
    return Content.assemble(
        (label, "$foreground-muted"), (drawn, "$primary"), (value, _STYLES[fact.level]), (note, "$foreground-muted")
    )


if __name__ == "__main__":
    from widgets.demo import Demo

    facts = Facts()
    facts.set_facts(
        [
            Fact("SM active", "71 %", share=0.71),
            Fact("memory", "n/a", "not supported", bar=True, level="unknown"),
            Fact("clocks", "1 755 MHz", "of 1 980"),
        ]
    )
    Demo(facts).run()
