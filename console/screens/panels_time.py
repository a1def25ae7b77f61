"""The overview's plots: one axis of time, and on it the measures that there is room for."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from textual.app import ComposeResult
from textual.content import Content
from textual.events import Resize
from textual.message import Message

from console.screens.panels import Panel
from console.time_axis import Axis, View
from engine_host.api.types import HistoryPoint, Mark, Snapshot
from widgets import palette, units
from widgets.plot import LinePlot, Series
from widgets.status_bar import Segment, StatusBar

_Value = str | Callable[[HistoryPoint], float | None]


@dataclass(frozen=True, slots=True)
class Line:
    """One line of a plot: its name, its value (a field of a point, or made from one), and the number of its hue."""

    name: str
    value: _Value
    hue: int


@dataclass(frozen=True, slots=True)
class Measure:
    """What one plot shows: lines in one unit. `target` is the field of a tier that holds the target for it; `short` is
    the name where there is little room."""

    name: str
    short: str
    lines: tuple[Line, ...]
    unit: Callable[[float | None], str]
    target: str = ""


def _watts(value: float | None) -> str:
    return units.NOT_AVAILABLE if value is None else f"{units.count(value)} W"


def _tokens(value: float | None) -> str:
    return units.rate(value, "tok", 9)


def _charged(point: HistoryPoint) -> float | None:
    if point.usd_per_hour is None or point.attributed is None:
        return None
    return point.usd_per_hour * point.attributed


def _percentiles(name: str) -> tuple[Line, Line]:
    return Line("p99", f"{name}_p99", 1), Line("p50", f"{name}_p50", 0)


MEASURES = (
    Measure(
        "TTFT", "TTFT", (Line("p99", "ttft_p99", 1), Line("p50", "ttft_p50", 0)), units.milliseconds, "ttft_target_s"
    ),
    Measure("TTL", "TTL", (Line("p99", "ttl_p99", 1), Line("p50", "ttl_p50", 0)), units.milliseconds, "ttl_target_s"),
    Measure("decode", "decode", (Line("", "decode_tps", 0),), _tokens),
    Measure("prefill", "prefill", (Line("", "prefill_tps", 1),), _tokens),
    Measure("KV pages in use", "KV use", (Line("", "kv_used", 2),), units.percent),
    Measure("batch fill rate", "fill", (Line("", "fill_rate", 3),), units.percent),
    Measure("utilization", "busy", (Line("", "utilization", 0),), units.percent),
    Measure("power", "power", (Line("", "power", 4),), _watts),
    Measure("device memory", "memory", (Line("", "memory_used", 2),), units.bytes_),
    Measure("USD per hour", "USD/h", (Line("paid", "usd_per_hour", 1), Line("charged", _charged, 2)), units.usd),
    Measure("requests", "requests", (Line("running", "running", 0), Line("waiting", "waiting", 1)), units.count),
)
"""In the order `m` goes through them."""

_ROWS_A_PLOT = 8
"""Rows from which a plot has its legend, its time axis and lines that can be read."""


class TimePanel(Panel):
    """The plots on one axis, and above them what part of the past they show."""

    class Roomier(Message):
        """There is room for more or fewer plots: show them again."""

    def __init__(self) -> None:
        super().__init__("", id="time")
        self._first = 0
        self._plots = 1

    def compose(self) -> ComposeResult:
        """The axis in words, and two plots, of which the second may not have room."""
        yield StatusBar(id="axis")
        yield LinePlot(id="plot-0")
        yield LinePlot(id="plot-1")

    @property
    def shown(self) -> tuple[Measure, ...]:
        """The measures on display."""
        return tuple(MEASURES[(self._first + at) % len(MEASURES)] for at in range(self._plots))

    def show_next(self) -> None:
        """Go on to the measures after those on display; past the last, to the first."""
        after = self._first + self._plots
        self._first = after if after < len(MEASURES) else 0

    def on_resize(self, event: Resize) -> None:
        """One plot or two, by the rows there are."""
        plots = 2 if self.content_size.height > 2 * _ROWS_A_PLOT else 1
        self.query_one("#plot-1").display = plots > 1
        if plots != self._plots:
            self._plots = plots
            self.post_message(self.Roomier())

    def show(
        self, view: View, axis: Axis, now: float, snapshot: Snapshot, marks: Sequence[Mark], note: str = ""
    ) -> None:
        """Draw the measures of `view`; `now` (Unix time) is that of the newest data, `note` what to say of the data."""
        self.border_title = Content(" · ".join(measure.name for measure in self.shown))
        self.show_axis(view, axis, now, note)
        ends = (
            (f"-{units.duration(view.span_s)}", "now") if axis.live else (clock(view.start, now), clock(view.end, now))
        )
        for at, measure in enumerate(self.shown):
            named = measure.name if measure.name != "utilization" else snapshot.device.utilization.label
            self.query_one(f"#plot-{at}", LinePlot).set_series(
                [
                    Series(f"{named} {line.name}".rstrip(), view.values(line.value), palette.series(line.hue))
                    for line in measure.lines
                ],
                unit=measure.unit,
                thresholds=_targets(snapshot, measure.target),
                events=view.events(marks),
                ends=ends,
            )

    def show_axis(self, view: View, axis: Axis, now: float, note: str) -> None:
        """Say which part of the past is on display, the mark of a pause last to go."""
        first = self.shown[0]
        segments: list[Segment] = []
        if self.screen.has_class("-short") or self.screen.has_class("-narrow"):  # no frame with the name on it
            segments.append(Segment(first.name, first.short, priority=6))
            segments += [Segment(line.name, color=palette.series(line.hue)) for line in first.lines if line.name]
        span = units.duration(axis.span_s)
        if axis.end is None:
            segments.append(Segment(f"last {span}", span, priority=5))
        else:
            at, ago = clock(axis.end, now), max(0.0, now - axis.end)
            segments.append(Segment(f"paused at {at}", f"‖{at}", priority=9, color=palette.WARN))
            if ago >= 1:
                whole = f"{int(ago)} s" if ago < 60 else units.duration(ago - ago % 60)
                segments.append(Segment(f"{whole} ago", f"-{whole.replace(' ', '')}", priority=5, color=palette.WARN))
            segments.append(Segment(span, priority=4))
        if view.by_minute:
            segments.append(Segment("by the minute", "by min", priority=8))
        if note:
            segments.append(Segment(note, priority=3))
        self.query_one("#axis", StatusBar).set_segments(segments)


def _targets(snapshot: Snapshot, field: str) -> list[tuple[float, str]]:
    """The tiers' targets for a measure, one line for those that are equal."""
    if not field or snapshot.gateway is None:
        return []
    named: dict[float, list[str]] = {}
    for tier in snapshot.gateway.tiers:
        if (target := getattr(tier, field)) is not None:
            named.setdefault(target, []).append(tier.name)
    return [(target, f"{', '.join(names)} {units.milliseconds(target)}") for target, names in sorted(named.items())]


def clock(unix: float, now: float) -> str:
    """The local time, with the day where it's another than that of `now`."""
    then, today = time.localtime(unix), time.localtime(now)
    return time.strftime("%H:%M:%S" if then[:3] == today[:3] else "%d %b %H:%M:%S", then)
