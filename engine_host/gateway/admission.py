"""Lets requests into the engine: by their callers' budgets, their tier's rules, and in the order of the queue.

One object of the event loop. It knows no engine: where requests go, and how they are taken off it, is `Seats`.
"""

import asyncio
import math
import time
from collections import OrderedDict, deque
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from dataclasses import dataclass, replace
from typing import Any

from engine_host.api.types import GatewayStatus, LaneLine, TierLine
from engine_host.gateway.accounts import key_account, tier_account
from engine_host.gateway.breaker import CircuitBreaker
from engine_host.gateway.budgets import Account, Budgets, Grant
from engine_host.gateway.caller import ANONYMOUS, Caller, Limits
from engine_host.gateway.deadlines import Deadlines
from engine_host.gateway.prompts import check_hard, over_soft, refuse_soft
from engine_host.gateway.queue import AdmissionQueue, lane_of
from engine_host.gateway.rate_headers import rate_limit_headers
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.request_ids import RequestIds
from engine_host.gateway.seats import Capacity, NoSeats, Places, Seats
from engine_host.gateway.ticket import LONG_LANE, Ticket
from profiles.gateway import Tier
from profiles.schema import Profile
from profiles.section import MAX_TOKENS

DRAIN_WINDOW_S = 30.0
"""Time over which the rate is measured at which requests are let in."""

UNKNOWN_RETRY_S = 5.0
"""What a client is told to wait where no rate has been measured."""

KEPT = 256
"""Ended requests whose waterfall can still be shown."""

PAGES_RETRY_S = 0.02
"""Pause before free pages are asked for again: they are known from the engine's last step, about as long ago."""


@dataclass(slots=True)
class _Counts:
    finished: int = 0
    refused: int = 0
    checkpointed: int = 0


