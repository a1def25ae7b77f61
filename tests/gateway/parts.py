"""An admission with rules that a test sets, budgets that are not asked, and an engine that is a number."""

import time
from collections.abc import Callable, Sequence
from typing import Any

from engine_host.books import RequestBook, Served
from engine_host.gateway.admission import Admission
from engine_host.gateway.budgets import Account, Grant
from engine_host.gateway.caller import Caller
from engine_host.gateway.seats import Capacity
from engine_host.gateway.ticket import Ticket
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.meter import CostMeter
from profiles.schema import Profile


class NoBudgets:
    """Grants everything; what is settled is kept."""

    def __init__(self) -> None:
        self.settled: list[tuple[int, float]] = []
        self.grants: list[Grant] = []
        self.released = 0

    async def reserve(self, accounts: Sequence[Account], tokens: int, usd: float) -> Grant:
        return Grant(tuple(accounts), tokens, usd, 0, 0)

    async def settle(self, grant: Grant, tokens: int, usd: float) -> None:
        self.settled.append((tokens, usd))
        self.grants.append(grant)

    async def release(self, grant: Grant) -> None:
        self.released += 1

    async def usage(self, account: Account) -> tuple[Any, ...]:
        return ()

    async def close(self) -> None:
        pass


def profile(**sections: Any) -> Profile:
    """A profile with these sections."""
    return Profile.model_validate({"name": "test", **sections})


def open_admission(rules: Profile | None = None, **options: Any) -> Admission:
    """An admission for tests that are about something else: everybody goes at once."""
    rules = rules or profile(gateway={"lanes": {"short_window_ms": 0.0, "throughput_window_ms": 0.0}})
    budgets = NoBudgets()
    return Admission(lambda: rules, lambda: budgets, **options)


def book(hub: TelemetryHub) -> RequestBook:
    """Books that nobody closes."""
    return RequestBook(CostMeter(0.0, 0.0), hub, lambda: Served("model", "profile"), time.monotonic, time.time)


def no_limit() -> Capacity:
    """An engine that holds as many as there are."""
    return Capacity(slots=1_000_000)


class Engine:
    """Seats whose number a test sets. Requests that are taken off leave at once; it says whether to come back."""

    def __init__(self, admission: Admission, slots: int = 4) -> None:
        self.slots = slots
        self.pages: tuple[int, int] | None = None
        self.as_of = float("inf")
        self.taken_off: list[Ticket] = []
        self.stubborn: set[str] = set()
        self.there = True
        self.when_taken: Callable[[Ticket], None] = lambda ticket: None
        admission.seats = self

    def capacity(self) -> Capacity | None:
        if not self.there:
            return None
        if self.pages is None:
            return Capacity(self.slots)
        return Capacity(self.slots, self.pages[0], self.pages[1], 16, self.as_of)

    def resumable(self, ticket: Ticket) -> bool:
        return ticket.request_id not in self.stubborn

    def take_off(self, ticket: Ticket) -> None:
        self.taken_off.append(ticket)
        self.when_taken(ticket)


def opened(admission: Admission, name: str, tier: str = "standard", **given: Any) -> Ticket:
    """A request of a tier, just come in."""
    values: dict[str, Any] = {"prompt_tokens": 10, "max_tokens": 10, "sequences": 1, "arrived": 0.0, "began": 0.0}
    key = given.pop("key", "k")
    return admission.open(name, caller=Caller(key, key), tier=tier, **{**values, **given})
