"""The engine as far as letting requests in needs it, and the room that is left in it for whom."""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

from engine_host.gateway.queue import AdmissionQueue, Room
from engine_host.gateway.ticket import Ticket
from profiles.schema import Profile

AHEAD = 16
"""One request more than the engine runs is let in for each so many that it runs, and one in any case: who waits in
the engine itself takes a place that falls free in the same step, without a round trip to here."""

MAX_ASIDE = 4
"""Most requests set aside for the pages of one."""


@dataclass(frozen=True, slots=True)
class Capacity:
    """What the engine can hold: requests at once, KV pages in all and free, as reported at `as_of`; `None`: unknown."""

    slots: int
    pages: int | None = None
    free_pages: int | None = None
    page_tokens: int = 16
    as_of: float = 0.0


class Seats(Protocol):
    """The engine, as far as letting requests in needs it."""

    def capacity(self) -> Capacity | None:
        """What it can hold now; `None` while there is none."""

    def resumable(self, ticket: Ticket) -> bool:
        """Whether the request can be set aside now and go on later with nothing lost."""

    def take_off(self, ticket: Ticket) -> None:
        """Begin to take a request off the engine; it finds out by itself what becomes of it."""


class NoSeats:
    """No engine, yet."""

    def capacity(self) -> Capacity | None:
        """There is none."""
        return None

    def resumable(self, ticket: Ticket) -> bool:
        """Nothing runs."""
        return False

    def take_off(self, ticket: Ticket) -> None:
        """Nothing to be taken off."""


class Places:
    """What is left in the engine beside those that `queue` has let in, by the rules in force."""

    def __init__(self, rules: Callable[[], Profile], queue: AdmissionQueue) -> None:
        self._profile = rules
        self._queue = queue

    def room(self, capacity: Capacity) -> Room:
        """What is left in the engine."""
        slots = capacity.slots + _ahead(capacity) - self._queue.seated
        room = Room(slots, page_tokens=capacity.page_tokens)
        if capacity.free_pages is None or capacity.pages is None:
            return room
        pages = capacity.free_pages
        for each in reversed(self._queue.inside):
            if each.admitted is None or each.admitted <= capacity.as_of:
                break
            pages -= room.pages_of(each)
        return Room(slots, pages, capacity.page_tokens)

    def fits(self, ticket: Ticket, room: Room, capacity: Capacity) -> bool:
        """Whether a request may begin in what is left, without what is kept for the tier of highest weight.

        An empty engine takes anything: what doesn't fit there never would.
        """
        if not self._queue.inside:
            return True
        reserve, tops = self._profile().gateway.lanes.reserve, self._tops()
        if not reserve or ticket.tier in tops:
            return room.holds(ticket)
        kept = math.ceil(capacity.slots * reserve) - sum(self._queue.seated_in(tier) for tier in tops)
        slots = room.slots - (kept + _ahead(capacity) if kept > 0 else 0)
        pages = room.pages
        if pages is not None and capacity.pages is not None:
            held = sum(room.pages_of(each) for each in self._queue.inside if each.tier in tops)
            pages -= max(math.ceil(capacity.pages * reserve) - held, 0)
        return Room(slots, pages, room.page_tokens).holds(ticket)

    def of_the_top(self, room: Room, capacity: Capacity, now: float) -> Ticket | None:
        """A request of the tiers of highest weight that fits into what is left."""
        firsts = [ticket for tier in self._tops() if (ticket := self._queue.first_of(tier, now)) is not None]
        return next((ticket for ticket in firsts if self.fits(ticket, room, capacity)), None)

    def lower(self, name: str) -> set[str]:
        """The tiers whose requests may be set aside for one of this tier."""
        tiers, weight = self._profile().tiers, self._profile().tiers[name].weight
        return {
            other
            for other, tier in tiers.items()
            if tier.preemptible
            and tier.weight < weight
            and self._queue.active(other)
            and self._queue.ahead_of_its_share(other, name)
        }

    def victims(
        self, tiers: set[str], slots: int, pages: int, room: Room, spared: Callable[[Ticket], bool]
    ) -> list[Ticket]:
        """The youngest requests of these tiers, not `spared`, whose places and pages are enough; none where not."""
        found: list[Ticket] = []
        for each in reversed(self._queue.inside):
            if each.tier not in tiers or each.first_token is None or each.refusal is not None:
                continue
            if spared(each):
                continue
            found.append(each)
            slots -= each.sequences
            pages -= room.pages_of(each)
            if slots <= 0 and pages <= 0:
                return found
            if len(found) == MAX_ASIDE:
                break
        return []

    def _tops(self) -> list[str]:
        """The tiers of highest weight."""
        tiers = self._profile().tiers
        top = max(tier.weight for tier in tiers.values())
        return [name for name, tier in tiers.items() if tier.weight == top]


def _ahead(capacity: Capacity) -> int:
    return 1 + capacity.slots // AHEAD
