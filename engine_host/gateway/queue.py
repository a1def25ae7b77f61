"""The queue in front of the engine: in which order requests that wait are let in. Pure: time is handed in.

Three lanes (short, throughput, long) say how long a request may be gathered with others, and bound the long prompts.
Tiers share what is admitted by their weights, and within a tier its keys share alike; each is a start-time fair queue
(Goyal, Vin, Cheng: "Start-time Fair Queuing", 1996): who has got least of its share goes first, and who was away
starts where the others are. Requests of one key in one lane keep their order.
"""

from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field

from engine_host.gateway.ticket import LONG_LANE, Ticket
from profiles.gateway import Lanes, Tier

_UNKNOWN = Tier()

_ASIDE = "aside"
"""Where those wait that were set aside: before the others of their key, and for no window."""

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
class _Line:
    """Requests of one tier that wait in one lane: all by age, and each key's by its order."""

    by_age: OrderedDict[Ticket, None] = field(default_factory=OrderedDict)
    by_key: dict[str, deque[Ticket]] = field(default_factory=dict)

    @property
    def oldest(self) -> float:
        """When the longest wait in it began."""
        entered = next(iter(self.by_age)).entered
        assert entered is not None
        return entered

    def push(self, ticket: Ticket) -> None:
        assert ticket.entered is not None
        first = bool(self.by_age) and ticket.entered < self.oldest
        self.by_age[ticket] = None
        if first:
            self.by_age.move_to_end(ticket, last=False)
        self.by_key.setdefault(ticket.caller.key_id, deque()).append(ticket)

    def remove(self, ticket: Ticket) -> None:
        del self.by_age[ticket]
        queue = self.by_key[ticket.caller.key_id]
        queue.remove(ticket)
        if not queue:
            del self.by_key[ticket.caller.key_id]


@dataclass(slots=True)
class _TierState:
    got: float = 0.0
    """Tokens it has got over its weight."""
    blocked: bool = False
    """Some of it wait, and none may go, whatever the others get."""
    shares: dict[str, float] = field(default_factory=dict)
    """Tokens that each of its keys has got."""
    remembered: int = MAX_SHARES
    clock: float = 0.0
    """Where the keys of this tier are."""
    lines: dict[str, _Line] = field(default_factory=dict)
    keys: dict[str, int] = field(default_factory=dict)
    """How many requests of a key wait, of those of which any does."""
    waiting: int = 0
    active: int = 0
    seated: int = 0
    """Sequences of the active ones."""
    allowance: float | None = None
    """Tokens it may still admit by its rate; filled up to one second's worth."""
    filled: float = 0.0


