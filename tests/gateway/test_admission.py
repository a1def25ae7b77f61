"""Letting requests in, setting them aside, and ending them in time; on a clock that only the test moves."""

import asyncio
import heapq
import itertools
from collections.abc import Callable
from typing import Any

import pytest

from engine_host.api.flight import our_id
from engine_host.flight.layout import OWNER_BYTES
from engine_host.gateway.admission import Admission
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.ticket import Ticket
from profiles.schema import Profile
from tests.gateway.parts import Engine, NoBudgets, opened, profile

AT_ONCE = {"short_window_ms": 0.0, "throughput_window_ms": 0.0}


class Clock:
    """Seconds, and who wants to be called when they have passed."""

    def __init__(self) -> None:
        self.now = 0.0
        self._calls: list[tuple[float, int, Callable[[], None], list[bool]]] = []
        self._numbers = itertools.count()

    def __call__(self) -> float:
        return self.now

    def later(self, delay: float, call: Callable[[], None]) -> Any:
        alive = [True]
        heapq.heappush(self._calls, (self.now + delay, next(self._numbers), call, alive))

        class Handle:
            def cancel(self) -> None:
                alive[0] = False

        return Handle()

    async def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self._calls and self._calls[0][0] <= end:
            self.now, _, call, alive = heapq.heappop(self._calls)
            if alive[0]:
                call()
            await settled()
        self.now = end
        await settled()


async def settled() -> None:
    for _ in range(5):
        await asyncio.sleep(0)


class Scene:
    """An admission with an engine of four slots."""

    def __init__(self, slots: int = 4, **sections: Any) -> None:
        gateway = sections.pop("gateway", {})
        gateway = {**gateway, "lanes": {**AT_ONCE, **gateway.get("lanes", {})}}
        self.rules: Profile = profile(gateway=gateway, **sections)
        self.clock = Clock()
        self.budgets = NoBudgets()
        self.admission = Admission(
            lambda: self.rules, lambda: self.budgets, clock=self.clock, wall=lambda: 0.0, later=self.clock.later
        )
        self.engine = Engine(self.admission, slots)
        self.engine.when_taken = self.leaves
        self.tasks: dict[Ticket, asyncio.Task[Any]] = {}

    async def comes(self, name: str, tier: str = "standard", **given: Any) -> Ticket:
        """A request arrives and waits for its turn."""
        ticket = opened(self.admission, name, tier, arrived=self.clock.now, **given)
        self.tasks[ticket] = asyncio.create_task(self.admission.enter(ticket))
        await settled()
        return ticket

    def leaves(self, ticket: Ticket) -> None:
        """What a request does that is taken off the engine: it waits again, or ends."""
        if self.admission.set_aside(ticket):
            self.admission.held(ticket)
            self.tasks[ticket] = asyncio.create_task(self.admission.again(ticket))
        elif ticket.refusal is not None:
            self.admission.close(ticket, "abort")

    async def runs(self, ticket: Ticket, tokens: int = 1) -> None:
        """It has a turn, and produces tokens."""
        assert self.inside(ticket), f"{ticket.request_id} waits"
        self.admission.resumed(ticket)
        self.admission.produced(ticket, tokens, self.clock.now)

    async def ends(self, ticket: Ticket, reason: str = "stop") -> None:
        self.admission.close(ticket, reason)
        await settled()

    def inside(self, ticket: Ticket) -> bool:
        return self.tasks[ticket].done() and self.tasks[ticket].exception() is None

    def refusal(self, ticket: Ticket) -> Refusal:
        error = self.tasks[ticket].exception() if self.tasks[ticket].done() else None
        assert isinstance(error, Refusal)
        return error


async def test_an_engine_is_filled_and_the_rest_waits_its_turn() -> None:
    scene = Scene(slots=2)
    tickets = [await scene.comes(f"r{number}") for number in range(5)]
    # One more than it runs waits in the engine itself.
    assert [scene.inside(each) for each in tickets] == [True, True, True, False, False]
    await scene.ends(tickets[0])
    assert scene.inside(tickets[3])
    assert not scene.inside(tickets[4])


async def test_nobody_is_let_in_while_there_is_no_engine() -> None:
    scene = Scene()
    scene.engine.there = False
    ticket = await scene.comes("r")
    assert not scene.inside(ticket)
    scene.engine.there = True
    scene.admission.pump()
    await settled()
    assert scene.inside(ticket)


