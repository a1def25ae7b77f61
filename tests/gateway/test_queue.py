"""The order in which requests that wait are let in, for any mix of tiers, keys, lanes and engine sizes."""

from collections import Counter, defaultdict
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.gateway.caller import Caller
from engine_host.gateway.queue import AdmissionQueue, Room, lane_of
from engine_host.gateway.ticket import Ticket
from profiles.gateway import Lanes, Tier

AT_ONCE = Lanes(short_window_ms=0.0, throughput_window_ms=0.0)
TIERS = {
    "premium": Tier(weight=16.0),
    "standard": Tier(weight=4.0),
    "best-effort": Tier(weight=1.0, lane="throughput", preemptible=True),
}


def queue(lanes: Lanes = AT_ONCE, tiers: dict[str, Tier] = TIERS) -> AdmissionQueue:
    return AdmissionQueue(lambda: lanes, lambda: tiers)


def ticket(name: str, tier: str = "standard", key: str = "k", prompt: int = 10, lanes: Lanes = AT_ONCE) -> Ticket:
    lane = lane_of(prompt, TIERS[tier], lanes)
    return Ticket(name, Caller(key, key), tier, lane, prompt, max_tokens=10, arrived=0.0)


def pop(waiting: AdmissionQueue, room: Room, now: float) -> Ticket | None:
    """Let the next one in, if there is room for it."""
    each = waiting.next(now)
    if each is None or not room.holds(each):
        return None
    waiting.admit(each, now)
    return each


def drain(waiting: AdmissionQueue, count: int, now: float = 0.0) -> list[Ticket]:
    """Let in one after the other; each leaves at once."""
    done = []
    for _ in range(count):
        each = pop(waiting, Room(1), now)
        if each is None:
            break
        waiting.left(each)
        done.append(each)
    return done


def test_one_after_another_waits_for_nothing() -> None:
    waiting = queue(Lanes())
    for moment in (0.0, 1.0, 2.0):
        waiting.push(ticket(f"r{moment}"), moment)
        assert pop(waiting, Room(1), moment) is not None


def test_those_on_the_heels_of_another_are_gathered_and_let_in_together() -> None:
    waiting = queue(Lanes(short_window_ms=10.0))
    for number in range(4):
        waiting.push(ticket(f"r{number}"), number / 1000)
        if number == 0:
            assert pop(waiting, Room(9), 0.0) is not None
    assert pop(waiting, Room(9), 0.009) is None
    assert waiting.wakes_at(0.009) == 0.01
    assert [pop(waiting, Room(9), 0.01) for _ in range(4)].count(None) == 1


def test_no_window_holds_a_request_longer_than_itself() -> None:
    waiting = queue(Lanes(short_window_ms=10.0))
    waiting.push(ticket("r0"), 0.0)
    pop(waiting, Room(9), 0.0)
    waiting.push(ticket("r1"), 0.005)
    # The engine is full when the window ends; once it isn't, nothing else is waited for.
    assert pop(waiting, Room(0), 0.01) is None
    assert pop(waiting, Room(1), 0.0151) is not None


def test_tiers_share_by_weight_and_the_least_one_has_its_floor() -> None:
    waiting = queue()
    for number in range(400):
        for tier in TIERS:
            waiting.push(ticket(f"{tier}-{number}", tier), 0.0)
    first = Counter(each.tier for each in drain(waiting, 210))
    assert first["premium"] == 160
    assert first["standard"] == 40
    assert first["best-effort"] == 10


def test_within_a_tier_a_key_with_many_requests_takes_no_others_turn() -> None:
    waiting = queue()
    for number in range(50):
        waiting.push(ticket(f"busy-{number}", key="busy"), 0.0)
    waiting.push(ticket("quiet-0", key="quiet"), 1.0)
    assert "quiet-0" in [each.request_id for each in drain(waiting, 2, 1.0)]


def test_who_was_away_saves_nothing_up() -> None:
    waiting = queue()
    for number in range(40):
        waiting.push(ticket(f"busy-{number}", key="busy"), 0.0)
    drain(waiting, 20)
    for number in range(20):
        waiting.push(ticket(f"new-{number}", key="new"), 1.0)
    after = Counter(each.caller.key_id for each in drain(waiting, 20, 1.0))
    assert abs(after["busy"] - after["new"]) <= 1


