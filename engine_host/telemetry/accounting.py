"""Reads the flight record a few times a second, and tells everybody what the steps did and what they cost."""

import time
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.api.figures import Bill, Roofline, StepFigures
from engine_host.api.flight import FlightReader
from engine_host.flight.layout import SHARE, STEP
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.meter import CostMeter, Rate
from engine_host.telemetry.peaks import Peaks
from engine_host.telemetry.roofline import RooflineWindow
from engine_host.telemetry.steps import StepWindow
from engine_host.telemetry.work import WorkModel


@dataclass(frozen=True)
class EngineFacts:
    """What is known of the engine that runs: its flight record, the estimate of its model's work (`None` if there is
    none), the devices it is on, and their peaks in the model's data type."""

    flight: FlightReader | None = None
    work: WorkModel | None = None
    devices: int = 1
    peaks: Peaks | None = None


class Accounting:
    """The meter, the roofline and the figures of the steps, fed from one reading of the flight record.

    `rate` is asked at each `tick` what the devices cost. `clock` is `time.monotonic`, `wall` Unix time.
    """

    def __init__(
        self,
        hub: TelemetryHub,
        rate: Callable[[int], Rate],
        memory_share: Callable[[], float],
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.meter = CostMeter(clock(), wall())
        self.steps = StepWindow(clock())
        self._hub = hub
        self._rate = rate
        self._memory_share = memory_share
        self._clock = clock
        self._wall = wall
        self._roofline = RooflineWindow()
        self._facts = EngineFacts()
        self._devices = 1
        self._step = self._share = 0

    def tick(self, facts: EngineFacts) -> None:
        """Take in what happened since the last call. Call it a few times a second, on the event loop."""
        now, meter = self._clock(), self.meter
        if facts.flight is not None and facts.flight.stopped:
            # Nobody tells what this engine does any more.
            facts = replace(facts, flight=None)
        if facts.flight is not self._facts.flight:
            self._change_engine(facts, now)
        self._facts = facts
        # While there is no engine, its devices wait for the next one.
        self._devices = facts.devices if facts.flight is not None else max(facts.devices, self._devices)
        meter.rate, meter.memory_share = self._rate(self._devices), self._memory_share()
        peaks = facts.peaks
        meter.peaks = (peaks.flops, peaks.bandwidth) if peaks and peaks.flops and peaks.bandwidth else None
        self._read(now)

    def _change_engine(self, facts: EngineFacts, now: float) -> None:
        if self._facts.flight is not None:
            try:
                # Its record outlives it, with what it did since the last look.
                self._read(now)
            finally:
                self.meter.engine_down(now)
                self._facts = EngineFacts()
        self._step = self._share = 0
        if facts.flight is not None:
            # It may have begun to work before it was shown to anybody.
            age = max(0.0, self._wall() - facts.flight.header.created)
            self.meter.engine_up(now - age, facts.flight.header.block_size, facts.work)

    def _read(self, now: float) -> None:
        facts, meter = self._facts, self.meter
        steps, shares = np.empty(0, STEP), np.empty(0, SHARE)
        if facts.flight is not None:
            # The steps first: what was told of them is there by then.
            steps = facts.flight.read_steps(self._step).rows
            found = facts.flight.read_shares(self._share)
            shares, self._share = found.rows, found.end
            if found.missed:
                meter.lost_track(shares["serial"])
        if len(steps):
            self._step = int(steps["number"][-1])
            self._tell_steps(steps)
        fed = meter.feed(steps, shares, facts.flight.request_of if facts.flight is not None else _nobody, now)
        self._roofline.add(fed)
        worked = fed.seconds["prefill"] + fed.seconds["decode"] + fed.seconds["memory"]
        self.steps.busy(worked / self._devices, fed.until)
        booked = sum(fed.seconds.values())
        usd = meter.rate.usd_per_s
        if booked:
            self._hub.cost_levels(usd * 3600 if usd is not None else None, worked / booked)

    def bill(self) -> Bill:
        """What all of the host's time cost."""
        return self.meter.bill()

    def roofline(self) -> Roofline:
        """Both phases against the device's peaks."""
        facts = self._facts
        return self._roofline.figures(self._clock(), facts.peaks, known=facts.work is not None, devices=self._devices)

    def step_figures(self) -> StepFigures:
        """The steps of the last minute."""
        return self.steps.figures(self._clock())

    def _tell_steps(self, steps: NDArray[Any]) -> None:
        self.steps.feed(steps)
        columns = (steps[name].tolist() for name in ("prefill", "decode", "time", "budget", "preempted"))
        for prefill, decode, at, budget, preempted in zip(*columns, strict=True):
            self._hub.steps(prefill, decode, at, budget=budget, preempted=preempted)


def _nobody(_: int) -> None:
    return None
