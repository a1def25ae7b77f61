"""Splits the device's time, and what it costs, over the requests it worked for.

Every second since the meter was made is in exactly one part of the bill, so the parts add up to hours × price by
construction. What requests are charged is estimated by their share of the work; the sum is not.
"""

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.api.figures import BILL_PARTS, Bill, BillPart
from engine_host.flight.layout import LEFT, PREEMPTED, SHARE
from engine_host.telemetry.accounts import Account
from engine_host.telemetry.split import NOTHING, Spent, Split, split_steps
from engine_host.telemetry.work import BY_TOKENS, Floats, WorkModel

KEPT = 10_000
"""Accounts kept, of requests that have left and that nobody asks for any more."""

AT_ONCE = 256
"""Steps taken apart together: after a pause of the host there may be thousands, and what is needed for that grows with
steps times requests."""


@dataclass(frozen=True)
class Rate:
    """What all devices together cost. `usd_per_device_hour` is `None` without a price; `watts` what they draw now, and
    `usd_per_kwh` what that costs, both `None` if it isn't known or isn't paid for."""

    devices: int = 1
    usd_per_device_hour: float | None = None
    source: str = "no price set"
    estimated: bool = False
    watts: float | None = None
    usd_per_kwh: float | None = None

    @property
    def energy(self) -> float | None:
        """USD a second for energy."""
        if self.watts is None or self.usd_per_kwh is None:
            return None
        return self.watts / 1000 * self.usd_per_kwh / 3600

    @property
    def usd_per_s(self) -> float | None:
        """USD a second, with energy where that is known."""
        if self.usd_per_device_hour is None:
            return None
        return self.devices * self.usd_per_device_hour / 3600 + (self.energy or 0.0)


@dataclass(frozen=True)
class Fed:
    """What one call of `feed` booked: seconds by part up to the monotonic time `until`, and the phases' work."""

    until: float
    seconds: dict[BillPart, float]
    prefill: Spent
    decode: Spent


