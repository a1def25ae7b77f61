"""The parts of what is measured, put together: what a fault in one leaves of the others, and what is charged."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from engine_host.books import Served
from engine_host.gateway.caller import ANONYMOUS
from engine_host.gateway.ticket import Ticket
from engine_host.logs.ring import LogRing
from engine_host.measuring import Measuring
from engine_host.telemetry.accounting import EngineFacts
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import TelemetryHub
from profiles.schema import Profile


class Sampler(DeviceSampler):
    """Reads nothing; each device draws 100 W."""

    def watts(self, devices: int | None = None) -> float | None:
        return 100.0 * (devices or 99)


class Place:
    """What is measured of a host at 3.6 USD a device-hour, without an engine."""

    def __init__(self, folder: Path) -> None:
        rules = Profile.model_validate({"name": "day", "cost": {"usd_per_hour": 3.6, "usd_per_kwh": 1.0}})
        self.facts = EngineFacts(devices=2)
        self.broken = False
        self.measuring = Measuring(
            TelemetryHub(),
            Sampler(kind="cpu"),
            LogRing(),
            folder,
            lambda: rules,
            lambda: Served("m", "day"),
            self._facts,
        )

    def _facts(self) -> EngineFacts:
        if self.broken:
            raise RuntimeError("broken")
        return self.facts

    def ended(self, name: str) -> Ticket:
        ticket = Ticket(name, ANONYMOUS, "standard", "short", 8, 9, 0.0)
        self.measuring.book.ended(ticket, "abort", None, None)
        return ticket


@pytest.fixture
def place(tmp_path: Path) -> Any:
    made = Place(tmp_path)
    made.measuring.start()
    yield made
    made.measuring.close()


def test_only_the_engine_s_devices_are_paid_for(place: Place) -> None:
    place.measuring.tick()
    rate = place.measuring.accounting.meter.rate
    assert (rate.devices, rate.watts, rate.source) == (2, 200.0, "profile day")


def test_books_are_closed_though_the_record_can_t_be_read(place: Place) -> None:
    place.broken = True
    place.ended("r")
    for _ in range(2):
        with pytest.raises(RuntimeError, match="broken"):
            place.measuring.tick()
    assert [each.id for each in place.measuring.lately] == ["r"]


async def test_nobody_waits_for_a_cost_after_the_end_whatever_is_broken(place: Place) -> None:
    asked = asyncio.ensure_future(place.measuring.book.cost_of(place.ended("r")))
    await asyncio.sleep(0)
    place.broken = True
    with pytest.raises(RuntimeError, match="broken"):
        place.measuring.finish()
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert asked.done()
    assert [each.id for each in place.measuring.lately] == ["r"]