class Admission:
    """Every request that has not ended, and the rules it goes by.

    `profile` reads the running profile, whose rules are in force at once when it changes, and `budgets` its store;
    `usd_per_token` is the estimated price of a token now, `None` if it isn't known; `clock` is `time.monotonic`, and
    `later` calls back after some seconds of it, by default the running loop's `call_later`. `cost_of` waits until it is
    known what a request that has ended has cost in USD, `None` where that isn't known; by default at once.
    """

    def __init__(
        self,
        profile: Callable[[], Profile],
        budgets: Callable[[], Budgets],
        usd_per_token: Callable[[], float | None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        later: Callable[[float, Callable[[], None]], asyncio.TimerHandle] | None = None,
        cost_of: Callable[[Ticket], Awaitable[float | None]] | None = None,
    ) -> None:
        self.seats: Seats = NoSeats()
        self.breaker = CircuitBreaker(lambda: profile().gateway.breaker, lambda: profile().tiers, wall)
        self._profile = profile
        self._budgets = budgets
        self._usd_per_token = usd_per_token
        self._clock = clock
        self._later = later or (lambda delay, call: asyncio.get_running_loop().call_later(delay, call))
        self._cost_of = cost_of
        self._queue = AdmissionQueue(lambda: profile().gateway.lanes, lambda: profile().tiers)
        self._places = Places(profile, self._queue)
        self._tickets: dict[str, Ticket] = {}
        self._ids = RequestIds(lambda each: each in self._tickets or each in self._ended)
        self._aside: set[Ticket] = set()
        self._grants: dict[Ticket, tuple[Budgets, Grant]] = {}
        self._deadlines = Deadlines(self._clock, self._later, self._tier, self.end)
        self._ended: OrderedDict[str, Ticket] = OrderedDict()
        self._admitted_at: deque[float] = deque()
        self._counts: dict[str, _Counts] = {}
        self._wake: asyncio.TimerHandle | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._rules: Profile | None = None
        self._engine_gone = False

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
        """Take a request in. Raises `Refusal` where its prompt is too long; the deadline for its first token runs.

        Several may come under one id, which clients may choose: the ticket's is its own, also for a while after its
        end, when its cost is still being made up.
        """
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
        own_id = self._ids.own(request_id)
        ticket = Ticket(
            own_id,
            caller or ANONYMOUS,
            tier,
            lane_of(prompt_tokens, profile.tiers[tier], profile.gateway.lanes, long=long),
            prompt_tokens,
            max_tokens,
            arrived,
            sequences,
            began,
        )
        self._tickets[own_id] = ticket
        if self._engine_gone:
            self.held(ticket)
        return ticket

    async def enter(self, ticket: Ticket) -> Mapping[str, str]:
        """Wait for the request's turn; returns headers for its reply. Raises `Refusal`.

        Cancelling it takes the request out; `close` must be called in any case.
        """
        now = self._clock()
        self._deadlines.start(ticket)
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
        self._queue.left(ticket)
        await self._turn(ticket)

    def engine_gone(self) -> None:
        """There is no engine for now: all that are here are held until there is one."""
        self._engine_gone = True
        for ticket in self._tickets.values():
            self.held(ticket)

    def engine_back(self) -> None:
        """There is one: who had begun goes on by itself, the others have their turn."""
        self._engine_gone = False
        for ticket in self._tickets.values():
            if ticket.first_admitted is None:
                self.resumed(ticket)
        self.pump()

    def engine_given_up(self, refusal: Refusal) -> None:
        """There will be none: nobody waits for a turn any longer."""
        for ticket in tuple(self._tickets.values()):
            if ticket not in self._queue.inside:
                self.end(ticket, refusal)

    def held(self, ticket: Ticket) -> None:
        """The host keeps it off the engine, and it goes on later."""
        if not ticket.is_held:
            ticket.held.append((self._clock(), None))

    def resumed(self, ticket: Ticket) -> None:
        """It goes on."""
        if ticket.is_held:
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
            self._deadlines.start(ticket)
            limit = self._profile().gateway.breaker.queue_delay_s
            self.breaker.probed(ticket.request_id, limit is None or ticket.waited <= limit, now)
            if ticket.long:
                self.pump()

    def close(self, ticket: Ticket, reason: str) -> None:
        """The request has ended, however it did; harmless the second time."""
        if ticket.ended is not None:
            return
        now = self._clock()
        del self._tickets[ticket.request_id]
        self._deadlines.stop(ticket)
        self.resumed(ticket)
        self._queue.remove(ticket)
        ticket.ended, ticket.finish_reason = now, reason
        self._queue.left(ticket)
        self._aside.discard(ticket)
        self._queue.settle(ticket)
        # Refused before it came to the queue, it has seen nothing of the engine.
        self.breaker.probed(ticket.request_id, False if ticket.queued is not None else None, now)
        counts = self._count(ticket.tier)
        if ticket.refusal is not None:
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
        self._deadlines.start(ticket)
        self.pump()
        return True

    def pump(self) -> None:
        """Let in who may go now; call it whenever something has changed that others wait for."""
        now = self._clock()
        if (profile := self._profile()) is not self._rules:
            self._rules = profile
            for each in self._tickets.values():
                self._deadlines.start(each)
        again = None
        if self._queue.count and (capacity := self.seats.capacity()) is not None:
            while self._make_room(capacity, now):
                pass
            room = self._places.room(capacity)
            while (ticket := self._queue.next(now)) is not None:
                if not self._places.fits(ticket, room, capacity):
                    # Room that is kept for the highest tier is no reason for that tier to wait its turn.
                    ticket = self._places.of_the_top(room, capacity, now) if room.holds(ticket) else None
                if ticket is None:
                    again = now + PAGES_RETRY_S if room.pages is not None else None
                    break
                self._let_in(ticket, now)
                room = room.less(ticket)
        wakes = self._queue.wakes_at(now) if self._queue.count else None
        self._wake_at(min((each for each in (wakes, again) if each is not None), default=None))

    def priority(self, ticket: Ticket) -> int:
        """Its place in vLLM's own queue: its tier's."""
        return self._tier(ticket).priority

    def keeps_text(self) -> bool:
        """Whether prompts and replies are kept."""
        ledger = self._profile().ledger
        return ledger.enabled and ledger.store_text

    def longest_reply(self) -> int | None:
        """Most output tokens that a request may have; `None` where the profile sets no cap."""
        return self._profile().gateway.prompts.max_tokens

    def observe(self, problem: str | None = None) -> None:
        """Tell the breaker how it goes; `problem` is what is wrong with the engine. Call it a few times a second.

        Without a `queue_delay_s` in the profile there is no breaker: whoever comes waits.
        """
        now = self._clock()
        limit = self._profile().gateway.breaker.queue_delay_s
        if limit is None:
            self.breaker.close(now)
        else:
            if problem is None and (waited := self._queue.kept_waiting(now)) > limit:
                problem = f"a request has waited {waited:.1f} s for the engine, above {limit:g} s."
            self.breaker.observe(problem, now)
        self.pump()

    # What others ask.

    def ticket(self, request_id: str) -> Ticket | None:
        """A request of this id that hasn't ended, or ended a while ago."""
        return self._tickets.get(request_id) or self._ended.get(request_id)

    @property
    def any_held(self) -> bool:
        """Whether a request that had begun waits to go on."""
        return any(ticket.is_held for ticket in self._tickets.values())

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
                    held=sum(each.tier == name and each.is_held for each in self._tickets.values()),
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
        if ticket in self._queue.inside:
            return
        ticket.turn = asyncio.get_running_loop().create_future()
        try:
            await ticket.turn
        finally:
            ticket.turn = None
        if ticket.refusal is not None:
            raise ticket.refusal

    def _let_in(self, ticket: Ticket, now: float) -> None:
        self._queue.admit(ticket, now)
        self._admitted_at.append(now)
        self._drop_old(now)
        if ticket.turn is not None and not ticket.turn.done():
            ticket.turn.set_result(None)

    def _make_room(self, capacity: Capacity, now: float) -> bool:
        """At a full engine, let a request of a higher tier in and set the youngest preemptible ones aside for it.

        Returns whether there was one.
        """
        if not self._profile().gateway.lanes.checkpoint or not self._queue.inside:
            return False
        tiers = self._profile().tiers
        for name in sorted(tiers, key=lambda tier: -tiers[tier].weight):
            lower = self._places.lower(name)
            if not lower or not self._queue.waiting_in(name) or (ticket := self._queue.first_of(name, now)) is None:
                continue
            room = self._places.room(capacity)
            # Who waits in the engine takes no place; those being set aside have given theirs to another.
            places = min(self._queue.seated - sum(each.sequences for each in self._aside), capacity.slots)
            lacking = places + ticket.sequences - capacity.slots
            pages = room.pages_of(ticket) - room.pages if room.pages is not None else 0
            if lacking <= 0 and pages <= 0:
                continue
            victims = self._places.victims(lower, lacking, pages, room, self._spared)
            if not victims:
                continue
            self._let_in(ticket, now)
            for victim in victims:
                victim.resumes += 1
                self._aside.add(victim)
                self._count(victim.tier).checkpointed += 1
                self.seats.take_off(victim)
            return True
        return False

    def _spared(self, ticket: Ticket) -> bool:
        return ticket in self._aside or not self.seats.resumable(ticket)

    def _check_length(self, ticket: Ticket) -> None:
        """Raises `Refusal` 429 where too many wait already; those of lower tiers keep nobody out."""
        now, tier, tiers = self._clock(), self._tier(ticket), self._profile().tiers
        most, here = self._profile().gateway.lanes.max_queued, self._queue.waiting_in(ticket.tier)
        lower = (name for name, other in tiers.items() if other.weight < tier.weight and name != ticket.tier)
        ahead = self._queue.count - sum(self._queue.waiting_in(name) for name in lower)
        if ahead >= most:
            said = f"{ahead} requests wait already, the most this server lets wait."
        elif tier.max_queued is not None and here >= tier.max_queued:
            said = f"{here} requests of the tier {ticket.tier} wait already, the most it lets wait."
        else:
            return
        rate = self._drain(now)
        wait = min(ahead / rate, 600.0) if rate else UNKNOWN_RETRY_S
        raise Refusal(429, f"{said} Try again in about {max(1, math.ceil(wait))} s.", retry_after_s=wait)

    def _accounts(self, ticket: Ticket) -> tuple[Account, Account]:
        key = key_account(ticket.caller.key_id, ticket.caller.limits, self._profile().keys)
        return key, tier_account(ticket.tier, self._tier(ticket))

    async def _settle(self, ticket: Ticket, budgets: Budgets, grant: Grant) -> None:
        if ticket.admitted is None:
            await budgets.release(grant)
            return
        used, usd = ticket.prompt_tokens + ticket.output_tokens, None
        if self._cost_of is not None and any(each.limits.usd_per_day is not None for each in grant.accounts):
            # The cost is known a moment later; what is left of the tokens is free at once.
            await budgets.settle(grant, used, grant.usd)
            grant = replace(grant, tokens=used)
            usd = await self._cost_of(ticket)
        if usd is None:
            usd = used * (self._usd_per_token() or 0.0)
        await budgets.settle(grant, used, usd)

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
