"""What every test of the console needs: the stub host importable, and a terminal that never moves by itself."""

import os
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).parent))

# Read by Textual when it's first imported.
os.environ["TEXTUAL_ANIMATIONS"] = "none"
os.environ.pop("NO_COLOR", None)

from harness import Console, settle
from stub_host import StubHost
from textual.pilot import Pilot

from console.app import ConsoleApp
from console.settings import Settings
from console.theme import DARK

os.environ["TZ"] = "UTC"
time.tzset()


@pytest.fixture
def console() -> Console:
    """`async with console(host, mode, size) as (app, pilot)`: the console on a stub host, asking only when told."""

    @asynccontextmanager
    async def running(
        host: StubHost | None = None,
        mode: str | None = None,
        size: tuple[int, int] = (120, 40),
        settings: Settings | None = None,
        **options: Any,
    ) -> AsyncIterator[tuple[ConsoleApp, Pilot[None]]]:
        stub = host or StubHost()
        app = ConsoleApp(lambda: stub, settings or Settings(theme=DARK.name), live=False, **options)
        async with app.run_test(size=size) as pilot:
            await settle(app, pilot)
            if mode is not None:
                await app.switch_mode(mode)
                await settle(app, pilot)
            yield app, pilot

    return running
