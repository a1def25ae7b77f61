"""Recorded schedulers without an engine, and one real engine."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from engine_host.api.flight import FlightReader


@pytest.fixture
def flight_path(tmp_path: Path) -> Path:
    return tmp_path / "flight"


@pytest.fixture
def recorded(tmp_path: Path, flight_path: Path) -> Callable[..., tuple[Any, FlightReader]]:
    """Makes a recorded scheduler and a reader of its record."""

    def make(*, asynchronous: bool = False, blocks: int = 65, **arguments: Any) -> tuple[Any, FlightReader]:
        from benchmarks.bare_scheduler import bare_config, bare_scheduler
        from engine_host.engine.scheduler import RecordingAsyncScheduler, RecordingScheduler

        config = bare_config(tmp_path, **arguments)
        settings = {"flight_path": str(flight_path), "engine_id": 3, "snapshot_hz": 10}
        config.additional_config = {"llmconsole": settings}
        scheduler = bare_scheduler(RecordingAsyncScheduler if asynchronous else RecordingScheduler, config, blocks)
        return scheduler, FlightReader(flight_path)

    return make
