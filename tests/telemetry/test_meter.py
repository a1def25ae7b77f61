"""What requests are charged adds up with what nobody is charged, and is split as the work was."""

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.api.figures import BillPart
from engine_host.flight.layout import DECODE, LEFT, PREEMPTED, PREFILL, RECOMPUTE, SHARE, STEP
from engine_host.telemetry.meter import CostMeter, Rate
from engine_host.telemetry.work import WorkModel

PRICE = Rate(1, 3.6)  # a tenth of a cent a second
# A token is a FLOP and a byte, a token of context a byte in decode, the weights ten bytes.
WORK = WorkModel(1.0, 0.0, 0.0, 10.0, 1.0, 0.0, 1.0, 0.0)


def step(number: int, began: float, seconds: float, prefill: int = 0, decode: int = 0, running: int = 1) -> Any:
    row = np.zeros((), STEP)
    row["number"], row["time"], row["execute"] = number, began, seconds
    row["prefill"], row["decode"], row["running"] = prefill, decode, running
    return row


def rows(*given: Any) -> Any:
    return np.array(list(given), STEP)


def shares(*given: tuple[int, int, int, int, int]) -> Any:
    return np.array(list(given), SHARE)


def name(serial: int) -> str:
    return f"r{serial}"


def meter(block_size: int = 10, memory_share: float = 0.0) -> CostMeter:
    made = CostMeter(0.0, 1000.0)
    made.rate, made.memory_share = PRICE, memory_share
    made.engine_up(0.0, block_size, WORK)
    return made


def seconds(made: CostMeter, request: str) -> tuple[float, ...]:
    account = made.account(request)
    assert account is not None
    return tuple(round(each, 6) for each in account.seconds)


def test_a_step_for_one_request_is_that_request_s_and_what_lies_between_nobody_s() -> None:
    made = meter()
    fed = made.feed(
        rows(step(1, 2.0, 1.0, prefill=30), step(2, 3.5, 0.5, decode=1, running=0)),
        shares((1, 1, PREFILL, 30, 30), (2, 1, DECODE, 1, 31), (2, 1, LEFT, 0, 0)),
        name,
        5.0,
    )
    assert seconds(made, "r1") == (1.0, 0.5, 0.0)
    assert fed.until == 5.0
    bill = made.bill()
    assert bill.seconds == {
        "prefill": 1.0, "decode": 0.5, "memory": 0.0, "scheduling": 0.0, "io": 0.5, "idle": 3.0, "down": 0.0
    }  # fmt: skip
    assert bill.total_usd == pytest.approx(0.005)
    assert made.settled("r1")
    account = made.close("r1")
    assert account is not None
    assert (account.steps, account.first_step, account.last_step) == (2, 1, 2)
    assert (account.prompt_step_began, account.computed, account.pages_peak) == (2.0, 30, 4)
    assert account.cost().usd == pytest.approx(0.0015)


def test_prefill_is_split_by_flops_and_decode_by_bytes() -> None:
    made = meter()
    made.feed(rows(step(1, 0.0, 4.0, prefill=40)), shares((1, 1, PREFILL, 10, 10), (1, 2, PREFILL, 30, 30)), name, 4.0)
    assert (seconds(made, "r1"), seconds(made, "r2")) == ((1.0, 0.0, 0.0), (3.0, 0.0, 0.0))
    # Half of the ten bytes of weights each, one for the token, and the context: 17 bytes against 37.
    made.feed(rows(step(2, 4.0, 5.4, decode=2)), shares((2, 1, DECODE, 1, 11), (2, 2, DECODE, 1, 31)), name, 9.4)
    assert (seconds(made, "r1")[1], seconds(made, "r2")[1]) == (1.7, 3.7)


def test_a_step_of_both_is_divided_by_what_each_would_take_alone() -> None:
    by_flops, by_peaks = meter(), meter()
    by_peaks.peaks = (10.0, 1.0)  # FLOP/s and bytes/s
    for made in (by_flops, by_peaks):
        made.feed(
            rows(step(1, 0.0, 10.0, prefill=9, decode=1)),
            shares((1, 1, PREFILL, 9, 9), (1, 2, DECODE, 1, 5)),
            name,
            10.0,
        )
    assert seconds(by_flops, "r1") == (9.0, 0.0, 0.0)
    # Each token has a byte of its own and a tenth of the weights: 18 bytes for the prompt, 2 and the 5 of its context
    # for the other; both more than their FLOP take.
    assert seconds(by_peaks, "r1") == (7.2, 0.0, 0.0)
    assert seconds(by_peaks, "r2") == (0.0, 2.8, 0.0)