async def test_an_empty_engine_takes_what_would_never_fit() -> None:
    scene = Scene()
    scene.engine.pages = (10, 10)
    assert scene.inside(await scene.comes("huge", prompt_tokens=10_000))
    assert scene.inside(await scene.comes("fits", prompt_tokens=16))
    assert not scene.inside(await scene.comes("does not fit", prompt_tokens=1_000))


async def test_a_premium_request_takes_the_place_of_the_youngest_best_effort_one() -> None:
    scene = Scene(slots=3)
    tickets = []
    for number in range(4):
        tickets.append(await scene.comes(f"b{number}", "best-effort"))
        await scene.clock.advance(1)
    for each in tickets[:3]:
        await scene.runs(each, 5)
    premium = await scene.comes("premium", "premium")
    assert scene.inside(premium)
    assert scene.engine.taken_off == [tickets[2]]
    await scene.runs(premium)
    await settled()
    assert not scene.inside(tickets[2])
    await scene.ends(premium)
    await settled()
    assert scene.inside(tickets[2]), "it goes on when there is room"
    await scene.runs(tickets[2])
    assert tickets[2].output_tokens == 6
    assert [(begin, end) for begin, end in tickets[2].held] == [(4.0, 4.0)]


async def test_premium_requests_that_were_gathered_take_their_places_together() -> None:
    scene = Scene(slots=6, gateway={"lanes": {"short_window_ms": 10.0}})
    for number in range(7):
        running = await scene.comes(f"b{number}", "best-effort")
        if number < 6:
            await scene.runs(running, 5)
        await scene.clock.advance(1)
    scene.engine.when_taken = lambda ticket: None  # The engine is in the middle of a step.
    premium = [await scene.comes("p", "premium")]
    await scene.clock.advance(0.001)
    premium += [await scene.comes(f"p{number}", "premium") for number in range(4)]
    assert [scene.inside(each) for each in premium] == [True, False, False, False, False]
    await scene.clock.advance(0.01)
    assert all(scene.inside(each) for each in premium)


@pytest.mark.parametrize("why", ["not preemptible", "can't be resumed", "has produced nothing", "checkpointing is off"])
async def test_others_are_never_set_aside(why: str) -> None:
    off = {"lanes": {"checkpoint": False}} if why == "checkpointing is off" else {}
    scene = Scene(slots=1, gateway=off)
    tier = "standard" if why == "not preemptible" else "best-effort"
    running = await scene.comes("running", tier)
    await scene.comes("ahead", tier)
    if why != "has produced nothing":
        await scene.runs(running)
    if why == "can't be resumed":
        scene.engine.stubborn.add("running")
    assert not scene.inside(await scene.comes("premium", "premium"))
    assert scene.engine.taken_off == []


async def test_the_floor_of_best_effort_is_not_taken_from_it() -> None:
    scene = Scene(slots=1, gateway={"lanes": {"max_queued": 100_000}})
    served = {"premium": 0, "best-effort": 0}
    for tier in served:
        for number in range(3):
            await scene.comes(f"{tier}-{number}", tier)
    for number in range(400):
        inside = [each for each in scene.tasks if scene.inside(each) and each.ended is None]
        for each in inside[:1]:
            await scene.runs(each)
            await scene.ends(each)
            served[each.tier] += 1
            await scene.comes(f"more-{number}", each.tier)
    assert 15 <= served["best-effort"] <= 40, served


async def test_a_reserve_keeps_room_for_the_highest_tier() -> None:
    scene = Scene(slots=4, gateway={"lanes": {"reserve": 0.5, "checkpoint": False}})
    standard = [await scene.comes(f"s{number}") for number in range(4)]
    assert [scene.inside(each) for each in standard] == [True, True, False, False]
    assert scene.inside(await scene.comes("premium", "premium"))


async def test_a_full_queue_says_when_to_come_again() -> None:
    scene = Scene(slots=1, gateway={"lanes": {"max_queued": 2}})
    tickets = [await scene.comes(f"r{number}") for number in range(4)]
    refused = scene.refusal(await scene.comes("one too many"))
    assert refused.status == 429
    assert "2 requests wait already" in str(refused)
    assert int(refused.headers["Retry-After"]) >= 1
    for each in tickets[:2]:
        await scene.ends(each)
    assert scene.inside(tickets[3])


