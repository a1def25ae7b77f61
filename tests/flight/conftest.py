"""Recorded schedulers without an engine, on a clock that tests move."""

import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from engine_host.api.flight import FlightReader

BARE_SETTINGS = {"engine_id": 3, "snapshot_hz": 10}


class Clock:
    """Monotonic seconds, standing still until moved; timers wait to be fired by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def timer(self, wait: float, action: Callable[[], None]) -> Any:
        """Stands for `threading.Timer`."""
        self.timers.append((wait, action))
        return SimpleNamespace(start=lambda: None, cancel=self.timers.clear)

    def fire(self) -> None:
        """Let the time of the first timer pass, and run it."""
        wait, action = self.timers.pop(0)
        self.now += wait
        action()


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

    def make(*, asynchronous: bool = False, blocks: int = 65, **arguments: Any) -> tuple[Any, FlightReader]:
        from benchmarks.bare_scheduler import bare_config, bare_scheduler
        from engine_host.engine.scheduler import RecordingAsyncScheduler, RecordingScheduler

        config = bare_config(tmp_path, **arguments)
        config.additional_config = {"llmconsole": {"flight_path": str(flight_path), **BARE_SETTINGS}}
        scheduler = bare_scheduler(RecordingAsyncScheduler if asynchronous else RecordingScheduler, config, blocks)
        return scheduler, FlightReader(flight_path)

    return make