def test_pages_are_paid_for_also_by_who_holds_them_and_is_not_computed() -> None:
    made = meter(memory_share=0.5)
    made.feed(
        rows(step(1, 0.0, 2.0, prefill=40), step(2, 2.0, 2.0, decode=1)),
        # The second step works for the first request only; the second one holds its three pages on.
        shares((1, 1, PREFILL, 10, 10), (1, 2, PREFILL, 30, 30), (2, 1, DECODE, 1, 11)),
        name,
        4.0,
    )
    assert seconds(made, "r1") == (0.25, 1.0, 0.25 + 0.4)
    assert seconds(made, "r2") == (0.75, 0.0, 0.75 + 0.6)


def test_who_is_preempted_pays_no_pages_while_it_waits_and_again_for_what_is_computed_again() -> None:
    made = meter(memory_share=0.5)
    made.feed(
        rows(*(step(number, number - 1.0, 1.0, decode=1) for number in (1, 2, 3))),
        shares(
            (1, 1, DECODE, 1, 20), (1, 2, DECODE, 1, 20),
            (1, 2, PREEMPTED, 0, 0), (2, 1, DECODE, 1, 21),
            (3, 1, DECODE, 1, 22), (3, 2, RECOMPUTE, 21, 21),
        ),
        name,
        3.0,
    )  # fmt: skip
    account = made.account("r2")
    assert account is not None
    assert account.preemptions == 1
    assert account.computed == 0, "these were computed before"
    # Nothing in the second step, and the prompt's share of the third by FLOP: 21 of 22.
    assert seconds(made, "r2") == (round(0.5 * 21 / 22, 6), 0.25, 0.25 + 0.25)


def test_all_sequences_and_all_engines_of_a_request_are_charged_to_it() -> None:
    made = meter()
    both = {1: "r", 2: "r"}
    made.feed(rows(step(1, 0.0, 2.0, decode=2)), shares((1, 1, DECODE, 1, 5), (1, 2, DECODE, 1, 9)), both.get, 2.0)
    made.engine_down(2.5)
    assert made.settled("r"), "no engine is left that could charge it more"
    made.engine_up(4.0, 10, WORK)
    made.feed(rows(step(1, 4.0, 1.0, decode=1)), shares((1, 1, DECODE, 1, 6)), both.get, 5.0)
    assert seconds(made, "r") == (0.0, 3.0, 0.0)
    assert made.bill().seconds["down"] == 1.5


def test_what_is_on_its_way_through_the_engine_is_booked_when_it_comes_back() -> None:
    made = meter()
    on_its_way = shares((1, 1, PREFILL, 30, 30))
    assert made.feed(rows(), on_its_way, name, 1.0).until == 0.0
    assert not made.bill().device_s
    made.feed(rows(step(1, 0.5, 1.0, prefill=30)), shares(), name, 2.0)
    assert seconds(made, "r1") == (1.0, 0.0, 0.0)
    assert made.bill().seconds["idle"] == 0.5


def test_steps_that_overlap_are_paid_for_once() -> None:
    made = meter()
    first, second = step(1, 0.0, 1.0, decode=1), step(2, 0.5, 1.5, decode=1)
    first["schedule"] = second["schedule"] = 0.1
    second["update"] = 0.05
    made.feed(rows(first, second), shares((1, 1, DECODE, 1, 5), (2, 1, DECODE, 1, 6)), name, 2.15)
    bill = made.bill()
    # The second was chosen while the first was computed.
    assert bill.seconds["scheduling"] == pytest.approx(0.1 + 0.05)
    assert bill.seconds["decode"] == pytest.approx(2.0)
    assert bill.device_s == pytest.approx(2.15)


def test_a_step_in_time_that_is_booked_already_is_not_paid_for_again() -> None:
    made = meter()
    made.feed(rows(), shares(), name, 5.0)
    past, partly = step(1, 2.0, 1.0, decode=1), step(2, 4.0, 1.0, decode=1)
    past["update"] = partly["update"] = 0.5
    made.feed(rows(past, partly), shares((1, 1, DECODE, 1, 5), (2, 1, DECODE, 1, 6)), name, 6.0)
    bill = made.bill()
    assert (bill.seconds["idle"], bill.seconds["scheduling"], bill.seconds["io"]) == (5.0, 0.5, 0.5)
    assert bill.device_s == 6.0