def test_a_large_request_is_not_overtaken_until_it_starves() -> None:
    waiting = queue()
    waiting.push(ticket("large", prompt=1000), 0.0)
    waiting.push(ticket("small"), 1.0)
    assert pop(waiting, Room(9, pages=10, page_tokens=16), 1.0) is None
    assert pop(waiting, Room(9, pages=100, page_tokens=16), 1.0) is not None


def test_long_prompts_wait_for_each_other_and_short_ones_pass() -> None:
    lanes = AT_ONCE.model_copy(update={"long_prompt": 100, "long_prefill": 500})
    waiting = queue(lanes)
    for number in range(3):
        waiting.push(ticket(f"long-{number}", prompt=400, lanes=lanes), 0.0)
    waiting.push(ticket("short", lanes=lanes), 0.0)
    let_in = [pop(waiting, Room(9), 0.0) for _ in range(3)]
    assert {each.request_id for each in let_in if each is not None} == {"long-0", "short"}
    assert let_in[0] is not None
    first = next(each for each in let_in if each is not None and each.long)
    waiting.prefilled(first)
    assert pop(waiting, Room(9), 0.0) is not None


def test_a_prompt_longer_than_the_bound_goes_alone() -> None:
    lanes = AT_ONCE.model_copy(update={"long_prompt": 100, "long_prefill": 500})
    waiting = queue(lanes)
    waiting.push(ticket("huge", prompt=9_000, lanes=lanes), 0.0)
    assert pop(waiting, Room(9), 0.0) is not None


def test_a_tiers_rate_lets_no_more_in_than_it_says() -> None:
    tiers = {"standard": Tier(tokens_per_second=100.0)}
    waiting = queue(tiers=tiers)
    for number in range(100):
        waiting.push(ticket(f"r{number}"), 0.0)
    admitted = 0
    for step in range(101):
        while (each := pop(waiting, Room(9), step / 10)) is not None:
            admitted += each.prompt_tokens + each.max_tokens
            waiting.left(each)
    assert 10 * 100 <= admitted <= 10 * 100 + 100 + 20


def test_what_was_set_aside_goes_before_its_keys_others() -> None:
    waiting = queue()
    waiting.push(ticket("other"), 0.0)
    aside = ticket("aside")
    aside.resumes = 1
    waiting.push(aside, 5.0)
    assert [each.request_id for each in drain(waiting, 2, 5.0)] == ["aside", "other"]


def test_a_request_that_used_less_than_it_asked_for_gives_it_back() -> None:
    waiting = queue()
    for number in range(20):
        waiting.push(ticket(f"a{number}", key="a"), 0.0)
        waiting.push(ticket(f"b{number}", key="b"), 0.0)
    order = []
    for _ in range(21):
        (each,) = drain(waiting, 1)
        each.output_tokens = 0 if each.caller.key_id == "a" else 10
        waiting.settle(each)
        order.append(each.caller.key_id)
    assert order.count("a") == 14, "half as many tokens each, twice as many requests"


def test_a_request_moves_to_another_tier_waiting_or_admitted() -> None:
    waiting = queue()
    first, second = ticket("first"), ticket("second")
    for each in (first, second):
        waiting.push(each, 0.0)
    assert pop(waiting, Room(1), 0.0) is first
    waiting.move(first, "premium", "short")
    waiting.move(second, "premium", "short")
    assert (waiting.active("premium"), waiting.active("standard"), waiting.waiting_in("premium")) == (1, 0, 1)
    waiting.left(first)
    assert waiting.active("premium") == 0


requests = st.lists(
    st.tuples(st.sampled_from(list(TIERS)), st.sampled_from("abc"), st.integers(1, 300)), min_size=1, max_size=40
)