async def test_a_tier_has_a_queue_and_a_concurrency_of_its_own() -> None:
    scene = Scene(slots=9, tiers={"best-effort": {"max_active": 1, "max_queued": 1}})
    first, second, third = [await scene.comes(f"r{n}", "best-effort") for n in range(3)]
    assert scene.inside(first)
    assert not scene.inside(second)
    assert "tier best-effort" in str(scene.refusal(third))
    assert scene.inside(await scene.comes("other"))


@pytest.mark.parametrize(("before", "what"), [(0, "first token"), (3, "next token")])
async def test_a_deadline_that_has_passed_ends_the_request(before: int, what: str) -> None:
    scene = Scene(tiers={"standard": {"ttft_deadline_s": 2.0, "ttl_deadline_s": 1.0}})
    ticket = await scene.comes("r")
    for _ in range(before):
        await scene.clock.advance(0.9)
        await scene.runs(ticket)
    await scene.clock.advance(0.9 if before else 1.9)
    assert ticket.refusal is None
    await scene.clock.advance(0.2)
    assert ticket.refusal is not None
    assert ticket.refusal.status == 408
    assert f"The {what} did not come within" in str(ticket.refusal)
    assert ticket.ended is not None
    assert scene.engine.taken_off == [ticket]


async def test_the_deadline_for_the_first_token_runs_in_the_queue_too() -> None:
    scene = Scene(slots=1, tiers={"standard": {"ttft_deadline_s": 2.0}})
    running = [await scene.comes(f"r{number}") for number in range(2)]
    for each in running:
        await scene.runs(each)
    waiting = await scene.comes("waiting")
    await scene.clock.advance(2.1)
    assert scene.refusal(waiting).status == 408
    assert scene.admission.waiting == 0
    assert all(each.refusal is None for each in running)


async def test_time_in_which_the_host_holds_a_request_counts_for_no_deadline() -> None:
    scene = Scene(tiers={"standard": {"ttl_deadline_s": 1.0}})
    ticket = await scene.comes("r")
    await scene.runs(ticket)
    scene.engine.there = False
    scene.admission.held(ticket)
    await scene.clock.advance(30)
    scene.engine.there = True
    scene.admission.resumed(ticket)
    await scene.clock.advance(0.5)
    assert ticket.refusal is None
    await scene.clock.advance(2)
    assert ticket.refusal is not None


async def test_a_client_that_leaves_the_queue_leaves_nothing_behind() -> None:
    scene = Scene(slots=1)
    for number in range(2):
        await scene.comes(f"r{number}")
    waiting = await scene.comes("leaves")
    scene.tasks[waiting].cancel()
    await settled()
    await scene.ends(waiting, "abort")
    assert scene.admission.waiting == 0


async def test_the_operator_cancels_and_moves_requests() -> None:
    scene = Scene(slots=1)
    running, _, waiting = [await scene.comes(f"r{number}") for number in range(3)]
    await scene.runs(running)
    assert scene.admission.move("r2", "premium")
    assert waiting.tier == "premium"
    assert scene.admission.cancel("r2")
    await settled()
    assert "operator" in str(scene.refusal(waiting))
    assert scene.admission.cancel("r0")
    assert running.ended is not None
    assert not scene.admission.cancel("nobody")
    with pytest.raises(KeyError):
        scene.admission.move("r1", "no such tier")


async def test_a_changed_profile_is_in_force_at_once() -> None:
    scene = Scene(slots=9, tiers={"standard": {"max_active": 1}})
    await scene.comes("first")
    second = await scene.comes("second")
    assert not scene.inside(second)
    scene.rules = profile()
    scene.admission.pump()
    await settled()
    assert scene.inside(second)


async def test_tokens_are_free_at_once_and_money_is_settled_when_the_cost_is_known() -> None:
    scene = Scene(keys={"tokens_per_minute": 1_000, "usd_per_day": 5.0})
    known: asyncio.Future[float | None] = asyncio.get_running_loop().create_future()
    asked: list[Ticket] = []

    def cost_of(ticket: Ticket) -> asyncio.Future[float | None]:
        asked.append(ticket)
        return known

    scene.admission._cost_of = cost_of
    ticket = await scene.comes("r", prompt_tokens=100)
    await scene.runs(ticket, 7)
    await scene.ends(ticket)
    assert (asked, scene.budgets.settled) == ([ticket], [(107, 0.0)])
    known.set_result(0.25)
    await settled()
    assert scene.budgets.settled == [(107, 0.0), (107, 0.25)]
    assert scene.budgets.grants[1].tokens == 107, "the tokens are not given back twice"