def test_pages_are_held_from_one_look_to_the_next() -> None:
    made = meter(memory_share=0.5)
    made.feed(rows(step(1, 0.0, 1.0, decode=2)), shares((1, 1, DECODE, 1, 10), (1, 2, DECODE, 1, 30)), name, 1.0)
    made.feed(rows(step(2, 1.0, 1.0, decode=1)), shares((2, 1, DECODE, 1, 10)), name, 2.0)
    assert (seconds(made, "r1")[2], seconds(made, "r2")[2]) == (0.25, 0.75)


def test_a_request_has_left_with_the_last_of_its_sequences() -> None:
    made = meter()
    both = ((1, 1, DECODE, 1, 5), (1, 2, DECODE, 1, 9), (1, 2, LEFT, 0, 0))
    more = ((2, 1, DECODE, 1, 5), (3, 1, DECODE, 1, 5))
    found = (step(1, 0.0, 1.0), step(2, 1.0, 1.0), step(3, 2.0, 1.0))
    made.feed(rows(*found), shares(*both, *more), lambda serial: "r", 3.0)
    account = made.account("r")
    assert account is not None
    assert not made.settled("r")
    assert (account.first_step, account.last_step) == (1, 3)
    # A third one comes late, and goes first.
    third = ((4, 1, DECODE, 1, 6), (4, 3, DECODE, 1, 6), (4, 3, LEFT, 0, 0), (5, 1, DECODE, 1, 7), (5, 1, LEFT, 0, 0))
    made.feed(rows(step(4, 3.0, 1.0), step(5, 4.0, 1.0)), shares(*third), lambda serial: "r", 5.0)
    assert made.settled("r")
    assert (account.first_step, account.last_step) == (1, 5)


def test_between_two_steps_who_waits_is_there_too() -> None:
    made = meter()
    row = step(1, 0.0, 1.0, prefill=30, running=0)
    row["waiting"] = 1
    made.feed(rows(row, step(2, 3.0, 1.0)), shares((1, 1, PREFILL, 30, 30), (2, 2, PREFILL, 30, 30)), name, 4.0)
    assert (made.bill().seconds["io"], made.bill().seconds["idle"]) == (2.0, 0.0)


def test_an_engine_without_an_estimate_is_not_judged_by_the_last_one_s() -> None:
    made = meter()
    made.engine_up(0.0, 10, None)
    made.feed(rows(step(1, 0.0, 2.0, decode=2)), shares((1, 1, DECODE, 1, 11), (1, 2, DECODE, 1, 31)), name, 2.0)
    assert seconds(made, "r1") == seconds(made, "r2") == (0.0, 1.0, 0.0)


def test_decode_that_computes_more_than_it_reads_is_weighed_by_what_it_computes() -> None:
    made = meter()
    made.peaks = (1.0, 1e9)
    entries = shares((1, 1, PREFILL, 3, 3), (1, 2, DECODE, 1, 5))
    fed = made.feed(rows(step(1, 0.0, 4.0, prefill=3, decode=1), step(2, 4.0, 1.0, decode=1)), entries, name, 5.0)
    assert seconds(made, "r1") == (3.0, 0.0, 0.0)
    assert (fed.prefill.steps, fed.decode.steps) == (1, 1)


def test_what_a_phase_reaches_is_told_over_all_the_time_of_its_steps() -> None:
    made = meter(memory_share=0.5)
    fed = made.feed(
        rows(step(1, 0.0, 4.0, prefill=30), step(2, 4.0, 1.0, decode=1)),
        shares((1, 1, PREFILL, 30, 30), (2, 1, DECODE, 1, 31)),
        name,
        5.0,
    )
    assert (fed.prefill.seconds, fed.decode.seconds) == (4.0, 1.0)
    assert (fed.prefill.flops, fed.prefill.bytes_, fed.decode.flops, fed.decode.bytes_) == (30.0, 40.0, 1.0, 42.0)


def test_the_last_step_for_a_prompt_is_found_over_several_looks() -> None:
    made = meter()
    for number in (1, 2):
        entries = shares((number, 1, PREFILL, 10, 10 * number))
        made.feed(rows(step(number, float(number), 1.0, prefill=10)), entries, name, number + 1.0)
    account = made.account("r1")
    assert account is not None
    assert account.prompt_step_began == 2.0


