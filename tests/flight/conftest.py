"""Recorded schedulers without an engine, on a clock that tests move."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.api.flight import FlightReader
from tests.flight.clock import Clock

BARE_SETTINGS = {"engine_id": 3, "snapshot_hz": 10}


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    from engine_host.engine import recorder

    clock = Clock()
    monkeypatch.setattr(recorder, "time", clock)
    monkeypatch.setattr(recorder, "threading", SimpleNamespace(RLock=threading.RLock, Timer=clock.timer))
    return clock


@pytest.fixture
def flight_path(tmp_path: Path) -> Path:
    return tmp_path / "flight"


@pytest.fixture
def recorded(tmp_path: Path, flight_path: Path, clock: Clock) -> Callable[..., tuple[Any, FlightReader]]:
    """Makes a recorded scheduler of 64 pages and a reader of its record."""

    def make(
        *, asynchronous: bool = False, blocks: int = 65, knobs: dict[str, Any] | None = None, **arguments: Any
    ) -> tuple[Any, FlightReader]:
        from benchmarks.bare_scheduler import bare_config, bare_scheduler
        from engine_host.engine.scheduler import RecordingAsyncScheduler, RecordingScheduler

        config = bare_config(tmp_path, **arguments)
        settings = {"flight_path": str(flight_path), "knobs": knobs or {}, **BARE_SETTINGS}
        config.additional_config = {"llmconsole": settings}
        scheduler = bare_scheduler(RecordingAsyncScheduler if asynchronous else RecordingScheduler, config, blocks)
        return scheduler, FlightReader(flight_path)

    return make
