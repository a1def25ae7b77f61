"""What each widget looks like, at 80×24 and 120×40."""

import math
import time
from collections.abc import Callable

import numpy as np
import pytest
from textual.app import App, ComposeResult
from textual.containers import VerticalScroll
from textual.pilot import Pilot
from textual.widget import Widget

from widgets import palette, units
from widgets.chat_message import AssistantMessage, ReplyStats, UserMessage
from widgets.log_view import LEVELS, LogLine, LogView
from widgets.marks import Event
from widgets.meter import Meter
from widgets.page_map import CACHED, USED, PageMap
from widgets.plot import LinePlot, Series
from widgets.prompt import PromptArea
from widgets.request_table import RequestLine, RequestTable
from widgets.stat import Stat
from widgets.status_bar import Segment, StatusBar
from widgets.steps import StepBars

SIZES = [(80, 24), (120, 40)]

Snapshot = Callable[..., bool]


class Gallery(App[None]):
    """The given widgets, one under the other; nothing moves."""

    def __init__(self, *shown: Widget) -> None:
        super().__init__()
        self.animation_level = "none"
        self.shown = shown

    def compose(self) -> ComposeResult:
        with VerticalScroll(can_focus=False):
            yield from self.shown


def pages(page_map: PageMap, count: int, requests: int) -> None:
    """Give each request a run of pages, and leave some of them cached."""
    state, owner = np.zeros(count, np.uint8), np.full(count, -1, np.int32)
    length = count // (requests * 2)
    for index in range(requests):
        start = index * 2 * length
        state[start : start + length], owner[start : start + length] = USED, index
        state[start + length : start + length + length // 3] = CACHED
    refs = (state == USED).astype(np.uint16)
    refs[: length // 4] = 2
    page_map.set_pages(state, owner, refs, [f"request-{n}" for n in range(requests)])


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["detail", "overview", "highlight", "letters"])
def test_page_map(snap_compare: Snapshot, size: tuple[int, int], kind: str) -> None:
    page_map = PageMap(mono=kind == "letters")

    async def prepare(pilot: Pilot[None]) -> None:
        pages(page_map, 100_000 if kind == "overview" else 1_800, 14 if kind == "overview" else 5)
        page_map.highlight("request-2" if kind == "highlight" else None)
        page_map.focus()
        await pilot.press("right", "right", "right", "down")

    assert snap_compare(Gallery(page_map), terminal_size=size, run_before=prepare)


@pytest.mark.parametrize("size", SIZES)
def test_plots(snap_compare: Snapshot, size: tuple[int, int]) -> None:
    tall, low, spark = LinePlot(), LinePlot(), LinePlot()
    tall.styles.height, low.styles.height, spark.styles.height, spark.styles.width = "2fr", 4, 1, 10
    wave = [0.03 + 0.01 * math.sin(n / 20) + (0.1 if n == 203 else 0) for n in range(300)]
    lines = [
        Series("TTL p50", [value * 0.7 for value in wave], palette.series(0)),
        Series("TTL p99", [None if 100 < n < 130 else value for n, value in enumerate(wave)], palette.series(1)),
    ]
    for plot in (tall, low, spark):
        plot.set_series(
            lines,
            unit=units.milliseconds,
            thresholds=[(0.1, "100 ms")],
            events=[Event(150, "profile", "rebuild")],
            ends=("-5 min", "now"),
        )
    assert snap_compare(Gallery(tall, low, spark), terminal_size=size)


@pytest.mark.parametrize("size", SIZES)
def test_steps(snap_compare: Snapshot, size: tuple[int, int]) -> None:
    tall, row = StepBars(), StepBars()
    row.styles.height = 1
    steps = np.arange(130)
    for bars in (tall, row):
        bars.set_steps(np.where(steps % 40 < 6, 2048 - steps % 7 * 200, 0), 8 + steps // 20 % 9, 2048)
    assert snap_compare(Gallery(tall, row), terminal_size=size)


@pytest.mark.parametrize("size", SIZES)
def test_one_line_widgets(snap_compare: Snapshot, size: tuple[int, int]) -> None:
    bar = StatusBar()
    bar.set_segments(
        [
            Segment("SmolLM2-135M-Instruct", priority=3),
            Segment("balanced", priority=1),
            Segment("● ready", priority=4, color=palette.GOOD),
            Segment("127.0.0.1:8000", ":8000", priority=2),
            Segment("H200 141 GB"),
        ],
        "14:03:22",
    )
    stats = [Stat(name, label_width=6) for name in ("TTFT", "TTL", "queue", "hit")]
    stats[0].set("82 ms", "p99 240 ms", trend=[3, 5, 2, None, 8, 9, 4] * 5)
    stats[1].set("48 ms", "target 40 ms", "warn")
    stats[2].set("412", "limit 400", "bad")
    meters = [Meter(name, label_width=10) for name in ("memory", "SM active", "power")]
    meters[0].set(0.65, "91 / 141 GB")
    meters[1].set(0.02)
    meters[2].set(None, note="not supported")
    assert snap_compare(Gallery(bar, *stats, *meters), terminal_size=size)


@pytest.mark.parametrize("size", SIZES)
def test_request_table(snap_compare: Snapshot, size: tuple[int, int]) -> None:
    table = RequestTable()
    states = ("queued", "prefill", "decode")
    lines = [
        RequestLine(
            f"{n * 7919:04x}", states[n % 3], 900 * n, 31 * n, 1024 if n % 2 else None, 3.7 * n, *latency, 9 * n
        )
        for n, latency in zip(range(50), [(None, None), (0.082, 0.0312)] * 25, strict=True)
    ]
    table.set_requests(lines, {line.id: palette.series(n) for n, line in enumerate(lines[:8])})

    async def prepare(pilot: Pilot[None]) -> None:
        table.focus()
        await pilot.press("down", "down")

    assert snap_compare(Gallery(table), terminal_size=size, run_before=prepare)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("wrap", [False, True])
def test_log_view(snap_compare: Snapshot, size: tuple[int, int], wrap: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TZ", "UTC")
    time.tzset()
    view = LogView()

    async def prepare(pilot: Pilot[None]) -> None:
        view.wrap = wrap
        await pilot.pause()
        view.extend(
            LogLine(1e9 + n, LEVELS[n % 4], "engine", f"line {n} [b] \x1b[31mred\x1b[0m \x00 " + "long " * (n % 5 * 10))
            for n in range(60)
        )
        await pilot.pause()

    assert snap_compare(Gallery(view), terminal_size=size, run_before=prepare)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("kind", ["live", "old", "failed"])
def test_chat(snap_compare: Snapshot, size: tuple[int, int], kind: str) -> None:
    reply = AssistantMessage(
        "## Title\n\nSome **bold** [1] and `code`.\n\n- one\n- two\n\n```python\nprint('hi')\n```\n"
    )
    prompt = PromptArea(placeholder="Ask [something]")
    prompt.cursor_blink = False

    async def prepare(pilot: Pilot[None]) -> None:
        stats = ReplyStats(0.082, 0.031, 31.2, 412)
        await reply.finish(stats, "failed" if kind == "failed" else "length", "The engine stopped; send it again.")
        if kind == "old":
            await reply.collapse()
        await pilot.pause()

    gallery = Gallery(UserMessage("What is [b]this[/b]?"), reply, prompt)
    assert snap_compare(gallery, terminal_size=size, run_before=prepare)