async def test_who_has_no_limit_of_money_waits_for_no_cost() -> None:
    scene = Scene(keys={"tokens_per_minute": 1_000})
    scene.admission._cost_of = lambda ticket: asyncio.get_running_loop().create_future()
    ticket = await scene.comes("r", prompt_tokens=100)
    await scene.runs(ticket, 7)
    await scene.ends(ticket)
    await settled()
    assert scene.budgets.settled == [(107, 0.0)]
    assert not scene.admission._tasks


async def test_an_id_is_one_request_s_while_it_lives_and_for_a_while_after() -> None:
    scene = Scene()
    first, second = await scene.comes("r"), await scene.comes("r")
    await scene.ends(first)
    third = await scene.comes("r")
    assert first.request_id == "r"
    assert len({first.request_id, second.request_id, third.request_id}) == 3


async def test_an_id_can_be_found_again_in_the_flight_record() -> None:
    scene = Scene()
    for given in ("3_r", "12_34_r", "ä" * 500, "r\ud800", "r" * 400, "r" * 401):
        own = (await scene.comes(given)).request_id
        for sequence in ("", "1023_"):
            written = f"{sequence}{own}-01234567".encode()
            assert len(written) <= OWNER_BYTES
            assert our_id(written.decode()) == own


async def test_budgets_are_settled_by_what_was_used_and_released_by_who_never_began() -> None:
    scene = Scene(slots=1, keys={"tokens_per_minute": 1_000})
    used, _, never = [await scene.comes(f"r{number}", prompt_tokens=100) for number in range(3)]
    await scene.runs(used, 7)
    await scene.ends(used)
    assert scene.budgets.settled == [(107, 0.0)]
    scene.admission.end(never, Refusal(408, "late"))
    await scene.ends(never)
    assert scene.budgets.released == 0, "it had been let in meanwhile"
    waiting = await scene.comes("waiting")
    await scene.comes("last")
    scene.tasks[waiting].cancel()
    await scene.ends(waiting, "abort")
    assert scene.budgets.released + len(scene.budgets.settled) == 3


async def test_prompts_over_the_limits() -> None:
    rules = {"hard_limit": 100, "soft_limit": 50, "over_soft": "long-queue", "over_hard": 413}
    scene = Scene(gateway={"prompts": rules})
    assert (await scene.comes("short", prompt_tokens=50)).lane == "short"
    assert (await scene.comes("long", prompt_tokens=51)).lane == "long"
    with pytest.raises(Refusal, match="The prompt has 101 tokens; this server takes at most 100") as refused:
        await scene.comes("too long", prompt_tokens=101)
    assert refused.value.status == 413
    scene.rules = profile(gateway={"prompts": {**rules, "over_soft": "reject"}})
    with pytest.raises(Refusal, match="has 51 tokens; this server takes at most 50"):
        await scene.comes("long", prompt_tokens=51)


async def test_the_picture_says_who_is_where() -> None:
    scene = Scene(slots=1, tiers={"premium": {"ttft_target_ms": 200.0}})
    running, *_ = [await scene.comes(f"r{number}") for number in range(3)]
    await scene.runs(running)
    await scene.clock.advance(2)
    status = scene.admission.status({"standard": 0.5}, {})
    lanes = {lane.name: lane for lane in status.lanes}
    assert (lanes["short"].waiting, lanes["short"].oldest_s, lanes["short"].tokens) == (1, 2.0, 10)
    tiers = {tier.name: tier for tier in status.tiers}
    assert (tiers["standard"].active, tiers["standard"].waiting, tiers["standard"].ttft_p99_s) == (2, 1, 0.5)
    assert (tiers["premium"].ttft_target_s, tiers["premium"].ttft_p99_s) == (0.2, None)
    assert status.breaker.state == "closed"
    assert status.drain_rps == 1.0


