"""What each screen looks like, at 80×24 and 120×40."""

import asyncio
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from harness import settle, write_flight_record
from stub_host import HISTORY, NOON, StubHost, failed, history, reply, snapshot, starting
from textual.pilot import Pilot
from textual.widgets import Input, TextArea

from console import status
from console.app import ConsoleApp
from console.settings import Settings
from console.theme import DARK
from engine_host.api.types import EngineState, FlightFile, LogLevel, LogRecord, Mark, PortInfo, SwapProgress
from widgets.prompt import PromptArea

SIZES = [(80, 24), (120, 40)]
REPLY = """Pages are **blocks of tokens**.

1. A request owns pages.
2. Its prefix may be shared.

```python
pages = ceil(tokens / page_tokens)
```
"""
LINES: list[tuple[LogLevel, str]] = [
    ("info", "Starting to load model smollm2"),
    ("debug", "Using uni executor"),
    ("warning", "torch.compile is [off] on CPU"),
    ("error", "Cannot bind 127.0.0.1:8000"),
]


MARKS = (
    Mark(NOON - 90, "live", "short [steps]"),
    Mark(NOON - 40, "rebuild", "balanced"),
    Mark(NOON - 12, "recovery", "recovered"),
)


def serving(tmp_path: Path) -> StubHost:
    write_flight_record(tmp_path / "flight")
    host = StubHost(snapshot(flight=(FlightFile(0, str(tmp_path / "flight")),)))
    host.points = history(110)
    host.records = [
        LogRecord(n, NOON + n, *((lambda line: (line[0], "engine", line[1]))(LINES[n % 4]))) for n in range(60)
    ]
    return host


@pytest.fixture(autouse=True)
def frozen(monkeypatch: pytest.MonkeyPatch) -> None:
    """A clock in no time zone, and a reply that always takes the same time."""
    monkeypatch.setattr(status, "clock_text", lambda snapshot: "12:00:00")
    monkeypatch.setattr("console.screens.base.clock_text", lambda snapshot: "12:00:00")


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize(
    "screen", ["overview", "marks", "paused", "chat", "log", "starting", "failed", "port", "help", "quit"]
)
def test_screen(
    snap_compare: Callable[..., bool],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    screen: str,
    size: tuple[int, int],
) -> None:
    host = serving(tmp_path)
    if screen == "marks":
        monkeypatch.setattr("console.flight_feed._unix_of_monotonic", lambda: NOON - 200)
        host.now = msgspec.structs.replace(host.now, marks=MARKS)
    if screen == "paused":
        monkeypatch.setattr("console.flight_feed._unix_of_monotonic", lambda: NOON - 200)
        host.minutes = [
            msgspec.structs.replace(each, time=NOON - 60 * (110 - n), span_s=60.0)
            for n, each in enumerate(history(110))
            if not 50 < n < 65
        ]
    if screen in ("starting", "port"):
        host.now = starting()
    if screen == "port":
        host.now = snapshot(
            port=PortInfo("127.0.0.1", 8000, False, "Port 8000 is taken by another process (pid 4312).")
        )
    if screen == "failed":
        host.now = failed(
            "The KV cache needs 9.0 GB for a context of 131 072 tokens; 2.1 GB are free.",
            "Choose a profile with a shorter context, or a smaller model.",
        )
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False, clock=lambda: 0.0)

    async def arrange(pilot: Pilot[None]) -> None:
        await settle(app, pilot)
        for area in app.query(TextArea):
            area.cursor_blink = False
        if screen == "chat":
            host.script = [reply(REPLY, tokens=61), [asyncio.Event()]]
            await pilot.press("2")
            await settle(app, pilot)
            app.screen.session._clock = lambda: 0.0  # type: ignore[attr-defined]
            prompt = app.screen.query_one(PromptArea)
            prompt.cursor_blink = False
            prompt.text = "What is a page?"
            await pilot.press("enter")
            await pilot.pause()
            await app.workers.wait_for_complete()
        elif screen == "log":
            await pilot.press("3")
        elif screen == "paused":
            await pilot.press("minus", "minus", "minus", "minus", "left")
            await app.poll()
        elif screen in ("help", "quit"):
            await pilot.press({"help": "question_mark", "quit": "q"}[screen])
        await settle(app, pilot)
        app.clear_notifications()
        await pilot.pause()

    assert snap_compare(app, terminal_size=size, run_before=arrange)


@pytest.mark.parametrize("size", SIZES, ids=lambda size: f"{size[0]}x{size[1]}")
@pytest.mark.parametrize("shows", ["diff", "refused", "apply", "progress", "history"])
def test_profiles(snap_compare: Callable[..., bool], shows: str, size: tuple[int, int]) -> None:
    host = StubHost()
    host.change_records = list(HISTORY)
    if shows == "progress":
        swap = SwapProgress(4, "draining", "balanced", NOON - 4.2, waiting_for=3, held=2, cancellable=True)
        host.now = snapshot(state=EngineState("swapping", NOON - 4.2), swap=swap)
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False)
    keys = {"diff": "uu", "refused": "dd", "apply": "uua", "progress": "", "history": "h"}[shows]

    async def arrange(pilot: Pilot[None]) -> None:
        await settle(app, pilot)
        await pilot.press("4")
        await settle(app, pilot)
        for key in keys:
            await pilot.press({"u": "up", "d": "down"}.get(key, key))
            await settle(app, pilot)
        for field in app.screen.query(Input):
            field.cursor_blink = False
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=arrange)
