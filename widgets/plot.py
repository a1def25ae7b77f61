"""A line plot in braille dots on Textual's line API."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.widget import Widget

from widgets import units


@dataclass(frozen=True, slots=True)
class Series:
    """One line of a plot: a value a step of time, oldest first, `None` where unknown; `color` in CSS hex."""

    name: str
    values: Sequence[float | None]
    color: str


class LinePlot(Widget):
    """Lines over time with a y axis in units; down to a sparkline at small sizes."""

    def set_series(
        self,
        series: Sequence[Series],
        *,
        unit: Callable[[float | None], str] = units.count,
        thresholds: Sequence[tuple[float, str]] = (),
        events: Sequence[tuple[float, str]] = (),
        span_s: float | None = None,
    ) -> None:
        """Show these lines.

        `unit` formats y labels; `thresholds` are (value, label), drawn as horizontal lines; `events` are (index into
        the values, label), drawn as marks; `span_s` is the time in seconds that the values cover, for the time axis
        (none is drawn without it).
        """