async def test_requests_under_one_id_are_told_apart() -> None:
    scene = Scene(slots=4)
    first = await scene.comes("same")
    second = await scene.comes("same")
    assert first.request_id == "same" != second.request_id
    await scene.ends(first)
    await scene.ends(first)
    third = await scene.comes("same")
    await scene.ends(second)
    await scene.ends(third)
    status = scene.admission.status({}, {})
    assert [tier.active for tier in status.tiers] == [0, 0, 0]
    assert len({scene.admission.ticket(each.request_id) for each in (second, third)}) == 2


async def test_a_request_that_is_ended_in_the_moment_of_its_turn_gets_none() -> None:
    scene = Scene(slots=1)
    tickets = [await scene.comes(f"r{number}") for number in range(3)]
    waiting = tickets[2]
    assert not scene.inside(waiting)
    scene.admission.close(tickets[0], "stop")
    scene.admission.end(waiting, Refusal(503, "ended"))
    await settled()
    assert scene.refusal(waiting).status == 503
    await scene.ends(waiting, "abort")
    assert scene.inside(await scene.comes("next")), "its place is free again"


async def test_whoever_waits_is_told_when_no_engine_will_come() -> None:
    scene = Scene(slots=1)
    tickets = [await scene.comes(f"r{number}") for number in range(3)]
    scene.engine.there = False
    scene.admission.engine_gone()
    scene.admission.engine_given_up(Refusal(503, "no engine"))
    await settled()
    assert scene.refusal(tickets[2]).status == 503
    assert tickets[0].refusal is None, "who has a place finds out by itself"


async def test_time_without_an_engine_counts_for_no_deadline_in_the_queue_either() -> None:
    scene = Scene(slots=1, tiers={"standard": {"ttft_deadline_s": 10.0}})
    running = [await scene.comes(f"r{number}") for number in range(2)]
    for each in running:
        await scene.runs(each)
    before = await scene.comes("before")
    await scene.clock.advance(4)
    scene.engine.there = False
    scene.admission.engine_gone()
    during = await scene.comes("during")
    await scene.clock.advance(60)
    scene.engine.there = True
    scene.admission.engine_back()
    await scene.clock.advance(5.5)
    assert (before.refusal, during.refusal) == (None, None)
    await scene.clock.advance(1)
    assert scene.refusal(before).status == 408
    assert during.refusal is None
    await scene.clock.advance(4)
    assert scene.refusal(during).status == 408


async def test_changed_deadlines_are_in_force_for_those_that_are_here() -> None:
    scene = Scene()
    running, starting = await scene.comes("running"), await scene.comes("starting")
    await scene.runs(running)
    scene.rules = profile(tiers={"standard": {"ttft_deadline_s": 3.0, "ttl_deadline_s": 1.0}})
    scene.admission.pump()
    await scene.clock.advance(1.1)
    assert (running.ended is not None, starting.ended) == (True, None)
    await scene.clock.advance(2)
    assert starting.ended is not None


async def test_a_request_can_be_moved_before_it_waits_and_after_it_was_ended() -> None:
    scene = Scene(slots=1)
    early = opened(scene.admission, "early")
    assert scene.admission.move("early", "premium")
    assert early.tier == "premium"
    scene.admission.close(early, "abort")
    tickets = [await scene.comes(f"r{number}", "best-effort") for number in range(3)]
    scene.admission.end(tickets[2], Refusal(503, "ended"))
    assert scene.admission.move("r2", "premium")
    await settled()
    assert scene.refusal(tickets[2]).status == 503
    for each in tickets:
        await scene.ends(each)
    assert [tier.active for tier in scene.admission.status({}, {}).tiers] == [0, 0, 0]


async def test_the_highest_tier_has_its_reserve_whosever_turn_it_is() -> None:
    scene = Scene(slots=4, gateway={"lanes": {"reserve": 0.5, "checkpoint": False}})
    for number in range(8):
        # Premium has got more than its share: the others' turn comes first.
        await scene.ends(await scene.comes(f"before-{number}", "premium", max_tokens=500, prompt_tokens=500))
    standard = [await scene.comes(f"s{number}") for number in range(4)]
    assert [scene.inside(each) for each in standard] == [True, True, False, False]
    assert scene.inside(await scene.comes("p0", "premium"))
    assert scene.inside(await scene.comes("p1", "premium"))