class AdmissionQueue:
    """Requests that wait, and those let in, as far as order and quotas need them.

    `lanes` and `tiers` read the rules in force: they may change at any time. What is done for a request costs a look at
    each tier and at the keys that wait in one of them, however many requests wait.
    """

    def __init__(self, lanes: Callable[[], Lanes], tiers: Callable[[], Mapping[str, Tier]]) -> None:
        self._lanes = lanes
        self._tiers = tiers
        self._states: dict[str, _TierState] = {}
        self._clock = 0.0
        self._released: dict[str, float] = {}
        self._released_before: dict[str, float] = {}
        self._prefilling: dict[Ticket, int] = {}
        self.inside: dict[Ticket, None] = {}
        """Requests that were let in and are not off the engine, the latest last."""
        self.seated = 0
        """Their sequences."""
        self.count = 0

    def __iter__(self) -> Iterator[Ticket]:
        for state in self._states.values():
            for line in state.lines.values():
                yield from line.by_age

    def waiting_in(self, tier: str) -> int:
        """Requests of a tier that wait."""
        return self._state(tier).waiting

    def push(self, ticket: Ticket, now: float) -> None:
        """Let a request wait; one that was set aside goes before its key's others."""
        ticket.entered = now
        if ticket.queued is None:
            ticket.queued = now
        state = self._state(ticket.tier)
        if not state.waiting:
            others = [each.got for each in self._states.values() if each.waiting and not each.blocked]
            state.got = max(state.got, min([self._clock, *others]))
        key = ticket.caller.key_id
        if key not in state.keys:
            where = min(map(state.shares.__getitem__, state.keys), default=state.clock)
            state.shares[key] = max(state.shares.get(key, 0.0), min(state.clock, where))
        state.keys[key] = state.keys.get(key, 0) + 1
        state.waiting += 1
        self.count += 1
        state.lines.setdefault(_line(ticket), _Line()).push(ticket)
        if len(state.shares) > state.remembered:
            _forget_shares(state)

    def remove(self, ticket: Ticket) -> bool:
        """Take a request out that won't wait any longer; whether it was waiting."""
        state = self._state(ticket.tier)
        line = state.lines.get(_line(ticket))
        if line is None or ticket not in line.by_age:
            return False
        line.remove(ticket)
        if not line.by_age:
            del state.lines[_line(ticket)]
        state.keys[ticket.caller.key_id] -= 1
        if not state.keys[ticket.caller.key_id]:
            del state.keys[ticket.caller.key_id]
        state.waiting -= 1
        self.count -= 1
        return True

    def next(self, now: float) -> Ticket | None:
        """The request whose turn it is, among those that windows and quotas let go now.

        It is the same whatever room there is: a large request isn't overtaken by small ones until it starves.
        """
        lines = self._open_lines(now)
        for name, state in self._states.items():
            if name in lines and state.blocked:
                # It was not behind the others for its share's sake, and catches nothing up.
                state.got = max(state.got, self._clock)
            state.blocked = bool(state.waiting) and name not in lines
        if not lines:
            return None
        tier = min(lines, key=self._tier_order)
        return self._first(tier, lines[tier])

    def first_of(self, tier: str, now: float) -> Ticket | None:
        """The request of a tier that would go first."""
        lines = self._open_lines(now).get(tier)
        return self._first(tier, lines) if lines else None

    def admit(self, ticket: Ticket, now: float) -> None:
        """Let this request in, whether or not it is its turn."""
        self.remove(ticket)
        state = self._state(ticket.tier)
        self._clock, state.clock = state.got, state.shares.setdefault(ticket.caller.key_id, state.clock)
        if not ticket.charged:
            ticket.weight = self._tier(ticket.tier).weight
            self._charge(ticket, ticket.cost)
        self.inside[ticket] = None
        self.seated += ticket.sequences
        state.active += 1
        state.seated += ticket.sequences
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
        """An admitted request is off the engine: it has ended, or was set aside. Harmless for one that isn't in."""
        if ticket not in self.inside:
            return
        del self.inside[ticket]
        self._prefilling.pop(ticket, None)
        self.seated -= ticket.sequences
        self._seat(ticket, -1)

    def settle(self, ticket: Ticket) -> None:
        """A request has ended: its party gets back, or pays, what it was charged wrongly."""
        if ticket.charged:
            self._charge(ticket, ticket.prompt_tokens + ticket.output_tokens - ticket.charged)
            ticket.charged = 0

    def move(self, ticket: Ticket, tier: str, lane: str) -> None:
        """Give a request another tier, wherever it is; one that waits goes behind those of its key there.

        What it was charged is charged to its new tier.
        """
        waited = self.remove(ticket)
        inside = ticket in self.inside
        charged = ticket.charged
        if charged:
            self._charge(ticket, -charged)
        if inside:
            self._seat(ticket, -1)
        ticket.tier, ticket.lane = tier, lane
        if inside:
            self._seat(ticket, 1)
        if charged:
            ticket.weight = self._tier(tier).weight
            self._charge(ticket, charged)
        if waited:
            assert ticket.entered is not None
            self.push(ticket, ticket.entered)

    def ahead_of_its_share(self, tier: str, of: str) -> bool:
        """Whether `tier` has got more than `of`, each over its weight: then it may be made to wait for it."""
        return self._state(tier).got > self._state(of).got

    def active(self, tier: str) -> int:
        """Requests of a tier that were let in and are not off the engine."""
        return self._state(tier).active

    def seated_in(self, tier: str) -> int:
        """Sequences of those."""
        return self._state(tier).seated

    def wakes_at(self, now: float) -> float | None:
        """When a window or a rate lets the next waiting request go; `None` if none waits for time to pass."""
        times = [
            max(self._line_opens(name, line, now), quota)
            for tier, state in self._states.items()
            if state.waiting and (quota := self._quota_opens(tier, state, now)) is not None
            for name, line in state.lines.items()
        ]
        return min((each for each in times if each > now), default=None)

    def kept_waiting(self, now: float) -> float:
        """Longest present wait, in seconds, of those that no quota of their tier holds back; 0 where none waits."""
        found = 0.0
        for tier, state in self._states.items():
            quota = self._quota_opens(tier, state, now) if state.waiting else None
            if quota is not None and quota <= now:
                found = max(found, *(now - line.oldest for line in state.lines.values()))
        return found

    # What lets a request go.

    def _open_lines(self, now: float) -> dict[str, list[str]]:
        """By tier, the lines of which one request may go now."""
        found: dict[str, list[str]] = {}
        for tier, state in self._states.items():
            if not state.waiting:
                continue
            quota = self._quota_opens(tier, state, now)
            if quota is None or quota > now:
                continue
            lines = [name for name, line in state.lines.items() if self._line_opens(name, line, now) <= now]
            if lines:
                found[tier] = lines
        long = [tier for tier, lines in found.items() if LONG_LANE in lines]
        if long and self._prefilling:
            # Whose turn it is among the long ones waits until its prompt fits: passed by smaller ones it would starve.
            first = self._first(min(long, key=self._tier_order), [LONG_LANE])
            if sum(self._prefilling.values()) + first.prompt_tokens > self._lanes().long_prefill:
                for tier in long:
                    found[tier].remove(LONG_LANE)
        return {tier: lines for tier, lines in found.items() if lines}

    def _first(self, tier: str, lines: list[str]) -> Ticket:
        """Of the key that has got least, the oldest in these lines of a tier, none of which is empty."""
        state = self._state(tier)
        shares = state.shares
        heads = [
            line.by_key[min(line.by_key, key=shares.__getitem__)][0] for line in (state.lines[name] for name in lines)
        ]
        return min(heads, key=lambda head: (shares[head.caller.key_id], head.resumes == 0, head.entered))

    def _tier_order(self, tier: str) -> tuple[float, float]:
        return self._state(tier).got, -self._tier(tier).weight

    def _quota_opens(self, name: str, state: _TierState, now: float) -> float | None:
        """When the tier's quotas let its next request go, in the past if now; `None` where one must leave first."""
        tier = self._tier(name)
        if tier.max_active is not None and state.active >= tier.max_active:
            return None
        if tier.tokens_per_second is None:
            state.allowance = None
            return now
        return self._refilled(state, tier.tokens_per_second, now)

    def _line_opens(self, name: str, line: _Line, now: float) -> float:
        """When the window lets a line go: it begins with the last one let in, and holds nobody longer than itself.

        An idle engine has no step to share.
        """
        last = self._released.get(name)
        if last == now:
            # Those gathered together are let in together: at one instant, one after the other.
            last = self._released_before.get(name)
        if last is None or not self.inside:
            return now
        lanes = self._lanes()
        window = (lanes.short_window_ms if name == "short" else lanes.throughput_window_ms) / 1000
        return min(line.oldest, last) + window

    def _refilled(self, state: _TierState, rate: float, now: float) -> float:
        """When the tier's token bucket lets one go: as soon as it isn't in debt. It holds one second's worth."""
        if state.allowance is None:
            state.allowance = rate
        else:
            state.allowance = min(state.allowance + (now - state.filled) * rate, rate)
        state.filled = now
        return now if state.allowance > 0 else now + (1e-6 - state.allowance) / rate

    # Accounting.

    def _charge(self, ticket: Ticket, tokens: int) -> None:
        state = self._state(ticket.tier)
        state.got += tokens / ticket.weight
        if ticket.caller.key_id in state.shares:
            state.shares[ticket.caller.key_id] += tokens
        if state.allowance is not None:
            state.allowance -= tokens
        ticket.charged += tokens

    def _seat(self, ticket: Ticket, sign: int) -> None:
        state = self._state(ticket.tier)
        state.active += sign
        state.seated += sign * ticket.sequences

    def _tier(self, name: str) -> Tier:
        return self._tiers().get(name, _UNKNOWN)

    def _state(self, tier: str) -> _TierState:
        return self._states.setdefault(tier, _TierState())


def _forget_shares(state: _TierState) -> None:
    """Forget the keys that would start where the others are anyway."""
    state.shares = {key: got for key, got in state.shares.items() if key in state.keys or got > state.clock}
    state.remembered = max(MAX_SHARES, 2 * len(state.shares))


def lane_of(prompt_tokens: int, tier: Tier, lanes: Lanes, *, long: bool = False) -> str:
    """The lane in which a request waits."""
    return LONG_LANE if long or prompt_tokens > lanes.long_prompt else tier.lane


def _line(ticket: Ticket) -> str:
    return _ASIDE if ticket.resumes else ticket.lane
