"""What the engines do is read from their flight records and charged, whenever they come and go."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_host.api.flight import FlightReader
from engine_host.flight.layout import DECODE, LEFT, NAME_SLOTS, PREFILL
from engine_host.flight.writer import FlightWriter
from engine_host.telemetry.accounting import Accounting, EngineFacts
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.meter import Rate
from engine_host.telemetry.peaks import Peaks


class Room:
    """The accounting, on a clock moved by hand, at 3.6 USD a device-hour. Engines write their records to `folder`."""

    def __init__(self, folder: Path) -> None:
        self.now = 100.0
        self.asked: list[int] = []
        self.memory_share = 0.0
        self._folder = folder
        self.hub = TelemetryHub(clock=lambda: self.now, wall=lambda: self.now)
        self.accounting = Accounting(
            self.hub, self._rate, lambda: self.memory_share, lambda: self.now, lambda: self.now
        )
        self.meter = self.accounting.meter

    def _rate(self, devices: int) -> Rate:
        self.asked.append(devices)
        return Rate(devices, 3.6)

    def engine(self) -> tuple[FlightWriter, FlightReader]:
        path = self._folder / "flight"
        writer = FlightWriter(path, engine_id=0, blocks=9, block_size=16, page_bytes=None)
        writer._views.header["created"] = self.now
        reader = FlightReader(path)
        path.unlink()
        return writer, reader

    def tick(self, flight: FlightReader | None, now: float, devices: int = 1) -> None:
        self.now = now
        self.accounting.tick(EngineFacts(flight, devices=devices))

    def charged(self, request: str) -> float | None:
        account = self.meter.account(request)
        return round(sum(account.seconds), 6) if account is not None else None

    def parts(self) -> dict[str, float]:
        return {name: round(value, 6) for name, value in self.accounting.bill().seconds.items() if value}


@pytest.fixture
def room(tmp_path: Path) -> Room:
    return Room(tmp_path)


def begin(writer: FlightWriter, number: int, serial: int, kind: int = PREFILL) -> None:
    if kind == PREFILL:
        writer.write_name(serial, f"r{serial}-01234567", 5)
    writer.write_shares(number, (serial,), (kind,), (1,), (5,))


def come_back(writer: FlightWriter, began: float, seconds: float, running: int = 1) -> None:
    writer.write_step(began, (0.0, seconds, 0.0), (1, 0), (running, 0, 0, 0), 8, 0, 0)


def between(monkeypatch: pytest.MonkeyPatch, name: str, action: Callable[[], None]) -> None:
    """Once, right after the reader's method `name` has read."""
    inner = getattr(FlightReader, name)

    def read(*args: Any) -> Any:
        found = inner(*args)
        monkeypatch.setattr(FlightReader, name, inner)
        action()
        return found

    monkeypatch.setattr(FlightReader, name, read)


@pytest.mark.parametrize("first", ["read_steps", "read_shares"])
def test_a_step_that_comes_while_the_record_is_read_is_charged(
    room: Room, monkeypatch: pytest.MonkeyPatch, first: str
) -> None:
    writer, reader = room.engine()
    room.tick(reader, 100.0)

    def at_once() -> None:
        begin(writer, 1, 1)
        come_back(writer, 100.5, 1.0)

    between(monkeypatch, first, at_once)
    room.tick(reader, 100.5)
    room.tick(reader, 102.0)
    assert room.charged("r1") == 1.0
    assert room.accounting.bill().device_s == 2.0


def test_what_an_engine_did_before_it_was_taken_away_is_charged(room: Room) -> None:
    writer, reader = room.engine()
    room.tick(reader, 100.0)
    begin(writer, 1, 1)
    come_back(writer, 100.0, 1.0)
    room.tick(None, 101.5)
    assert room.charged("r1") == 1.0
    assert room.meter.settled("r1")
    room.tick(None, 105.0)
    assert room.parts() == {"prefill": 1.0, "io": 0.5, "down": 3.5}


def test_what_an_engine_did_before_it_was_shown_is_charged(room: Room) -> None:
    room.tick(None, 102.0)
    room.now = 103.0
    writer, reader = room.engine()
    begin(writer, 1, 1)
    come_back(writer, 104.0, 1.0)
    room.tick(reader, 106.0)
    assert room.charged("r1") == 1.0
    assert room.parts() == {"down": 3.0, "idle": 1.0, "prefill": 1.0, "io": 1.0}


def test_a_request_that_came_too_long_ago_is_nobody_and_not_somebody_else(room: Room) -> None:
    writer, reader = room.engine()
    room.tick(reader, 100.0)
    begin(writer, 1, 1)
    writer.write_name(1 + NAME_SLOTS, "later-01234567", 5)
    come_back(writer, 100.0, 1.0)
    room.tick(reader, 101.0)
    assert (room.charged("r1"), room.charged("later")) == (None, None)
    assert room.parts() == {"prefill": 1.0}