async def test_a_reserve_starves_nobody() -> None:
    scene = Scene(slots=2, gateway={"lanes": {"reserve": 0.5, "checkpoint": False, "max_queued": 100_000}})
    for number in range(6):
        await scene.comes(f"p{number}", "premium")
    standard = [await scene.comes(f"s{number}") for number in range(3)]
    for number in range(100):
        first = next(each for each in scene.tasks if scene.inside(each) and each.ended is None)
        await scene.ends(first)
        if first.tier == "premium":
            await scene.comes(f"more-{number}", "premium")
    assert all(each.ended is not None for each in standard)


async def test_a_reserve_of_pages_is_used_up_by_those_it_is_for() -> None:
    scene = Scene(slots=9, gateway={"lanes": {"reserve": 0.5, "checkpoint": False}})
    scene.engine.pages = (100, 100)
    assert scene.inside(await scene.comes("first", prompt_tokens=16))
    scene.engine.pages = (100, 60)
    assert not scene.inside(await scene.comes("too large beside the reserve", prompt_tokens=16 * 20))
    assert scene.inside(await scene.comes("premium", "premium", prompt_tokens=16 * 49))
    scene.admission.pump()
    await settled()
    other = next(each for each in scene.tasks if each.request_id.startswith("too large"))
    assert scene.inside(other), "what premium has is not kept for it once more"


async def test_pages_that_become_free_are_noticed_soon() -> None:
    scene = Scene()
    scene.engine.pages = (100, 100)
    await scene.comes("first")
    scene.engine.pages = (100, 1)
    waiting = await scene.comes("waiting", prompt_tokens=160)
    assert not scene.inside(waiting)
    scene.engine.pages = (100, 50)
    await scene.clock.advance(0.05)
    assert scene.inside(waiting)


async def test_a_backlog_that_a_quota_makes_is_not_the_engines_saturation() -> None:
    scene = Scene(gateway={"breaker": {"queue_delay_s": 1.0}}, tiers={"best-effort": {"max_active": 1}})
    for number in range(3):
        await scene.comes(f"b{number}", "best-effort")
    for _ in range(60):
        await scene.clock.advance(0.25)
        scene.admission.observe()
    assert scene.admission.breaker.shed == frozenset()


async def test_saturation_sheds_and_a_good_probe_ends_it() -> None:
    scene = Scene(slots=1, gateway={"breaker": {"queue_delay_s": 1.0, "after_s": 2.0, "hold_s": 2.0}})
    tickets = [await scene.comes(f"r{number}", "best-effort") for number in range(3)]
    for _ in range(14):
        await scene.clock.advance(0.25)
        scene.admission.observe()
    assert scene.admission.breaker.shed == {"best-effort"}
    refused = scene.refusal(await scene.comes("turned away", "best-effort"))
    assert (refused.status, refused.headers["Retry-After"].isdigit()) == (503, True)
    for each in tickets:
        await scene.ends(each)
    await scene.clock.advance(2)
    probe = await scene.comes("probe", "best-effort")
    await scene.runs(probe)
    assert scene.admission.breaker.shed == frozenset()


async def test_a_probe_that_is_refused_before_the_queue_gives_its_chance_to_the_next() -> None:
    scene = Scene(slots=1, gateway={"breaker": {"queue_delay_s": 9.0, "after_s": 1.0, "hold_s": 1.0}})
    for moment in (0.0, 1.0):
        scene.clock.now = moment
        scene.admission.observe("broken.")
    scene.clock.now = 2.0
    left = opened(scene.admission, "left", "best-effort")
    scene.admission.breaker.check(left.tier, left.request_id, 2.0)
    scene.admission.close(left, "abort")
    assert scene.inside(await scene.comes("next", "best-effort"))


async def full(scene: Scene, count: int, tier: str = "best-effort") -> list[Ticket]:
    """Requests of a tier, each of which has produced a token."""
    tickets = []
    for number in range(count):
        tickets.append(await scene.comes(f"{tier}-{number}", tier))
        await scene.runs(tickets[-1])
        await scene.clock.advance(1)
    return tickets


async def test_a_place_is_taken_from_nobody_twice() -> None:
    scene = Scene(slots=2)
    tickets = await full(scene, 3)
    scene.engine.when_taken = lambda ticket: None  # It takes a while to leave.
    premium = [await scene.comes(f"p{number}", "premium") for number in range(4)]
    assert scene.engine.taken_off == tickets[::-1], "the youngest first, each once"
    assert [scene.inside(each) for each in premium] == [True, True, True, False]
    assert [tier.checkpointed for tier in scene.admission.status({}, {}).tiers] == [0, 0, 3]