@settings(max_examples=60)
@given(requests, st.lists(st.sampled_from(["enter", "let in", "leave", "withdraw"]), max_size=120), st.data())
def test_any_traffic_keeps_order_quotas_and_loses_nothing(
    arrivals: list[tuple[str, str, int]], actions: list[str], data: Any
) -> None:
    lanes = AT_ONCE.model_copy(update={"long_prompt": 200, "long_prefill": 400})
    tiers = {**TIERS, "standard": Tier(max_active=2)}
    waiting = queue(lanes, tiers)
    coming = [ticket(f"r{n}", *given, lanes=lanes) for n, given in enumerate(arrivals)]
    ahead, inside, admitted, gone = list(coming), [], [], []
    for now, action in enumerate(actions):
        if action == "enter" and ahead:
            waiting.push(ahead.pop(0), float(now))
        elif action == "let in" and len(inside) < 4:
            if (each := pop(waiting, Room(4 - len(inside)), float(now))) is not None:
                inside.append(each)
                admitted.append(each)
        elif action == "leave" and inside:
            each = inside.pop(data.draw(st.integers(0, len(inside) - 1)))
            waiting.left(each)
            waiting.settle(each)
        elif action == "withdraw" and waiting.count:
            each = data.draw(st.sampled_from(sorted(waiting, key=lambda one: one.request_id)))
            assert waiting.remove(each)
            gone.append(each)
        assert waiting.active("standard") <= 2
        long = [each.prompt_tokens for each in inside if each.long]
        assert sum(long) <= 400 or len(long) == 1
    while ahead:
        waiting.push(ahead.pop(0), 1e6)
    for each in inside:
        waiting.left(each)
    admitted += drain(waiting, len(coming), 1e6)
    assert waiting.count == 0
    assert Counter(admitted + gone) == Counter(coming), "none lost, none twice"
    by_key = defaultdict(list)
    for each in admitted:
        by_key[each.tier, each.caller.key_id, each.lane].append(int(each.request_id[1:]))
    assert all(numbers == sorted(numbers) for numbers in by_key.values())


def test_a_huge_prompt_is_not_passed_by_other_long_ones_for_ever() -> None:
    lanes = AT_ONCE.model_copy(update={"long_prompt": 100, "long_prefill": 500})
    waiting = queue(lanes)
    waiting.push(ticket("before", key="a", prompt=150, lanes=lanes), 0.0)
    before = pop(waiting, Room(9), 0.0)
    assert before is not None
    waiting.push(ticket("huge", "premium", key="b", prompt=9_000, lanes=lanes), 0.0)
    for number in range(3):
        waiting.push(ticket(f"long-{number}", key="a", prompt=150, lanes=lanes), 1.0)
    waiting.push(ticket("short", lanes=lanes), 1.0)
    assert [each.request_id for each in drain(waiting, 9, 1.0)] == ["short"]
    waiting.prefilled(before)
    assert pop(waiting, Room(9), 2.0) is not None
    assert [each.prompt_tokens for each in waiting.inside if each.output_tokens == 0 and each is not before] == [9_000]


def test_refunds_of_others_put_no_newcomer_behind() -> None:
    waiting = queue()
    for number in range(300):
        waiting.push(ticket(f"old-{number}", key="old"), 0.0)
    running = [pop(waiting, Room(9), 0.0) for _ in range(200)]
    for each in running:
        assert each is not None
        waiting.left(each)
        each.prompt_tokens = 1
        waiting.settle(each)
    waiting.push(ticket("new", key="new"), 1.0)
    waiting.push(ticket("other tier", "premium"), 1.0)
    assert {"new", "other tier"} <= {each.request_id for each in drain(waiting, 4, 1.0)}


def test_a_tier_held_back_by_its_quota_catches_nothing_up() -> None:
    tiers = {**TIERS, "standard": Tier(weight=4.0, max_active=1)}
    waiting = queue(tiers=tiers)
    for number in range(400):
        waiting.push(ticket(f"s{number}", "standard"), 0.0)
        waiting.push(ticket(f"p{number}", "premium"), 0.0)
    kept = pop(waiting, Room(9), 0.0)
    if kept is None or kept.tier != "standard":
        kept = next(each for each in iter(lambda: pop(waiting, Room(9), 0.0), None) if each.tier == "standard")
    assert {each.tier for each in drain(waiting, 200)} == {"premium"}
    tiers["standard"] = Tier(weight=4.0)
    after = Counter(each.tier for each in drain(waiting, 50))
    assert 8 <= after["standard"] <= 12, after


