"""The deadlines for a request's first token and for each one after it."""

import asyncio
from collections.abc import Callable

from engine_host.gateway.refusal import Refusal
from engine_host.gateway.ticket import Ticket
from profiles.gateway import Tier

HELD_RETRY_S = 1.0
"""Pause before a request that the host holds is looked at again, at most: held is no time that counts."""


class Deadlines:
    """One timer for each request that has a deadline: a token costs nothing, since the timer looks for the last one.

    `tier` reads the rules of a request's tier, `end` ends one whose deadline has passed; `clock` and `later` are the
    admission's.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle],
        tier: Callable[[Ticket], Tier],
        end: Callable[[Ticket, Refusal], None],
    ) -> None:
        self._clock = clock
        self._later = later
        self._tier = tier
        self._end = end
        self._timers: dict[Ticket, asyncio.TimerHandle] = {}

    def __len__(self) -> int:
        return len(self._timers)

    def start(self, ticket: Ticket) -> None:
        """Watch over the deadline that is in force for the request now, in place of any other."""
        self.stop(ticket)
        limit, since = self._limit(ticket)
        if limit is not None and ticket.ended is None:
            self._in(ticket, since + limit - self._clock())

    def stop(self, ticket: Ticket) -> None:
        """Watch no more."""
        if (timer := self._timers.pop(ticket, None)) is not None:
            timer.cancel()

    def _in(self, ticket: Ticket, seconds: float) -> None:
        self._timers[ticket] = self._later(max(seconds, 0.0), lambda: self._due(ticket))

    def _limit(self, ticket: Ticket) -> tuple[float | None, float]:
        """Seconds within which its next token must come, and since when."""
        tier = self._tier(ticket)
        if ticket.last_token is None:
            return tier.ttft_deadline_s, ticket.arrived
        return tier.ttl_deadline_s, ticket.last_token

    def _due(self, ticket: Ticket) -> None:
        """A deadline may have passed; time in which the host itself held the request off the engine does not count."""
        del self._timers[ticket]
        limit, since = self._limit(ticket)
        if limit is None:
            return
        now = self._clock()
        counted = now - since - ticket.held_since(since, now)
        if ticket.is_held:
            self._in(ticket, min(limit, HELD_RETRY_S))
        elif counted < limit:
            self._in(ticket, limit - counted)
        else:
            what = "first token" if ticket.last_token is None else "next token"
            self._end(
                ticket,
                Refusal(
                    408,
                    f"The {what} did not come within {limit:g} s, the deadline of the tier {ticket.tier}; "
                    f"after {counted:.2f} s the request was ended.",
                ),
            )
