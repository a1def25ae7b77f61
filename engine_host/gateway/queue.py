"""The queue in front of the engine: in which order requests that wait are let in. Pure: time is handed in.

Three lanes (short, throughput, long) say how long a request may be gathered with others, and bound the long prompts.
Tiers share what is admitted by their weights, and within a tier its keys share alike; each is a start-time fair queue
(Goyal, Vin, Cheng: "Start-time Fair Queuing", 1996): who has got least of its share goes first, and who was away
starts where the others are. Requests of one key in one lane keep their order.
"""

import itertools
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from engine_host.gateway.ticket import LONG_LANE, Ticket
from profiles.gateway import Lanes, Tier

_UNKNOWN = Tier()

MAX_SHARES = 1_000
"""Keys of one tier whose shares are remembered before those that don't matter any more are dropped."""


@dataclass(frozen=True, slots=True)
class Room:
    """What the engine has left: request slots, and KV pages of `page_tokens` tokens (`None`: not known)."""

    slots: int
    pages: int | None = None
    page_tokens: int = 16

    def holds(self, ticket: Ticket) -> bool:
        """Whether the request could begin: a slot for each sequence, pages for its prompt and one token each."""
        return self.slots >= ticket.sequences and (self.pages is None or self.pages >= self.pages_of(ticket))

    def pages_of(self, ticket: Ticket) -> int:
        """Pages for what the request has so far, and one more for each sequence to go on."""
        return -(-(ticket.prompt_tokens + ticket.output_tokens) // self.page_tokens) + ticket.sequences

    def less(self, ticket: Ticket) -> "Room":
        """What is left beside this request."""
        pages = None if self.pages is None else self.pages - self.pages_of(ticket)
        return Room(self.slots - ticket.sequences, pages, self.page_tokens)


@dataclass(slots=True)
class _Share:
    """One party of a fair queue: what it has got over its weight, in tokens."""

    got: float = 0.0


@dataclass(slots=True)
class _TierState:
    share: _Share = field(default_factory=_Share)
    keys: dict[str, _Share] = field(default_factory=dict)
    clock: float = 0.0
    """Where the keys of this tier are."""
    active: int = 0
    allowance: float | None = None
    """Tokens it may still admit by its rate; filled up to one second's worth."""
    filled: float = 0.0


class AdmissionQueue:
    """Requests that wait, and those let in, as far as order and quotas need them.

    `lanes` and `tiers` read the rules in force: they may change at any time.
    """

    def __init__(self, lanes: Callable[[], Lanes], tiers: Callable[[], Mapping[str, Tier]]) -> None:
        self._lanes = lanes
        self._tiers = tiers
        self._waiting: dict[tuple[str, str, str], deque[Ticket]] = {}
        self._states: dict[str, _TierState] = {}
        self._clock = 0.0
        self._released: dict[str, float] = {}
        self._released_before: dict[str, float] = {}
        self._prefilling: dict[Ticket, int] = {}
        self.count = 0

    def __iter__(self) -> Iterator[Ticket]:
        return itertools.chain.from_iterable(self._waiting.values())

    def waiting_in(self, tier: str) -> int:
        """Requests of a tier that wait."""
        return sum(len(queue) for (_, name, _), queue in self._waiting.items() if name == tier)

    def push(self, ticket: Ticket, now: float) -> None:
        """Let a request wait; one that was set aside goes before its key's others."""
        ticket.entered = now
        if ticket.queued is None:
            ticket.queued = now
        queue = self._waiting.setdefault(_place(ticket), deque())
        state = self._state(ticket.tier)
        if not self.waiting_in(ticket.tier):
            state.share.got = max(state.share.got, self._clock)
        if not any(queued for (_, tier, key), queued in self._waiting.items()
                   if (tier, key) == (ticket.tier, ticket.caller.key_id)):  # fmt: skip
            share = state.keys.setdefault(ticket.caller.key_id, _Share())
            share.got = max(share.got, state.clock)
            if len(state.keys) > MAX_SHARES:
                self._drop_shares(ticket.tier, state)
        if ticket.resumes:
            queue.appendleft(ticket)
        else:
            queue.append(ticket)
        self.count += 1

    def remove(self, ticket: Ticket) -> bool:
        """Take a request out that won't wait any longer; whether it was waiting."""
        queue = self._waiting.get(_place(ticket))
        if queue is None or ticket not in queue:
            return False
        queue.remove(ticket)
        self._forget(_place(ticket))
        self.count -= 1
        return True

    def pop(self, room: Room, now: float) -> Ticket | None:
        """The next request to let in, if one may go now and `room` holds it. It counts as admitted from here.

        Who is next does not depend on `room`: a large request isn't overtaken by small ones until it starves.
        """
        ticket = self.next(now)
        if ticket is None or not room.holds(ticket):
            return None
        self.admit(ticket, now)
        return ticket

    def next(self, now: float) -> Ticket | None:
        """The request whose turn it is, among those that windows and quotas let go now."""
        heads: dict[str, dict[str, Ticket]] = {}
        for (_, tier, key), queue in self._waiting.items():
            head = queue[0]
            if not self._may_go(head, now):
                continue
            keys = heads.setdefault(tier, {})
            if key not in keys or _order(head) < _order(keys[key]):
                keys[key] = head
        if not heads:
            return None
        tier = min(heads, key=lambda name: (self._state(name).share.got, -self._tier(name).weight))
        keys = heads[tier]
        shares = self._state(tier).keys
        key = min(keys, key=lambda name: (shares[name].got, _order(keys[name])))
        return keys[key]

    def first_of(self, tier: str, now: float) -> Ticket | None:
        """The request of a tier that would go first."""
        heads = [queue[0] for (_, name, _), queue in self._waiting.items() if name == tier and queue]
        heads = [head for head in heads if self._may_go(head, now)]
        shares = self._state(tier).keys
        return min(heads, key=lambda head: (shares[head.caller.key_id].got, _order(head)), default=None)

    def admit(self, ticket: Ticket, now: float) -> None:
        """Let this request in, whether or not it is its turn."""
        self.remove(ticket)
        state, tier = self._state(ticket.tier), self._tier(ticket.tier)
        share = state.keys.setdefault(ticket.caller.key_id, _Share())
        self._clock, state.clock = max(self._clock, state.share.got), max(state.clock, share.got)
        if not ticket.charged:
            ticket.charged = ticket.cost
            state.share.got += ticket.charged / tier.weight
            share.got += ticket.charged
            if state.allowance is not None:
                state.allowance -= ticket.charged
        state.active += 1
        if ticket.long and not ticket.output_tokens:
            self._prefilling[ticket] = ticket.prompt_tokens
        if (last := self._released.get(ticket.lane)) != now:
            if last is not None:
                self._released_before[ticket.lane] = last
            self._released[ticket.lane] = now
        assert ticket.entered is not None
        ticket.waited += now - ticket.entered
        ticket.admitted = now
        if ticket.first_admitted is None:
            ticket.first_admitted = now

    def prefilled(self, ticket: Ticket) -> None:
        """Its prompt has been computed."""
        self._prefilling.pop(ticket, None)

    def left(self, ticket: Ticket) -> None:
        """An admitted request is off the engine: it has ended, or was set aside."""
        self._prefilling.pop(ticket, None)
        self._state(ticket.tier).active -= 1

    def settle(self, ticket: Ticket) -> None:
        """A request has ended: its party gets back, or pays, what it was charged wrongly."""
        if not ticket.charged:
            return
        wrong = ticket.charged - ticket.prompt_tokens - ticket.output_tokens
        state = self._state(ticket.tier)
        state.share.got -= wrong / self._tier(ticket.tier).weight
        if (share := state.keys.get(ticket.caller.key_id)) is not None:
            share.got -= wrong
        if state.allowance is not None:
            state.allowance += wrong
        ticket.charged = 0

    def move(self, ticket: Ticket, tier: str, lane: str) -> None:
        """Give a request another tier, waiting or admitted; one that waits goes behind those of its key there."""
        assert ticket.entered is not None
        if self.remove(ticket):
            ticket.tier, ticket.lane = tier, lane
            self.push(ticket, ticket.entered)
        elif ticket.charged and ticket.admitted is not None:
            self._state(ticket.tier).active -= 1
            self._state(tier).active += 1
            ticket.tier = tier
        else:
            ticket.tier, ticket.lane = tier, lane

    def ahead_of_its_share(self, tier: str, of: str) -> bool:
        """Whether `tier` has got more than `of`, each over its weight: then it may be made to wait for it."""
        return self._state(tier).share.got > self._state(of).share.got

    def active(self, tier: str) -> int:
        """Requests of a tier that were let in and are not off the engine."""
        return self._state(tier).active

    def wakes_at(self, now: float) -> float | None:
        """When a window or a rate lets the next waiting request go; `None` if none waits for time to pass."""
        times = [self._opens(queue[0], now) for queue in self._waiting.values()]
        later = [each for each in times if each is not None and each > now]
        return min(later, default=None)

    # What lets a request go.

    def _may_go(self, ticket: Ticket, now: float) -> bool:
        opens = self._opens(ticket, now)
        return opens is not None and opens <= now

    def _opens(self, ticket: Ticket, now: float) -> float | None:
        """When time alone lets this request go; `None` where something else must come first."""
        tier, state = self._tier(ticket.tier), self._state(ticket.tier)
        if tier.max_active is not None and state.active >= tier.max_active:
            return None
        begins = ticket.long and not ticket.output_tokens
        in_prefill = sum(self._prefilling.values())
        if begins and in_prefill and in_prefill + ticket.prompt_tokens > self._lanes().long_prefill:
            return None
        assert ticket.entered is not None
        window = self._window(ticket)
        opens = ticket.entered + window
        last = self._released.get(ticket.lane)
        if last == now:
            # Those gathered together are let in together: at one instant, one after the other.
            last = self._released_before.get(ticket.lane)
        opens = now if last is None or ticket.resumes else min(opens, last + window)
        if tier.tokens_per_second is not None:
            opens = max(opens, self._refilled(state, tier.tokens_per_second, now))
        else:
            state.allowance = None
        return opens

    def _refilled(self, state: _TierState, rate: float, now: float) -> float:
        """When the tier's token bucket lets one go: as soon as it isn't in debt. It holds one second's worth."""
        if state.allowance is None:
            state.allowance = rate
        else:
            state.allowance = min(state.allowance + (now - state.filled) * rate, rate)
        state.filled = now
        return now if state.allowance > 0 else now + (1e-6 - state.allowance) / rate

    def _window(self, ticket: Ticket) -> float:
        lanes = self._lanes()
        return (lanes.short_window_ms if ticket.lane == "short" else lanes.throughput_window_ms) / 1000

    def _tier(self, name: str) -> Tier:
        return self._tiers().get(name, _UNKNOWN)

    def _state(self, tier: str) -> _TierState:
        return self._states.setdefault(tier, _TierState())

    def _drop_shares(self, tier: str, state: _TierState) -> None:
        """Forget the keys that would start where the others are anyway."""
        waiting = {key for _, name, key in self._waiting if name == tier}
        state.keys = {key: share for key, share in state.keys.items() if key in waiting or share.got > state.clock}

    def _forget(self, place: tuple[str, str, str]) -> None:
        """Drop what nobody waits in, so that the number of keys seen costs nothing."""
        if not self._waiting[place]:
            del self._waiting[place]


def lane_of(prompt_tokens: int, tier: Tier, lanes: Lanes, *, long: bool = False) -> str:
    """The lane in which a request waits."""
    return LONG_LANE if long or prompt_tokens > lanes.long_prompt else tier.lane


def _place(ticket: Ticket) -> tuple[str, str, str]:
    return ticket.lane, ticket.tier, ticket.caller.key_id


def _order(ticket: Ticket) -> tuple[bool, float]:
    """What was set aside goes first, then who has waited longest."""
    assert ticket.entered is not None
    return ticket.resumes == 0, ticket.entered