async def test_a_place_is_not_taken_from_an_equal_or_from_who_has_less_than_its_share() -> None:
    equal = Scene(slots=1, tiers={"a": {"preemptible": True}, "b": {"preemptible": True}})
    await full(equal, 2, "a")
    assert not equal.inside(await equal.comes("b", "b"))
    behind = Scene(slots=1)
    for number in range(40):
        await behind.ends(await behind.comes(f"before-{number}", "premium", max_tokens=500, prompt_tokens=500))
    low = await behind.comes("low", "best-effort", prompt_tokens=1, max_tokens=1)
    await behind.runs(low)
    await behind.comes("ahead", "best-effort", prompt_tokens=1, max_tokens=1)
    for number in range(40):
        each = await behind.comes(f"p{number}", "premium", max_tokens=500, prompt_tokens=500)
        if not behind.inside(each):
            break
    assert behind.engine.taken_off == []


async def test_who_is_being_ended_is_not_set_aside() -> None:
    scene = Scene(slots=1)
    tickets = await full(scene, 2)
    scene.engine.when_taken = lambda ticket: None
    scene.admission.cancel("best-effort-1")
    await scene.comes("p", "premium")
    assert scene.engine.taken_off == [tickets[1], tickets[0]]


async def test_nobody_is_set_aside_where_that_frees_too_few_pages() -> None:
    scene = Scene(slots=9)
    scene.engine.pages = (1_000, 1_000)
    await full(scene, 2)
    scene.engine.pages = (1_000, 0)
    assert not scene.inside(await scene.comes("p", "premium", prompt_tokens=5_000))
    assert scene.engine.taken_off == []
    assert scene.inside(await scene.comes("q", "premium", prompt_tokens=16)) is False, "it waits behind the first"


async def test_pages_of_those_just_let_in_are_counted_until_the_engine_tells_of_them() -> None:
    scene = Scene(slots=9)
    scene.engine.pages = (100, 100)
    scene.engine.as_of = -1.0
    first = await scene.comes("first", prompt_tokens=16 * 60)
    second = await scene.comes("second", prompt_tokens=16 * 60)
    assert (scene.inside(first), scene.inside(second)) == (True, False)


async def test_a_large_request_is_not_passed_for_the_sake_of_a_reserve() -> None:
    scene = Scene(slots=4, gateway={"lanes": {"reserve": 0.25, "checkpoint": False}})
    for number in range(8):
        await scene.ends(await scene.comes(f"before-{number}", "premium", max_tokens=500, prompt_tokens=500))
    await scene.comes("running", "premium", sequences=2)
    large = await scene.comes("large", sequences=4)
    assert not scene.inside(large)
    assert not scene.inside(await scene.comes("small", "premium"))


async def test_the_queue_is_measured_again_after_its_budget_was_asked() -> None:
    scene = Scene(slots=1, gateway={"lanes": {"max_queued": 1}}, keys={"tokens_per_minute": 1_000})
    await full(scene, 2, "standard")
    asked, reserve = asyncio.Event(), scene.budgets.reserve

    async def slowly(*args: Any) -> Any:
        await asked.wait()
        return await reserve(*args)

    scene.budgets.reserve = slowly  # type: ignore[method-assign]
    tickets = [await scene.comes(f"r{number}") for number in range(2)]
    asked.set()
    await settled()
    assert not scene.tasks[tickets[0]].done()
    assert scene.refusal(tickets[1]).status == 429
    await scene.ends(tickets[1])
    assert scene.budgets.released == 1


async def test_a_long_prompt_that_is_done_lets_the_next_in_at_once() -> None:
    scene = Scene(gateway={"lanes": {"long_prompt": 100, "long_prefill": 200}})
    first, second = [await scene.comes(f"r{number}", prompt_tokens=150) for number in range(2)]
    assert not scene.inside(second)
    await scene.runs(first)
    await settled()
    assert scene.inside(second)


async def test_a_probe_that_waited_too_long_is_a_bad_one() -> None:
    scene = Scene(slots=1, gateway={"breaker": {"queue_delay_s": 1.0, "after_s": 1.0, "hold_s": 1.0}})
    running = await full(scene, 2, "standard")
    for _ in range(2):
        scene.admission.observe("broken.")
        await scene.clock.advance(1)
    probe = await scene.comes("probe", "best-effort")
    await scene.clock.advance(5)
    await scene.ends(running[0])
    await scene.runs(probe)
    assert "best-effort" in scene.admission.breaker.shed


