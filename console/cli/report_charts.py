"""The charts of a report: matplotlib figures, without a window system, as SVG text or PNG bytes.

Times are UTC; a gap in the data is a gap in the line. Names are text, never mathematics or markup.
"""

import io
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.dates import AutoDateLocator, ConciseDateFormatter
from matplotlib.figure import Figure

from console.cli.output import plain

WIDTH, HEIGHT, BAR_HEIGHT = 9.0, 2.8, 0.32
"""Inches; a bar chart of names is as high as its bars."""

INK, GRID, MARK = "#333333", "#dddddd", "#888888"

SERIES = ("#0072b2", "#d55e00", "#009e73", "#cc79a7")
PARTS: Mapping[str, str] = {
    "prefill": "#e69f00",
    "decode": "#56b4e9",
    "memory": "#009e73",
    "scheduling": "#cc79a7",
    "io": "#0072b2",
    "idle": "#bbbbbb",
    "down": "#d55e00",
}
"""Colours that stay apart for colour-blind eyes, on paper too (Okabe and Ito, Color Universal Design, 2008)."""

Points = Sequence[tuple[float, float | None]]
"""Unix times and values, `None` where there is none."""


@dataclass(frozen=True)
class Chart:
    """One chart: `name` is that of its file, `title` says what is drawn, also to who can't see it."""

    name: str
    title: str
    figure: Figure

    def svg(self) -> str:
        """One `<svg>` element; its text is text, and the same data gives the same characters."""
        out = io.StringIO()
        with _style(self.name):
            self.figure.savefig(out, format="svg", metadata={"Date": None, "Creator": None})
        text = out.getvalue()
        return text[text.index("<svg") :].strip()

    def png(self) -> bytes:
        """A picture of 1350 pixels width."""
        out = io.BytesIO()
        with _style(self.name):
            self.figure.savefig(out, format="png", dpi=150)
        return out.getvalue()


def lines(
    name: str,
    title: str,
    unit: str,
    series: Mapping[str, Points],
    span_s: float,
    marks: Sequence[tuple[float, str]] = (),
    most: float | None = None,
) -> Chart:
    """Lines over time from 0 on, up to `most` if it is given; a point stands for `span_s` seconds. `marks` are drawn as
    upright lines with a word."""
    with _style(name):
        figure, axes = _axes(HEIGHT, unit)
        for color, (label, points) in zip(SERIES, series.items(), strict=False):
            shown = list(_with_gaps(points, span_s))
            axes.plot(
                [_days(time) for time, _ in shown],
                [value for _, value in shown],
                color=color,
                label=plain(label),
                linewidth=1.2,
                marker="." if len(points) < 40 else None,
            )
        for time, word in marks:
            axes.axvline(_days(time), color=MARK, linewidth=0.8, linestyle="--")
            axes.annotate(
                plain(word), (_days(time), 1), xycoords=("data", "axes fraction"), fontsize=7, color=MARK, rotation=90,
                va="top", ha="right",
                bbox={"facecolor": "white", "alpha": 0.7, "edgecolor": "none", "pad": 0.5},
            )  # fmt: skip
        axes.set_ylim(0, most)
        _time_axis(axes)
        _legend(axes, len(series))
    return Chart(name, title, figure)


def stack(
    name: str, title: str, unit: str, times: Sequence[float], parts: Mapping[str, Sequence[float]], span_s: float
) -> Chart:
    """Bars over time, each split into parts; a bar begins at its time and is `span_s` seconds wide."""
    with _style(name):
        figure, axes = _axes(HEIGHT, unit)
        begins, bottom = [_days(time) for time in times], [0.0] * len(times)
        for part, values in parts.items():
            axes.bar(
                begins,
                values,
                bottom=bottom,
                width=span_s / 86_400 * 0.92,
                align="edge",
                color=PARTS.get(part, SERIES[0]),
                label=plain(part),
            )
            bottom = [below + value for below, value in zip(bottom, values, strict=True)]
        _time_axis(axes)
        _legend(axes, len(parts))
    return Chart(name, title, figure)


def bars(name: str, title: str, unit: str, values: Mapping[str, float]) -> Chart:
    """One bar a name, the first at the top."""
    with _style(name):
        figure, axes = _axes(0.9 + BAR_HEIGHT * len(values), "")
        places = range(len(values), 0, -1)
        axes.barh(places, list(values.values()), color=SERIES[0], height=0.7)
        axes.set_yticks(list(places), [_short(plain(label)) for label in values], parse_math=False)
        axes.set_xlabel(unit)
        axes.grid(axis="x", color=GRID, linewidth=0.6)
        axes.grid(axis="y", visible=False)
    return Chart(name, title, figure)


@contextmanager
def _style(name: str) -> Iterator[None]:
    """Text stays text in an SVG, and its ids are those of this chart alone: several stand in one page."""
    style = {
        "svg.fonttype": "none",
        "svg.hashsalt": name,
        "svg.id": name,
        "text.parse_math": False,
        "font.family": "sans-serif",
        "font.size": 9,
        "axes.edgecolor": MARK,
        "axes.labelcolor": INK,
        "xtick.color": INK,
        "ytick.color": INK,
    }
    with rc_context(style):  # type: ignore[arg-type]
        yield


def _axes(height: float, unit: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(WIDTH, height), layout="constrained")
    axes = figure.add_subplot()
    axes.set_axisbelow(True)
    axes.set_ylabel(unit)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    return figure, axes


def _time_axis(axes: Axes) -> None:
    locator = AutoDateLocator(tz=UTC)  # type: ignore[no-untyped-call]
    axes.xaxis.set_major_locator(locator)
    axes.xaxis.set_major_formatter(ConciseDateFormatter(locator, tz=UTC))  # type: ignore[no-untyped-call]


def _legend(axes: Axes, count: int) -> None:
    if count > 1:
        axes.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=count, frameon=False, fontsize=8)


def _with_gaps(points: Points, span_s: float) -> Iterator[tuple[float, float]]:
    """Points with not-a-number where nothing is known, which ends a line."""
    last: float | None = None
    for time, value in points:
        if last is not None and time - last > 1.5 * span_s:
            yield last + span_s, math.nan
        yield time, math.nan if value is None else value
        last = time


def _short(label: str) -> str:
    return label if len(label) <= 28 else f"{label[:27]}…"


def _days(time: float) -> float:
    """Matplotlib's dates are days since the Unix epoch (`date.epoch`)."""
    return time / 86_400