def test_what_a_moved_request_was_charged_goes_with_it() -> None:
    waiting = queue()
    for tier in ("standard", "premium"):
        waiting.push(ticket(f"{tier}-mark", tier), 0.0)
    moved = ticket("moved")
    waiting.push(moved, 0.0)
    while moved not in waiting.inside:
        assert pop(waiting, Room(9), 0.0) is not None
    before = [waiting.ahead_of_its_share("premium", "standard")]
    waiting.move(moved, "premium", "short")
    moved.output_tokens = 0
    waiting.left(moved)
    waiting.settle(moved)
    # 20 tokens of standard over its weight of 4 are less than premium's 20 and the moved one's 10, over 16 …
    assert waiting.ahead_of_its_share("standard", "premium")
    for number in range(3):
        waiting.push(ticket(f"more-{number}", "premium", prompt=11), 0.0)
        assert pop(waiting, Room(9), 0.0) is not None
    # … until three more of 21: what it was charged as a standard one counts there no more.
    assert waiting.ahead_of_its_share("premium", "standard")
    assert before == [False]
    assert (waiting.active("premium"), waiting.active("standard"), waiting.seated) == (4, 1, 5)


def test_a_request_that_left_twice_or_was_never_in_frees_no_others_place() -> None:
    waiting = queue()
    one = ticket("one")
    waiting.push(one, 0.0)
    waiting.left(one)
    assert pop(waiting, Room(9), 0.0) is one
    waiting.left(one)
    waiting.left(one)
    waiting.move(one, "premium", "short")
    assert (waiting.seated, waiting.active("standard"), waiting.active("premium")) == (0, 0, 0)


def test_a_change_of_weight_while_a_request_runs_moves_no_share() -> None:
    tiers = {"a": Tier(weight=16.0), "b": Tier(weight=16.0)}
    waiting = AdmissionQueue(lambda: AT_ONCE, lambda: tiers)
    for number in range(10):
        for tier in tiers:
            waiting.push(Ticket(f"{tier}{number}", Caller("k", "k"), tier, "short", 0, 500, 0.0), 0.0)
    first = pop(waiting, Room(9), 0.0)
    second = pop(waiting, Room(9), 0.0)
    assert first is not None
    assert second is not None
    tiers["a"] = Tier(weight=1.0)
    for each in (first, second):
        waiting.left(each)
        waiting.settle(each)
    assert not waiting.ahead_of_its_share("a", "b")
    assert not waiting.ahead_of_its_share("b", "a")


def test_the_wait_of_who_waits_for_a_quota_is_not_the_engines() -> None:
    waiting = queue(tiers={"standard": Tier(max_active=1), "premium": Tier()})
    for number in range(2):
        waiting.push(ticket(f"r{number}"), 0.0)
    pop(waiting, Room(9), 0.0)
    assert waiting.kept_waiting(60.0) == 0.0
    waiting.push(ticket("p", "premium"), 50.0)
    assert waiting.kept_waiting(60.0) == 10.0


def test_a_window_is_counted_from_whatever_began_first() -> None:
    waiting = queue(Lanes(short_window_ms=10.0))
    for number in range(3):
        waiting.push(ticket(f"r{number}"), 0.005 * (number > 0))
        if number == 0:
            pop(waiting, Room(9), 0.0)
    assert pop(waiting, Room(9), 0.010) is not None
    # The engine was full for the other: it has waited for the whole of its window before the next one ends.
    assert pop(waiting, Room(9), 0.014) is None
    assert pop(waiting, Room(9), 0.0151) is not None


def test_each_lane_has_its_window_and_who_was_set_aside_has_none() -> None:
    waiting = queue(Lanes(short_window_ms=10.0, throughput_window_ms=50.0))
    for tier, opens in (("standard", 0.010), ("best-effort", 0.050)):
        waiting.push(ticket(f"{tier}-0", tier), 0.0)
        assert pop(waiting, Room(9), 0.0) is not None
        waiting.push(ticket(f"{tier}-1", tier), 0.0)
        assert waiting.wakes_at(0.001) == opens
        assert pop(waiting, Room(9), opens) is not None
        aside = ticket(f"{tier}-aside", tier)
        aside.resumes = 1
        waiting.push(aside, opens + 0.001)
        assert pop(waiting, Room(9), opens + 0.001) is aside