def test_without_a_price_there_are_seconds_and_no_money() -> None:
    made = meter()
    made.rate = Rate()
    made.feed(rows(step(1, 0.0, 1.0, prefill=30)), shares((1, 1, PREFILL, 30, 30)), name, 1.0)
    assert (made.bill().usd, made.bill().total_usd, made.saved_usd(10)) == (None, None, None)
    account = made.account("r1")
    assert account is not None
    assert account.cost().usd is None
    assert account.cost(saved_usd=0.5).saved_usd is None
    # A price that comes later is not for what was before.
    made.rate = PRICE
    made.feed(rows(step(2, 1.0, 1.0, prefill=30)), shares((2, 2, PREFILL, 30, 30)), name, 2.0)
    assert account.cost().usd is None
    assert made.bill().total_usd == pytest.approx(0.001)
    assert made.bill().priced_s == pytest.approx(1.0)
    # Thirty tokens for a tenth of a cent: those that had no price were not computed for nothing.
    assert made.saved_usd(15) == pytest.approx(0.0005)


def test_energy_is_on_top_of_the_hour() -> None:
    made = meter()
    made.rate = Rate(2, 3.6, watts=1000.0, usd_per_kwh=3.6)
    made.feed(rows(), shares(), name, 10.0)
    bill = made.bill()
    assert (bill.device_s, bill.priced_s) == (20.0, 20.0)
    assert bill.energy_usd == pytest.approx(0.01)
    assert bill.total_usd == pytest.approx(0.02 + 0.01)
    # What was paid for energy stays on the bill when it isn't priced any more.
    made.rate = Rate(2, 3.6)
    made.feed(rows(), shares(), name, 20.0)
    assert made.bill().energy_usd == pytest.approx(0.01)
    assert made.bill().total_usd == pytest.approx(0.03 + 0.02)


def test_energy_that_nobody_measures_is_not_known_and_not_for_nothing() -> None:
    made = meter()
    made.rate = Rate(1, 3.6, watts=None, usd_per_kwh=0.5)
    made.feed(rows(), shares(), name, 10.0)
    assert made.bill().energy_usd is None
    assert made.bill().total_usd == pytest.approx(0.01)


Timeline = Sequence[tuple[float, float, float, list[tuple[int, int, int, int]], bool, float | None]]

entries = st.lists(
    st.tuples(
        st.integers(1, 6), st.sampled_from([PREFILL, DECODE, RECOMPUTE]), st.integers(1, 50), st.integers(0, 400)
    ),
    min_size=1,
    max_size=5,
    unique_by=lambda each: each[0],
)
timelines = st.lists(
    st.tuples(
        st.floats(-0.5, 2.0),  # from the last step's end to this one's beginning: they may overlap
        st.floats(0.0, 0.2),
        st.floats(0.0, 1.5),
        entries,
        st.booleans(),
        st.sampled_from([None, 0.1, 3.6, 98.0]),
    ),
    max_size=25,
)


@given(timelines, st.lists(st.integers(1, 25)), st.floats(0, 1), st.integers(1, 8), st.booleans())
def test_requests_idle_and_overhead_are_the_hours_times_the_price(
    timeline: Timeline, cuts: list[int], memory_share: float, devices: int, peaks: bool
) -> None:
    made = meter(memory_share=memory_share)
    made.rate = Rate(devices, 2.0)
    made.peaks = (7.0, 3.0) if peaks else None
    now, paid = 0.0, 0.0
    found: list[Any] = []
    parts: list[tuple[int, int, int, int, int]] = []
    held: set[int] = set()
    fed = 0.0
    for number, (gap, schedule, execute, work, leave, price) in enumerate(timeline, 1):
        began = max(0.0, now + gap)
        row = step(number, began, execute, prefill=1, decode=len(work), running=len(held))
        row["schedule"] = schedule
        found.append(row)
        parts += [(number, serial, kind, tokens, context + tokens) for serial, kind, tokens, context in work]
        held |= {each[0] for each in work}
        if leave and held:
            gone = held.pop()
            parts.append((number, gone, LEFT if number % 2 else PREEMPTED, 0, 0))
        now = max(now, float(row["time"]) + float(row["schedule"]) + float(row["execute"]))
        if number in cuts:
            until = made.feed(rows(*found), shares(*parts), name, now + 0.25).until
            paid += (until - fed) * (made.rate.usd_per_s or 0.0)
            now, fed, found, parts = until, until, [], []
            made.rate = Rate(devices, price)
    until = made.feed(rows(*found), shares(*parts), name, now).until
    paid += (until - fed) * (made.rate.usd_per_s or 0.0)

    bill = made.bill()
    accounts = [each for serial in range(1, 7) if (each := made.account(f"r{serial}")) is not None]
    charged = math.fsum(sum(each.seconds) for each in accounts)
    nobodys: tuple[BillPart, ...] = ("scheduling", "io", "idle", "down")
    assert charged + math.fsum(bill.seconds[part] for part in nobodys) == pytest.approx(until * devices, abs=1e-6)
    assert bill.device_s == pytest.approx(until * devices, abs=1e-6)
    money = bill.usd or dict.fromkeys(bill.seconds, 0.0)
    usd = math.fsum(sum(each.usd) for each in accounts)
    assert usd + math.fsum(money[part] for part in nobodys) == pytest.approx(paid, abs=1e-9)
    assert (bill.total_usd or 0.0) == pytest.approx(paid, abs=1e-9)
    phases: tuple[BillPart, ...] = ("prefill", "decode", "memory")
    for index, part in enumerate(phases):
        assert math.fsum(each.seconds[index] for each in accounts) == pytest.approx(bill.seconds[part], abs=1e-6)