def test_a_clock_that_was_set_back_books_nothing_ahead(room: Room) -> None:
    room.now = 200.0
    _, reader = room.engine()
    room.tick(reader, 110.0)
    assert room.accounting.bill().device_s == 10.0


def test_another_engine_between_two_looks_has_its_own_requests(room: Room) -> None:
    old, first = room.engine()
    room.tick(first, 100.0)
    begin(old, 1, 1)
    come_back(old, 100.0, 1.0)
    begin(old, 2, 1, DECODE)  # never comes back
    room.now = 102.0
    new, second = room.engine()
    new.write_name(1, "other-01234567", 5)
    new.write_shares(1, (1,), (PREFILL,), (1,), (5,))
    come_back(new, 103.0, 0.5)
    room.tick(second, 103.0)
    room.tick(second, 104.0)
    assert room.charged("r1") == 1.0
    assert room.charged("other") == 0.5
    assert room.accounting.bill().device_s == 4.0


def test_a_record_that_can_t_be_read_to_its_end_holds_up_no_other(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    old, first = room.engine()
    room.tick(first, 100.0)
    begin(old, 1, 1)
    come_back(old, 100.0, 1.0)
    new, second = room.engine()
    begin(new, 1, 2)
    come_back(new, 102.0, 1.0)

    def broken() -> None:
        raise ValueError("torn")

    between(monkeypatch, "read_steps", broken)
    with pytest.raises(ValueError, match="torn"):
        room.tick(second, 103.0)
    room.tick(second, 103.25)
    assert room.charged("r2") is not None
    assert room.accounting.bill().device_s == 3.25


def test_the_devices_of_an_engine_are_paid_for_until_the_next_one(room: Room) -> None:
    _, reader = room.engine()
    room.tick(reader, 101.0, devices=4)
    room.tick(None, 102.0)
    room.tick(None, 103.0)
    assert room.asked == [4, 4, 4]
    assert room.accounting.bill().device_s == 12.0


def test_one_peak_alone_weighs_nothing(room: Room) -> None:
    writer, reader = room.engine()
    room.now = 101.0
    begin(writer, 1, 1)
    come_back(writer, 100.0, 1.0)
    for peaks in (Peaks(1.0, None, ""), Peaks(None, 1.0, "")):
        room.accounting.tick(EngineFacts(reader, peaks=peaks))
        assert room.meter.peaks is None
    room.accounting.tick(EngineFacts(reader, peaks=Peaks(1.0, 2.0, "")))
    assert room.meter.peaks == (1.0, 2.0)
    assert room.charged("r1") == 1.0


def test_what_is_paid_for_and_what_it_is_for_are_told_the_hub(room: Room) -> None:
    writer, reader = room.engine()
    room.memory_share = 0.5
    room.tick(reader, 100.0, devices=2)
    begin(writer, 1, 1)
    come_back(writer, 100.0, 1.0)
    room.tick(reader, 104.0, devices=2)
    levels = room.hub._levels
    assert (levels.usd_per_hour, levels.attributed) == (7.2, 0.25)
    assert room.accounting.step_figures().effective_utilization == 0.25
    assert room.accounting.roofline().decode.why == "vLLM has no estimate of this model's work."


def test_a_recorder_that_has_ended_holds_up_nothing(room: Room) -> None:
    writer, reader = room.engine()
    room.tick(reader, 100.0)
    begin(writer, 1, 1)
    writer.stop()
    room.tick(reader, 101.0)
    room.tick(reader, 103.0)
    assert room.meter.settled("r1")
    assert room.accounting.bill().device_s == 3.0


def test_who_left_while_nobody_looked_for_too_long_is_gone(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = room.engine()
    room.tick(reader, 100.0)
    begin(writer, 1, 1)
    begin(writer, 1, 2)
    come_back(writer, 100.0, 1.0, running=2)
    room.tick(reader, 101.0)
    writer.write_shares(1, (1,), (LEFT,), (0,), (0,))
    many = 1 << 18
    writer.write_shares(2, [2] * many, [DECODE] * many, [1] * many, [6] * many)
    room.tick(reader, 101.25)
    assert (room.meter.settled("r1"), room.meter.settled("r2")) == (True, False)


def test_a_step_that_is_overwritten_while_it_is_read_is_left_out(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    writer, reader = room.engine()
    for _ in range(5000):
        come_back(writer, 1.0, 1.0)
    arange = np.arange

    def during(*args: Any) -> Any:
        for _ in range(10):
            come_back(writer, 1.0, 1.0)
        return arange(*args)

    monkeypatch.setattr("engine_host.api.flight.np.arange", during)
    numbers = reader.read_steps(7).rows["number"]
    assert numbers.tolist() == list(range(5010 - 4096 + 2, 5001))
