"""Runs the console on a stub host, and writes the flight records it looks at."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path

import numpy as np
from textual.pilot import Pilot
from textual.screen import Screen
from textual.widget import Widget

from console.app import ConsoleApp
from engine_host.flight.writer import FlightWriter

Console = Callable[..., AbstractAsyncContextManager[tuple[ConsoleApp, Pilot[None]]]]

OWNED = {
    "chatcmpl-7f3a91c0": range(1, 18),
    "chatcmpl-91c0aa12": range(40, 52),
    "cmpl-44e1b7d2": range(60, 118),
}
"""Blocks each request of the recorded snapshot holds. The first four are shared with an unlisted one."""


async def settle(app: ConsoleApp, pilot: Pilot[None]) -> None:
    """Wait until the app has nothing left to do; replies that the test holds back are not waited for."""
    for _ in range(2):  # what a worker brought may start another
        await pilot.pause()
        if waited_for := [worker for worker in app.workers if worker.group != "answer"]:
            await app.workers.wait_for_complete(waited_for)
    await pilot.pause()


async def each_mode(app: ConsoleApp, pilot: Pilot[None], *but: str) -> AsyncIterator[str]:
    """Go through the modes, all but those named; one app for all, as each takes a second to start."""
    for mode in sorted(app.MODES.keys() - set(but)):
        await app.switch_mode(mode)
        await settle(app, pilot)
        yield mode


def shown(widget: Widget) -> str:
    """What a one-line widget says."""
    return str(widget.render())


def screen_text(screen: Screen[object]) -> str:
    """What stands on the screen, a line a row."""
    return "\n".join(strip.text.rstrip() for strip in screen._compositor.render_strips())


def write_flight_record(path: Path, blocks: int = 513, began: float = 0.0) -> FlightWriter:
    """A record as a scheduler leaves it: three requests own pages, some are cached, two hundred steps have run,
    one a second from `began` (monotonic seconds) on."""
    writer = FlightWriter(path, engine_id=0, blocks=blocks, block_size=32, page_bytes=737_280)
    refs, cached = np.zeros(blocks, np.uint16), np.zeros(blocks, np.uint8)
    for owned in OWNED.values():
        refs[list(owned)] += 1
    refs[1:5] += 1
    cached[200:313] = 1
    writer.write_pages(refs, cached, [(f"{name}-0123abcd", list(owned)) for name, owned in OWNED.items()], 1.0)
    for step in range(200):
        prefill = 512 if step % 40 < 4 else 0
        writer.write_step(began + step, (1e-4, 2e-2, 1e-4), (prefill, 2 + step % 3), (3, 1, 0, 0), 2048, 113, 0)
    return writer