def test_a_step_whose_requests_are_not_known_any_more_is_on_the_bill_all_the_same() -> None:
    made = meter(memory_share=0.5)
    made.feed(rows(step(1, 0.0, 2.0, prefill=3, decode=1)), shares(), name, 2.0)
    assert (made.bill().seconds["prefill"], made.bill().seconds["decode"]) == (1.5, 0.5)
    assert made.bill().device_s == 2.0


def test_after_an_abort_the_engine_is_idle_though_no_step_follows() -> None:
    made = meter()
    made.feed(rows(step(1, 0.0, 1.0, prefill=30)), shares((1, 1, PREFILL, 30, 30)), name, 1.5)
    assert made.bill().seconds["io"] == 0.5, "the request is still there"
    made.feed(rows(), shares((1, 1, LEFT, 0, 0)), name, 4.0)
    made.feed(rows(step(2, 9.0, 1.0, prefill=30)), shares((2, 2, PREFILL, 30, 30)), name, 10.0)
    assert (made.bill().seconds["io"], made.bill().seconds["idle"]) == (0.5, 2.5 + 5.0)


def test_who_is_preempted_by_a_step_that_is_still_computed_pays_no_pages_in_it() -> None:
    made = meter(memory_share=0.5)
    made.feed(rows(step(1, 0.0, 1.0, decode=2)), shares((1, 1, DECODE, 1, 20), (1, 2, DECODE, 1, 20)), name, 1.0)
    # Told while the second step is under way; its row comes later.
    made.feed(rows(), shares((1, 2, PREEMPTED, 0, 0), (2, 1, DECODE, 1, 20)), name, 1.5)
    made.feed(rows(step(2, 1.0, 1.0, decode=1)), shares(), name, 2.0)
    account = made.account("r2")
    assert account is not None
    assert account.preemptions == 1
    assert (seconds(made, "r1"), seconds(made, "r2")) == ((0.0, 0.75, 0.75), (0.0, 0.25, 0.25))


def test_a_request_that_is_being_computed_is_not_settled_before_its_first_step_comes_back() -> None:
    made = meter()
    made.feed(rows(), shares((1, 1, PREFILL, 30, 30)), name, 0.5)
    assert not made.settled("r1")
    made.feed(rows(step(1, 0.0, 20.0, prefill=30)), shares((1, 1, LEFT, 0, 0)), name, 20.0)
    assert made.settled("r1")
    assert seconds(made, "r1") == (20.0, 0.0, 0.0)


def test_what_an_engine_was_at_when_it_died_was_no_idle_time() -> None:
    made = meter()
    made.feed(rows(), shares((1, 1, PREFILL, 30, 30)), name, 0.5)
    made.engine_down(3.0)
    assert (made.bill().seconds["io"], made.bill().seconds["idle"]) == (3.0, 0.0)


def test_who_left_unseen_pays_no_longer_for_pages() -> None:
    made = meter(memory_share=0.5)
    made.feed(rows(step(1, 0.0, 1.0, decode=2)), shares((1, 1, DECODE, 1, 20), (1, 2, DECODE, 1, 20)), name, 1.0)
    late = shares((7, 1, DECODE, 1, 21))
    made.lost_track(late["serial"])
    assert (made.settled("r1"), made.settled("r2")) == (False, True)
    made.feed(rows(step(7, 1.0, 1.0, decode=1)), late, lambda serial: None, 2.0)
    assert seconds(made, "r1")[2] == 0.25 + 0.5, "and who is still there is known by its name"


