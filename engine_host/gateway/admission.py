"""Lets requests into the engine: by their callers' budgets, their tier's rules, and in the order of the queue.

One object of the event loop. It knows no engine: where requests go, and how they are taken off it, is `Seats`.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from engine_host.api.types import GatewayStatus, LaneLine, TierLine
from engine_host.gateway.breaker import CircuitBreaker
from engine_host.gateway.budgets import Account, Budgets, Grant
from engine_host.gateway.caller import ANONYMOUS, Caller, Limits
from engine_host.gateway.prompts import check_hard, over_soft, refuse_soft
from engine_host.gateway.queue import AdmissionQueue, Room, lane_of
from engine_host.gateway.rate_headers import rate_limit_headers
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.ticket import LONG_LANE, Ticket
from profiles.gateway import KeysSection, Tier
from profiles.schema import Profile
from profiles.section import MAX_TOKENS

AHEAD = 16
"""One request more than the engine runs is let in for each so many that it runs, and one in any case: who waits in
the engine itself takes a place that falls free in the same step, without a round trip to here."""

DRAIN_WINDOW_S = 30.0
"""Time over which the rate is measured at which requests are let in."""

UNKNOWN_RETRY_S = 5.0
"""What a client is told to wait where no rate has been measured."""

KEPT = 256
"""Ended requests whose waterfall can still be shown."""

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


class _NoSeats:
    def capacity(self) -> Capacity | None:
        return None

    def resumable(self, ticket: Ticket) -> bool:
        return False

    def take_off(self, ticket: Ticket) -> None:
        pass


@dataclass(slots=True)
class _Counts:
    finished: int = 0
    refused: int = 0
    checkpointed: int = 0


class Admission:
    """Every request that has not ended, and the rules it goes by.

    `profile` reads the running profile, whose rules are in force at once when it changes, and `budgets` its store;
    `usd_per_token` is the estimated price of a token now, `None` if it isn't known; `clock` is `time.monotonic`, and
    `later` calls back after some seconds of it, by default the running loop's `call_later`.
    """

    def __init__(
        self,
        profile: Callable[[], Profile],
        budgets: Callable[[], Budgets],
        usd_per_token: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] | None = None,
    ) -> None:
        self.seats: Seats = _NoSeats()
        self.breaker = CircuitBreaker(lambda: profile().gateway.breaker, lambda: profile().tiers, wall)
        self._profile = profile
        self._budgets = budgets
        self._usd_per_token = usd_per_token
        self._clock = clock
        self._later = later or (lambda delay, call: asyncio.get_running_loop().call_later(delay, call))
        self._queue = AdmissionQueue(lambda: profile().gateway.lanes, lambda: profile().tiers)
        self._tickets: dict[str, Ticket] = {}
        self._in: set[Ticket] = set()
        self._aside: set[Ticket] = set()
        self._grants: dict[Ticket, tuple[Budgets, Grant]] = {}
        self._timers: dict[Ticket, asyncio.TimerHandle] = {}
        self._ended: OrderedDict[str, Ticket] = OrderedDict()
        self._admitted_at: deque[float] = deque()
        self._counts: dict[str, _Counts] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()

    # The way of one request.

    def open(
        self,
        request_id: str,
        *,
        caller: Caller | None,
        tier: str | None,
        prompt_tokens: int,
        max_tokens: int,
        sequences: int,
        arrived: float,
        began: float,
    ) -> Ticket:
        """Take a request in. Raises `Refusal` where its prompt is too long; the deadline for its first token runs."""
        profile = self._profile()
        tier = tier if tier in profile.tiers else profile.keys.tier
        rules = profile.gateway.prompts
        decision = over_soft(prompt_tokens, rules)
        try:
            check_hard(prompt_tokens, rules, MAX_TOKENS)
            if decision == "reject":
                raise refuse_soft(prompt_tokens, rules, MAX_TOKENS)
        except Refusal:
            self._count(tier).refused += 1
            raise
        long = decision == "long-queue"
        ticket = Ticket(
            request_id,
            caller or ANONYMOUS,
            tier,
            lane_of(prompt_tokens, profile.tiers[tier], profile.gateway.lanes, long=long),
            prompt_tokens,
            max_tokens,
            arrived,
            sequences,
            began,
        )
        self._tickets[request_id] = ticket
        return ticket

    async def enter(self, ticket: Ticket) -> Mapping[str, str]:
        """Wait for the request's turn; returns headers for its reply. Raises `Refusal`.

        Cancelling it takes the request out; `close` must be called in any case.
        """
        now = self._clock()
        self._arm(ticket, self._tier(ticket).ttft_deadline_s, ticket.arrived)
        self.breaker.check(ticket.tier, ticket.request_id, now)
        self._check_length(ticket)
        accounts = self._accounts(ticket)
        headers: Mapping[str, str] = {}
        if any(account.limits != _NO_LIMITS for account in accounts):
            price = self._usd_per_token()
            budgets = self._budgets()
            grant = await budgets.reserve(accounts, ticket.tokens, ticket.tokens * price if price else 0.0)
            self._grants[ticket] = budgets, grant
            headers = rate_limit_headers(grant.usage)
            self._check_length(ticket)
        await self._turn(ticket)
        return headers

    async def again(self, ticket: Ticket) -> None:
        """Wait for another turn: the request was set aside. Raises `Refusal` where it is ended meanwhile."""
        self._aside.discard(ticket)
        self._in.discard(ticket)
        self._queue.left(ticket)
        await self._turn(ticket)

    def held(self, ticket: Ticket) -> None:
        """It is off the engine after it had begun, and goes on later."""
        if not ticket.held or ticket.held[-1][1] is not None:
            ticket.held.append((self._clock(), None))

    def resumed(self, ticket: Ticket) -> None:
        """It goes on."""
        if ticket.held and ticket.held[-1][1] is None:
            ticket.held[-1] = (ticket.held[-1][0], self._clock())

    def set_aside(self, ticket: Ticket) -> bool:
        """Whether this request is taken off the engine to go on later."""
        return ticket in self._aside

    def produced(self, ticket: Ticket, count: int, now: float) -> None:
        """`count` output tokens came at `now`."""
        if not count:
            return
        ticket.output_tokens += count
        ticket.last_token = now
        if ticket.first_token is None:
            ticket.first_token = now
            self._queue.prefilled(ticket)
            self._arm(ticket, self._tier(ticket).ttl_deadline_s, now)
            limit = self._profile().gateway.breaker.queue_delay_s
            self.breaker.probed(ticket.request_id, limit is None or ticket.waited <= limit, now)
            if ticket.long:
                self.pump()

    def close(self, ticket: Ticket, reason: str) -> None:
        """The request has ended, however it did; harmless the second time."""
        if self._tickets.get(ticket.request_id) is not ticket:
            return
        now = self._clock()
        del self._tickets[ticket.request_id]
        self._disarm(ticket)
        self.resumed(ticket)
        self._queue.remove(ticket)
        ticket.ended, ticket.finish_reason = now, reason
        if ticket in self._in:
            self._in.discard(ticket)
            self._queue.left(ticket)
        self._aside.discard(ticket)
        self._queue.settle(ticket)
        self.breaker.probed(ticket.request_id, False, now)
        counts = self._count(ticket.tier)
        if ticket.refusal is not None or ticket.admitted is None:
            counts.refused += 1
        elif reason in ("stop", "length"):
            counts.finished += 1
        if (grant := self._grants.pop(ticket, None)) is not None:
            self._spawn(self._settle(ticket, *grant))
        self._ended[ticket.request_id] = ticket
        if len(self._ended) > KEPT:
            self._ended.popitem(last=False)
        self.pump()

    # What ends requests, or moves them.

    def end(self, ticket: Ticket, refusal: Refusal) -> None:
        """End a request for a reason its client is told; wherever it is, what it held is free in one step."""
        if ticket.refusal is not None or ticket.ended is not None:
            return
        ticket.refusal = refusal
        if ticket.turn is not None and not ticket.turn.done():
            self._queue.remove(ticket)
            ticket.turn.set_exception(refusal)
        else:
            self.seats.take_off(ticket)

    def cancel(self, request_id: str) -> bool:
        """End a request for the operator; whether there is one of that id."""
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return False
        self.end(ticket, Refusal(503, "The operator of this server cancelled the request.", kind="CancelledError"))
        return True

    def move(self, request_id: str, tier: str) -> bool:
        """Give a request another tier; whether there is one of that id. Raises `KeyError` for a tier there isn't."""
        rules = self._profile().tiers[tier]
        ticket = self._tickets.get(request_id)
        if ticket is None:
            return False
        lane = ticket.lane if ticket.long else rules.lane
        self._queue.move(ticket, tier, lane)
        if ticket.first_token is None:
            self._arm(ticket, rules.ttft_deadline_s, ticket.arrived)
        else:
            self._arm(ticket, rules.ttl_deadline_s, ticket.last_token or self._clock())
        self.pump()
        return True

    def pump(self) -> None:
        """Let in who may go now; call it whenever something has changed that others wait for."""
        now = self._clock()
        capacity = self.seats.capacity()
        if capacity is not None:
            self._make_room(capacity, now)
            while self._queue.count:
                ticket = self._queue.next(now)
                if ticket is None or not self._room(capacity, ticket).holds(ticket):
                    break
                self._let_in(ticket, now)
        self._wake_at(self._queue.wakes_at(now) if self._queue.count else None)

    def priority(self, ticket: Ticket) -> int:
        """Its place in vLLM's own queue: its tier's."""
        return self._tier(ticket).priority

    def longest_reply(self) -> int | None:
        """Most output tokens that a request may have; `None` where the profile sets no cap."""
        return self._profile().gateway.prompts.max_tokens

    def observe(self, problem: str | None = None) -> None:
        """Tell the breaker how it goes; `problem` is what is wrong with the engine. Call it a few times a second."""
        now = self._clock()
        limit = self._profile().gateway.breaker.queue_delay_s
        if problem is None and limit is not None:
            waiting = [now - ticket.entered for ticket in self._queue if ticket.entered is not None]
            if waiting and max(waiting) > limit:
                problem = f"a request has waited {max(waiting):.1f} s for the engine, above {limit:g} s."
        self.breaker.observe(problem, now)
        self.pump()

    # What others ask.

    def ticket(self, request_id: str) -> Ticket | None:
        """A request of this id that hasn't ended, or ended a while ago."""
        return self._tickets.get(request_id) or self._ended.get(request_id)

    @property
    def waiting(self) -> int:
        """Requests in the queue."""
        return self._queue.count

    def status(self, ttft: Mapping[str, float], ttl: Mapping[str, float]) -> GatewayStatus:
        """What a screen shows; `ttft` and `ttl` are the tiers' p99 in seconds."""
        now, tiers = self._clock(), self._profile().tiers
        shed = self.breaker.shed
        return GatewayStatus(
            lanes=tuple(self._lane(name, now) for name in ("short", "throughput", LONG_LANE)),
            tiers=tuple(
                TierLine(
                    name=name,
                    active=self._queue.active(name),
                    waiting=self._queue.waiting_in(name),
                    held=sum(each.tier == name and is_held(each) for each in self._tickets.values()),
                    finished=self._count(name).finished,
                    refused=self._count(name).refused,
                    checkpointed=self._count(name).checkpointed,
                    ttft_p99_s=ttft.get(name),
                    ttl_p99_s=ttl.get(name),
                    ttft_target_s=tier.ttft_target_ms / 1000 if tier.ttft_target_ms is not None else None,
                    ttl_target_s=tier.ttl_target_ms / 1000 if tier.ttl_target_ms is not None else None,
                    shed=name in shed,
                )
                for name, tier in tiers.items()
            ),
            breaker=self.breaker.line(now),
            drain_rps=self._drain(now),
        )

    async def stop(self) -> None:
        """Write down what ended requests have used."""
        if self._tasks:
            await asyncio.wait(set(self._tasks))
        if self._wake is not None:
            self._wake.cancel()

    # Letting in.

    async def _turn(self, ticket: Ticket) -> None:
        if ticket.refusal is not None:
            raise ticket.refusal
        self._queue.push(ticket, self._clock())
        self.pump()
        if ticket in self._in:
            return
        ticket.turn = asyncio.get_running_loop().create_future()
        try:
            await ticket.turn
        finally:
            ticket.turn = None

    def _let_in(self, ticket: Ticket, now: float) -> None:
        self._queue.admit(ticket, now)
        self._in.add(ticket)
        self._admitted_at.append(now)
        self._drop_old(now)
        if ticket.turn is not None and not ticket.turn.done():
            ticket.turn.set_result(None)

    def _room(self, capacity: Capacity, ticket: Ticket) -> Room:
        """What is left for this request. An empty engine takes anything: what doesn't fit there never would."""
        if not self._in:
            return Room(ticket.sequences)
        lanes, tiers = self._profile().gateway.lanes, self._profile().tiers
        top = max(tier.weight for tier in tiers.values())
        reserve = 0.0 if self._tier(ticket).weight >= top else lanes.reserve
        seats = capacity.slots + 1 + capacity.slots // AHEAD
        if reserve:
            seats = capacity.slots - math.ceil(capacity.slots * reserve)
        room = Room(seats - self._seated, page_tokens=capacity.page_tokens)
        if capacity.free_pages is None or capacity.pages is None:
            return room
        new = [each for each in self._in if each.admitted is not None and each.admitted > capacity.as_of]
        pages = capacity.free_pages - math.ceil(capacity.pages * reserve) - sum(room.pages_of(each) for each in new)
        return Room(room.slots, pages, capacity.page_tokens)

    @property
    def _seated(self) -> int:
        return sum(ticket.sequences for ticket in self._in)

    def _make_room(self, capacity: Capacity, now: float) -> None:
        """At a full engine, let a request of a higher tier in and set the youngest preemptible ones aside for it."""
        if not self._queue.count or not self._profile().gateway.lanes.checkpoint or not self._in:
            return
        tiers = self._profile().tiers
        for name in sorted(tiers, key=lambda tier: -tiers[tier].weight):
            ticket = self._queue.first_of(name, now)
            if ticket is None:
                continue
            room = self._room(capacity, ticket)
            # Who waits in the engine takes no place; those being set aside have given theirs to another.
            places = min(self._seated - sum(each.sequences for each in self._aside), capacity.slots)
            lacking = places + ticket.sequences - capacity.slots
            pages = room.pages_of(ticket) - room.pages if room.pages is not None else 0
            if lacking <= 0 and pages <= 0:
                continue
            victims = self._victims(ticket, lacking, pages, room)
            if not victims:
                continue
            self._let_in(ticket, now)
            for victim in victims:
                victim.resumes += 1
                self._aside.add(victim)
                self._count(victim.tier).checkpointed += 1
                self.seats.take_off(victim)

    def _victims(self, ticket: Ticket, slots: int, pages: int, room: Room) -> list[Ticket]:
        """The youngest requests whose places and pages are enough; none where they aren't."""
        tiers, weight = self._profile().tiers, self._tier(ticket).weight
        found: list[Ticket] = []
        young_first = sorted(self._in - self._aside, key=lambda each: -(each.admitted or 0.0))
        for each in young_first:
            tier = tiers.get(each.tier)
            if tier is None or not tier.preemptible or tier.weight >= weight or each.first_token is None:
                continue
            if each.refusal is not None or not self.seats.resumable(each):
                continue
            if not self._queue.ahead_of_its_share(each.tier, ticket.tier):
                continue
            found.append(each)
            slots -= each.sequences
            pages -= room.pages_of(each)
            if slots <= 0 and pages <= 0:
                return found
            if len(found) == MAX_ASIDE:
                break
        return []

    def _check_length(self, ticket: Ticket) -> None:
        """Raises `Refusal` 429 where too many wait already."""
        now, tier = self._clock(), self._tier(ticket)
        most, here = self._profile().gateway.lanes.max_queued, self._queue.waiting_in(ticket.tier)
        if self._queue.count >= most:
            said = f"{self._queue.count} requests wait already, the most this server lets wait."
        elif tier.max_queued is not None and here >= tier.max_queued:
            said = f"{here} requests of the tier {ticket.tier} wait already, the most it lets wait."
        else:
            return
        rate = self._drain(now)
        wait = min(self._queue.count / rate, 600.0) if rate else UNKNOWN_RETRY_S
        raise Refusal(429, f"{said} Try again in about {max(1, math.ceil(wait))} s.", retry_after_s=wait)

    def _accounts(self, ticket: Ticket) -> tuple[Account, Account]:
        limits = effective_limits(ticket.caller.limits, self._profile().keys)
        return Account(f"key:{ticket.caller.key_id}", limits), tier_account(ticket.tier, self._tier(ticket))

    async def _settle(self, ticket: Ticket, budgets: Budgets, grant: Grant) -> None:
        if ticket.admitted is None:
            await budgets.release(grant)
            return
        used = ticket.prompt_tokens + ticket.output_tokens
        price = self._usd_per_token()
        await budgets.settle(grant, used, used * price if price else 0.0)

    # Deadlines.

    def _arm(self, ticket: Ticket, deadline_s: float | None, since: float) -> None:
        self._disarm(ticket)
        if deadline_s is not None and ticket.ended is None:
            delay = max(since + deadline_s - self._clock(), 0.0)
            self._timers[ticket] = self._later(delay, lambda: self._due(ticket))

    def _disarm(self, ticket: Ticket) -> None:
        if (timer := self._timers.pop(ticket, None)) is not None:
            timer.cancel()

    def _due(self, ticket: Ticket) -> None:
        """A deadline may have passed; time in which the host itself held the request off the engine does not count."""
        self._timers.pop(ticket, None)
        now, tier = self._clock(), self._tier(ticket)
        first = ticket.first_token is None
        limit = tier.ttft_deadline_s if first else tier.ttl_deadline_s
        if limit is None:
            return
        since = ticket.arrived if first else ticket.last_token or ticket.arrived
        counted = now - since - _held_since(ticket, since, now)
        if self.seats.capacity() is None or is_held(ticket):
            self._arm(ticket, min(limit, 1.0), now)
        elif counted < limit:
            self._arm(ticket, limit - counted, now)
        else:
            what = "first token" if first else "next token"
            self.end(
                ticket,
                Refusal(
                    408,
                    f"The {what} did not come within {limit:g} s, the deadline of the tier {ticket.tier}; "
                    f"after {counted:.2f} s the request was ended.",
                ),
            )

    # Figures.

    def _tier(self, ticket: Ticket) -> Tier:
        profile = self._profile()
        return profile.tiers.get(ticket.tier) or profile.tiers[profile.keys.tier]

    def _count(self, tier: str) -> _Counts:
        return self._counts.setdefault(tier, _Counts())

    def _lane(self, name: str, now: float) -> LaneLine:
        here = [ticket for ticket in self._queue if ticket.lane == name]
        oldest = max((now - ticket.entered for ticket in here if ticket.entered is not None), default=None)
        return LaneLine(name, len(here), oldest, sum(ticket.prompt_tokens for ticket in here))

    def _drain(self, now: float) -> float | None:
        """Requests let in a second; `None` where none was."""
        self._drop_old(now)
        if not self._admitted_at:
            return None
        return len(self._admitted_at) / max(now - self._admitted_at[0], 1.0)

    def _drop_old(self, now: float) -> None:
        while self._admitted_at and now - self._admitted_at[0] > DRAIN_WINDOW_S:
            self._admitted_at.popleft()

    def _wake_at(self, when: float | None) -> None:
        if self._wake is not None:
            self._wake.cancel()
            self._wake = None
        if when is not None:
            self._wake = self._later(max(when - self._clock(), 0.0), self.pump)

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)


_NO_LIMITS = Limits()


def effective_limits(own: Limits, defaults: KeysSection) -> Limits:
    """A key's limits, with the profile's where it has none of its own."""
    return Limits(
        own.requests_per_minute or defaults.requests_per_minute,
        own.tokens_per_minute or defaults.tokens_per_minute,
        own.tokens_per_day or defaults.tokens_per_day,
        own.usd_per_day or defaults.usd_per_day,
    )


def tier_account(name: str, tier: Tier) -> Account:
    """The budget that all requests of a tier share."""
    limits = Limits(tier.requests_per_minute, tier.tokens_per_minute, tier.tokens_per_day, tier.usd_per_day)
    return Account(f"tier:{name}", limits)


def is_held(ticket: Ticket) -> bool:
    """Whether it is off the engine after it had begun."""
    return bool(ticket.held) and ticket.held[-1][1] is None


def _held_since(ticket: Ticket, since: float, now: float) -> float:
    """Seconds after `since` in which the host held the request off the engine."""
    return sum(max(0.0, (end if end is not None else now) - max(begin, since)) for begin, end in ticket.held)