async def test_what_was_set_aside_stays_held_when_an_engine_comes() -> None:
    scene = Scene(slots=1)
    low = (await full(scene, 2))[1]
    await scene.comes("p", "premium")
    assert scene.admission.set_aside(low) is False
    assert not scene.inside(low)
    scene.admission.engine_gone()
    scene.admission.engine_back()
    assert low.held == [(2.0, None)]


async def test_time_before_the_last_token_in_which_it_was_held_excuses_nothing() -> None:
    scene = Scene(tiers={"standard": {"ttl_deadline_s": 2.0}})
    ticket = await scene.comes("r")
    await scene.runs(ticket)
    scene.admission.held(ticket)
    await scene.clock.advance(30)
    await scene.runs(ticket)
    await scene.clock.advance(2.5)
    assert ticket.refusal is not None


async def test_an_ended_request_is_never_ended_by_a_deadline_and_leaves_no_timer() -> None:
    scene = Scene(tiers={"standard": {"ttft_deadline_s": 2.0, "ttl_deadline_s": 5.0}})
    ticket = await scene.comes("r")
    await scene.runs(ticket)
    await scene.ends(ticket)
    assert len(scene.admission._deadlines) == 0
    await scene.clock.advance(10)
    assert (ticket.refusal, scene.engine.taken_off) == (None, [])


async def test_a_request_gets_the_deadlines_and_the_lane_of_the_tier_it_is_moved_to() -> None:
    scene = Scene(
        slots=1,
        gateway={"lanes": {"long_prompt": 100}},
        tiers={"premium": {"ttft_deadline_s": 5.0}, "standard": {"ttft_deadline_s": 50.0}},
    )
    await full(scene, 2)
    short, long = await scene.comes("short"), await scene.comes("long", prompt_tokens=200)
    for each in (short, long):
        scene.admission.move(each.request_id, "best-effort")
    assert (short.lane, long.lane) == ("throughput", "long")
    scene.admission.move("short", "premium")
    scene.admission.move("long", "standard")
    await scene.clock.advance(6)
    assert (short.refusal is None, long.refusal is None) == (False, True)


async def test_what_a_request_did_not_use_is_its_tiers_again() -> None:
    scene = Scene(slots=1)
    for number in range(20):
        await scene.ends(await scene.comes(f"b{number}", "best-effort", prompt_tokens=1, max_tokens=500))
    await full(scene, 2, "premium")
    assert scene.admission._queue._states["best-effort"].got == 20, "one token each"


async def test_nothing_is_kept_of_a_request_that_ended_while_it_was_being_set_aside() -> None:
    scene = Scene(slots=1)
    low = (await full(scene, 2))[1]
    scene.engine.when_taken = lambda ticket: None
    premium = await scene.comes("p", "premium")
    assert scene.admission.set_aside(low)
    await scene.ends(low)
    await scene.ends(premium)
    assert not scene.admission.set_aside(low)
    assert not scene.admission._aside


async def test_a_queue_full_of_lower_tiers_keeps_no_higher_one_out() -> None:
    scene = Scene(slots=1, gateway={"lanes": {"max_queued": 3, "checkpoint": False}})
    for number in range(2 + 3):
        await scene.comes(f"b{number}", "best-effort")
    assert scene.refusal(await scene.comes("b", "best-effort")).status == 429
    premium = [await scene.comes(f"p{number}", "premium") for number in range(3)]
    assert not any(scene.tasks[each].done() for each in premium)
    assert scene.refusal(await scene.comes("p", "premium")).status == 429
    assert scene.refusal(await scene.comes("s", "standard")).status == 429


async def test_a_profile_without_a_breaker_turns_nobody_away_any_more() -> None:
    scene = Scene(slots=1, gateway={"breaker": {"queue_delay_s": 1.0, "after_s": 1.0, "hold_s": 60.0}})
    for _ in range(4):
        scene.admission.observe("The engine is being started again.")
        await scene.clock.advance(1)
    assert scene.refusal(await scene.comes("shed")).status == 503
    scene.rules = profile()
    scene.admission.observe("The engine is being started again.")
    assert scene.inside(await scene.comes("let in"))
    assert scene.admission.status({}, {}).breaker.state == "closed"