def test_who_left_in_steps_that_were_missed_pays_nothing_in_the_later_ones() -> None:
    made = meter(memory_share=0.5)
    made.feed(rows(step(1, 0.0, 1.0, decode=2)), shares((1, 1, DECODE, 1, 20), (1, 2, DECODE, 1, 20)), name, 1.0)
    missed = ((2, 1, DECODE, 1, 20), (3, 2, LEFT, 0, 0), (8, 1, DECODE, 1, 90))
    made.feed(rows(step(9, 2.0, 1.0, decode=1)), shares(*missed, (9, 1, DECODE, 1, 20)), name, 3.0)
    assert (seconds(made, "r1"), seconds(made, "r2")) == ((0.0, 0.75, 0.75), (0.0, 0.25, 0.25))
    account = made.account("r1")
    assert account is not None
    assert (account.steps, account.pages_peak) == (2, 2)
    made.feed(rows(step(10, 3.0, 1.0, decode=1)), shares((10, 3, DECODE, 1, 20)), name, 4.0)
    assert seconds(made, "r1")[2] == 0.75 + 0.25, "it holds two pages, not nine"


def test_thousands_of_steps_at_once_are_charged_as_those_that_come_one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_host.telemetry.meter.AT_ONCE", 3)
    found: list[Any] = []
    parts: list[tuple[int, int, int, int, int]] = []
    for number in range(1, 20):
        found.append(step(number, number * 2.0, 1.0, prefill=5, decode=1))
        parts += [(number, number, PREFILL, 5, 5), (number, number - 1, DECODE, 1, 30)][: 1 + (number > 1)]
        parts.append((number, number - 1, LEFT, 0, 0) if number % 3 else (number, number - 1, PREEMPTED, 0, 0))
    one_by_one, at_once = meter(memory_share=0.3), meter(memory_share=0.3)
    for row in found:
        one_by_one.feed(rows(row), shares(*(each for each in parts if each[0] == row["number"])), name, 0.0)
    fed = at_once.feed(rows(*found), shares(*parts), name, 0.0)
    assert fed.prefill.steps == 19
    for number in range(20):
        assert at_once.account(f"r{number}") == one_by_one.account(f"r{number}")
    assert at_once.bill().seconds == pytest.approx(one_by_one.bill().seconds)


def test_only_accounts_of_requests_that_have_left_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("engine_host.telemetry.meter.KEPT", 3)
    made = meter()
    for number in range(1, 9):
        entries = [(number, 1, DECODE, 1, 5), (number, number + 1, PREFILL, 4, 4), (number, number + 1, LEFT, 0, 0)]
        made.feed(rows(step(number, float(number), 1.0)), shares(*entries), name, number + 1.0)
    assert [each for each in range(1, 10) if made.account(f"r{each}") is not None] == [1, 8, 9]


def test_the_prompt_of_a_request_is_computed_before_its_first_token_and_its_steps_are_those_of_its_last_engine() -> (
    None
):
    made = meter()
    made.feed(
        rows(*(step(number, float(number), 1.0) for number in (7, 8, 9))),
        shares((7, 1, PREFILL, 20, 20), (8, 1, PREFILL, 10, 30), (9, 1, DECODE, 1, 31)),
        lambda serial: "r",
        10.0,
    )
    made.engine_down(10.0)
    made.engine_up(11.0, 10, WORK)
    # What it had comes in with its prompt.
    made.feed(
        rows(step(1, 12.0, 1.0), step(2, 13.0, 1.0)),
        shares((1, 1, PREFILL, 31, 31), (2, 1, DECODE, 1, 32)),
        lambda serial: "r",
        14.0,
    )
    account = made.account("r")
    assert account is not None
    assert account.prompt_step_began == 8.0
    assert (account.first_step, account.last_step, account.steps) == (1, 2, 5)


def test_a_share_of_the_price_that_is_too_small_to_see_makes_no_cost_unknown() -> None:
    made = meter()
    for number in range(1, 400):
        made.feed(rows(step(number, number * 3e3, 2e3 / 3)), shares((number, 1, DECODE, 1, 5)), name, number * 3e3)
    account = made.account("r1")
    assert account is not None
    assert account.cost().usd == pytest.approx(399 * 2e3 / 3 * 0.001)