def test_a_moved_request_keeps_the_time_it_has_waited() -> None:
    waiting = queue(Lanes(short_window_ms=10.0))
    waiting.push(ticket("first", "premium"), 0.0)
    pop(waiting, Room(9), 0.0)
    moved = ticket("moved", "best-effort", key="m")
    waiting.push(moved, 0.25)
    waiting.push(ticket("younger", "premium"), 0.5)
    waiting.move(moved, "premium", "short")
    assert waiting.kept_waiting(1.25) == 1.0


def test_a_tier_that_was_away_saves_nothing_up() -> None:
    waiting = queue()
    for number in range(60):
        waiting.push(ticket(f"s{number}"), 0.0)
    drain(waiting, 40)
    for number in range(60):
        waiting.push(ticket(f"p{number}", "premium"), 1.0)
    assert 3 <= Counter(each.tier for each in drain(waiting, 20, 1.0))["standard"] <= 5


def test_a_newcomer_does_not_start_where_a_tier_is_that_its_quota_holds_back() -> None:
    tiers = {**TIERS, "best-effort": Tier(weight=1.0, max_active=1)}
    waiting = queue(tiers=tiers)
    for number in range(2):
        waiting.push(ticket(f"b{number}", "best-effort"), 0.0)
    assert pop(waiting, Room(9), 0.0) is not None
    for number in range(100):
        waiting.push(ticket(f"p{number}", "premium"), 0.0)
    drain(waiting, 80)
    for number in range(40):
        waiting.push(ticket(f"s{number}"), 1.0)
    assert Counter(each.tier for each in drain(waiting, 20, 1.0)) == {"premium": 16, "standard": 4}


def test_a_rate_saves_up_one_second_and_counts_what_was_used() -> None:
    waiting = queue(tiers={"standard": Tier(tokens_per_second=100.0)})
    for number in range(100):
        waiting.push(ticket(f"r{number}"), 0.0)
    drain(waiting, 6)
    assert len(drain(waiting, 90, 1_000.0)) == 5, "as many as after one second"
    (each,) = drain(waiting, 1, 1_001.0)
    each.output_tokens = 500
    waiting.settle(each)
    assert drain(waiting, 1, 1_002.0) == []
    assert waiting.wakes_at(1_002.0) is not None


def test_a_long_request_that_goes_on_is_not_in_prefill_again() -> None:
    lanes = AT_ONCE.model_copy(update={"long_prompt": 100, "long_prefill": 500})
    waiting = queue(lanes)
    aside = ticket("aside", prompt=400, lanes=lanes)
    aside.resumes, aside.output_tokens = 1, 5
    waiting.push(aside, 0.0)
    waiting.push(ticket("new", prompt=400, lanes=lanes), 0.0)
    assert [pop(waiting, Room(9), 0.0) is not None for _ in range(2)] == [True, True]


def test_of_two_tiers_with_equal_shares_the_heavier_goes_first() -> None:
    waiting = queue()
    for tier in ("best-effort", "standard", "premium"):
        waiting.push(ticket(tier, tier), 0.0)
    assert [each.request_id for each in drain(waiting, 3)] == ["premium", "standard", "best-effort"]


def test_keys_that_are_gone_cost_nothing_and_those_ahead_are_remembered() -> None:
    waiting = queue()
    for number in range(3_000):
        waiting.push(ticket(f"r{number}", key=f"key-{number}"), 0.0)
        (each,) = drain(waiting, 1)
        each.prompt_tokens, each.output_tokens = 0, 0
        waiting.settle(each)
    assert len(waiting._states["standard"].shares) <= 1_001
    busy = ticket("busy", key="busy", prompt=1_000)
    waiting.push(busy, 0.0)
    drain(waiting, 1)
    for number in range(2_000):
        waiting.push(ticket(f"s{number}", key=f"other-{number}"), 0.0)
        waiting.settle(drain(waiting, 1)[0])
    assert "busy" in waiting._states["standard"].shares


def test_nor_is_that_of_who_waits_for_a_rate() -> None:
    waiting = queue(tiers={"standard": Tier(tokens_per_second=1.0)})
    for number in range(2):
        waiting.push(ticket(f"r{number}"), 0.0)
    pop(waiting, Room(9), 0.0)
    assert waiting.kept_waiting(5.0) == 0.0
    assert waiting.kept_waiting(60.0) == 60.0