class CostMeter:
    """Feed it the flight record's new rows a few times a second. Times are monotonic seconds, `wall` is Unix time.

    `memory_share` is the share of a step's cost that goes by the pages held; `peaks` are the device's FLOP/s and
    bytes/s, `None` if unknown: they only weigh prefill against decode in steps that hold both.
    """

    def __init__(self, now: float, wall: float) -> None:
        self.work: WorkModel = BY_TOKENS
        self.peaks: tuple[float, float] | None = None
        self.memory_share = 0.2
        self.block_size = 1
        self.rate = Rate()
        self._since = wall
        self._until = now
        self._alive = False
        self._busy = False
        self._engine = self._step = 0
        self._seconds: dict[BillPart, float] = dict.fromkeys(BILL_PARTS, 0.0)
        self._usd: dict[BillPart, float] = dict.fromkeys(BILL_PARTS, 0.0)
        self._device_s = self._priced_s = 0.0
        self._energy_usd: float | None = None
        self._accounts: OrderedDict[str, Account] = OrderedDict()
        self._serials: dict[int, Account] = {}
        self._pages: dict[int, int] = {}
        self._waiting = np.empty(0, SHARE)
        self._prefill_usd = 0.0
        self._prefill_tokens = 0

    # The engine's life.

    def engine_up(self, now: float, block_size: int, work: WorkModel | None) -> None:
        """An engine runs from `now` on, with a flight record that begins anew; the time before was down."""
        self._book(now, self._gap_part())
        self._alive, self._busy, self._step = True, False, 0
        self._engine += 1
        self.block_size, self.work = block_size, work or BY_TOKENS
        self._forget_engine()

    def engine_down(self, now: float) -> None:
        """No engine runs any more: its requests have left it."""
        if self._alive:
            # A step that was under way does not come back any more.
            self._busy = self._busy or bool(len(self._waiting))
            self._book(now, self._gap_part())
        self._alive = self._busy = False
        self._forget_engine()

    # Its steps.

    def feed(self, steps: NDArray[Any], shares: NDArray[Any], name: Callable[[int], str | None], now: float) -> Fed:
        """Book the time up to the last of these steps, and up to `now` where nothing is being computed.

        `steps` are rows that follow those fed before, `shares` likewise, read after the steps were, so that all of
        theirs are there; `now` is from before both. `name` tells the request of a serial.
        """
        before = dict(self._seconds)
        shares = np.concatenate([self._waiting, shares])
        # At once: who is being computed for the first time has not left yet.
        self._open(np.unique(shares["serial"]).tolist(), name)
        spent = [NOTHING, NOTHING]
        for at in range(0, len(steps), AT_ONCE):
            some = steps[at : at + AT_ONCE]
            self._step = int(some["number"][-1])
            settled = shares["step"] <= self._step
            found = self._book_steps(some, shares[settled])
            spent = [each + more for each, more in zip(spent, found, strict=True)]
            self._leave(shares["serial"][settled & (shares["kind"] == LEFT)].tolist())
            shares = shares[~settled]
        # Said since, of steps that were booked before.
        settled = shares["step"] <= self._step
        self._preempt(shares["serial"][settled & (shares["kind"] == PREEMPTED)].tolist())
        self._leave(shares["serial"][settled & (shares["kind"] == LEFT)].tolist())
        self._waiting = shares[~settled]
        if not self._serials:
            # Whoever was left has been aborted: no step tells that.
            self._busy = False
        if not len(self._waiting):
            # Nothing is on its way through the engine.
            self._book(now, self._gap_part())
        booked = {part: self._seconds[part] - before[part] for part in BILL_PARTS}
        return Fed(self._until, booked, spent[0], spent[1])

    def lost_track(self, serials: NDArray[Any]) -> None:
        """Shares have been missed, and so who has left: only those of the later ones, `serials`, are still there."""
        self._leave(set(self._serials).difference(serials.tolist()))

    @property
    def until(self) -> float:
        """The monotonic time up to which everything is booked."""
        return self._until

    def account(self, request_id: str) -> Account | None:
        """What a request is charged so far; `None` where no step worked for it."""
        return self._accounts.get(request_id)

    def close(self, request_id: str) -> Account | None:
        """The account of a request that has ended, which is forgotten."""
        return self._accounts.pop(request_id, None)

    def settled(self, request_id: str) -> bool:
        """Whether nothing more will be charged to a request that has ended."""
        account = self._accounts.get(request_id)
        return account is None or not account.open

    def saved_usd(self, cached_tokens: int) -> float | None:
        """Estimate: what so many tokens would have cost to compute, by what prompt tokens cost since the start."""
        return cached_tokens * self._prefill_usd / self._prefill_tokens if self._prefill_usd else None

    def bill(self) -> Bill:
        """What all time up to the last booking cost, and where it went."""
        priced = self._priced_s > 0
        return Bill(
            since=self._since,
            devices=self.rate.devices,
            device_s=self._device_s,
            seconds=dict(self._seconds),
            usd_per_device_hour=self.rate.usd_per_device_hour,
            price_source=self.rate.source,
            estimated=self.rate.estimated,
            usd=dict(self._usd) if priced else None,
            energy_usd=self._energy_usd,
            total_usd=math.fsum(self._usd.values()) if priced else None,
            priced_s=self._priced_s,
        )

    # Booking.

    def _gap_part(self) -> BillPart:
        if not self._alive:
            return "down"
        return "io" if self._busy else "idle"

    def _book(self, until: float, part: BillPart) -> float:
        """Put the time up to `until` into one part; returns the seconds it was."""
        seconds = max(0.0, until - self._until)
        self._put(part, seconds)
        self._until = max(self._until, until)
        return seconds

    def _put(self, part: BillPart, seconds: float) -> None:
        devices, rate = self.rate.devices, self.rate.usd_per_s
        self._seconds[part] += seconds * devices
        self._device_s += seconds * devices
        if rate is not None:
            self._usd[part] += seconds * rate
            self._priced_s += seconds * devices
            if (energy := self.rate.energy) is not None:
                self._energy_usd = (self._energy_usd or 0.0) + seconds * energy

    def _book_steps(self, steps: NDArray[Any], shares: NDArray[Any]) -> tuple[Spent, Spent]:
        columns = (steps[name].tolist() for name in ("time", "schedule", "execute", "update", "running", "waiting"))
        worked = np.array([self._worked(*row) for row in zip(*columns, strict=True)])
        serials = np.unique(np.concatenate([shares["serial"], np.fromiter(self._pages, np.uint32, len(self._pages))]))
        held = np.array([self._pages.get(serial, 0) for serial in serials.tolist()], np.float64)
        split = split_steps(
            steps, shares, worked, serials, held, self.work, self.peaks, self.memory_share, self.block_size
        )
        self._pages.update(zip(serials.tolist(), split.pages_after.astype(int).tolist(), strict=True))
        parts: tuple[tuple[BillPart, Floats], ...] = (
            ("prefill", split.prefill),
            ("decode", split.decode),
            ("memory", split.memory),
        )
        for part, seconds in parts:
            self._put(part, float(seconds.sum()))
        self._charge(split, self.rate.usd_per_s, self.rate.devices)
        return split.spent

    def _worked(
        self, began: float, schedule: float, execute: float, update: float, running: int, waiting: int
    ) -> float:
        """Book what comes before the execution of a step and beside it; returns the seconds of its execution."""
        ended = began + schedule + execute + update
        if began > self._until:
            self._book(began, self._gap_part())
        own = max(0.0, ended - self._until)
        # With asynchronous scheduling this step was chosen while the one before was computed: that is not lost.
        chosen = min(own, max(0.0, began + schedule - self._until) + update)
        self._put("scheduling", chosen)
        self._until = max(self._until, ended)
        self._busy = bool(running + waiting)
        return own - chosen

    def _charge(self, split: Split, rate: float | None, devices: int) -> None:
        """Add what the requests of these steps cost to their accounts."""
        for serial, began, *numbers in zip(
            split.serials.tolist(),
            split.prompt_step_began.tolist(),
            split.steps.tolist(),
            split.first_step.tolist(),
            split.last_step.tolist(),
            split.answered.tolist(),
            split.computed.astype(int).tolist(),
            split.preemptions.tolist(),
            split.pages_peak.astype(int).tolist(),
            strict=True,
        ):
            steps, first, last, answered, computed, preemptions, pages = numbers
            account = self._serials[serial]
            if rate is not None:
                self._prefill_tokens += computed
            account.computed += computed
            account.preemptions += preemptions
            account.pages_peak = max(account.pages_peak, pages)
            if steps:
                if account.engine != self._engine:
                    # This one counts its steps anew.
                    account.engine, account.first_step, account.last_step = self._engine, first, 0
                account.steps += steps
                account.last_step = max(account.last_step or 0, last)
            # Not a number where there was none; after its first token it may be carried to another engine, whose
            # prompt that token is part of.
            if began == began and not account.answered:
                account.prompt_step_began = began
            account.answered = account.answered or answered
        for part, seconds in enumerate((split.prefill_s, split.decode_s, split.memory_s)):
            for serial, spent in zip(split.serials.tolist(), seconds.tolist(), strict=True):
                account = self._serials[serial]
                account.seconds[part] += spent * devices
                if rate is not None:
                    account.usd[part] += spent * rate
                else:
                    account.unpriced += spent * devices
        if rate is not None:
            self._prefill_usd += float(split.prefill_s.sum()) * rate

    def _open(self, serials: Iterable[int], name: Callable[[int], str | None]) -> None:
        for serial in serials:
            if serial in self._serials:
                continue
            request_id = name(serial)
            account = self._accounts.setdefault(request_id, Account()) if request_id is not None else Account()
            account.open += 1
            self._serials[serial] = account
        while len(self._accounts) > KEPT:
            oldest = next((each for each, account in self._accounts.items() if not account.open), None)
            if oldest is None:
                break
            del self._accounts[oldest]

    def _preempt(self, serials: Iterable[int]) -> None:
        for serial in serials:
            self._pages[serial] = 0
            self._serials[serial].preemptions += 1

    def _leave(self, serials: Iterable[int]) -> None:
        for serial in serials:
            self._pages.pop(serial, None)
            account = self._serials.pop(serial, None)
            if account is not None:
                account.open -= 1

    def _forget_engine(self) -> None:
        self._leave(tuple(self._serials))
        self._waiting = np.empty(0, SHARE)
