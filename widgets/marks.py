"""What a plot marks on its time axis, and how the kinds of change are told apart without colour."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal

from widgets import palette

EventKind = Literal["live", "rebuild", "recovery"]

GLYPHS: dict[EventKind, str] = {"live": "◇", "rebuild": "◆", "recovery": "✚"}
COLORS: dict[EventKind, str] = {"live": palette.GOOD, "rebuild": palette.WARN, "recovery": palette.SERIES[3]}
LINE = "┊"
"""The thin line of a mark, under its glyph."""


@dataclass(frozen=True, slots=True)
class Event:
    """A mark at `at`, an index into the values of a plot (fractions fall between two); `label` is plain text."""

    at: float
    label: str
    kind: EventKind = "live"


def legend(events: Iterable[Event]) -> list[tuple[str, str]]:
    """`◆ rebuild` and its colour for each kind there is."""
    kinds = {event.kind for event in events}
    return [(f"{glyph} {kind}", COLORS[kind]) for kind, glyph in GLYPHS.items() if kind in kinds]
