"""When a request's books are closed, and what then stands in them."""

import asyncio
from typing import Any

import numpy as np
import pytest

from engine_host.api.records import RequestRecord
from engine_host.books import OVERDUE_S, RequestBook, Served, ttft_parts
from engine_host.flight.layout import DECODE, LEFT, PREFILL, SHARE, STEP
from engine_host.gateway.caller import ANONYMOUS, Caller
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.ticket import Ticket
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.latency_requests import Ended
from engine_host.telemetry.meter import CostMeter, Rate
from engine_host.telemetry.work import BY_TOKENS


def _broken(*_: Any) -> None:
    raise RuntimeError("broken")


class Desk:
    """A book on a clock moved by hand, and the records it has handed out. A second costs a tenth of a cent."""

    def __init__(self, price: float | None = 3.6) -> None:
        self.now = 100.0
        self.hub = TelemetryHub(clock=lambda: self.now, wall=lambda: self.now + 5000)
        self.meter = CostMeter(self.now, 5100.0)
        self.meter.rate, self.meter.memory_share = Rate(1, price), 0.0
        self.meter.engine_up(self.now, 16, BY_TOKENS)
        self.records: list[RequestRecord] = []
        self.book = RequestBook(
            self.meter,
            self.hub,
            lambda: Served("smol", "day"),
            lambda: self.now,
            lambda: self.now + 5000,
            (lambda record, ticket: self.records.append(record),),
        )
        self._steps = 0

    def step(self, seconds: float, *shares: tuple[int, int, int, int], name: str = "r") -> None:
        """A step for `(serial, kind, tokens, context)`, all of them of the request `name`."""
        self._steps += 1
        row = np.zeros(1, STEP)
        row["number"], row["time"], row["execute"], row["running"] = self._steps, self.now, seconds, 1
        self.now += seconds
        found = np.array([(self._steps, *each) for each in shares], SHARE)
        self.meter.feed(row, found, lambda serial: name, self.now)
        self.book.tick()

    def idle(self, seconds: float) -> None:
        self.now += seconds
        self.meter.feed(np.empty(0, STEP), np.empty(0, SHARE), lambda serial: None, self.now)
        self.book.tick()


def ticket(**given: Any) -> Ticket:
    fields: dict[str, Any] = {"request_id": "r", "caller": ANONYMOUS, "tier": "premium", "lane": "short"}
    made = Ticket(**fields, prompt_tokens=8, max_tokens=9, arrived=100.0)
    for name, value in given.items():
        setattr(made, name, value)
    return made


def ended(ttft: float | None = 3.0, **given: Any) -> Ended:
    fields: dict[str, Any] = {
        "ttft_s": ttft, "tpot_s": 0.5, "ttl_p50_s": 0.4, "ttl_p99_s": 0.6, "first_token_at": 102.9,
        "delivered_at": 103.0, "cached_tokens": 2, "output_tokens": 3,
    }  # fmt: skip
    return Ended(**{**fields, **given})


def test_a_record_is_complete_only_once_the_request_s_last_step_is_accounted_for() -> None:
    desk = Desk()
    desk.step(2.0, (1, PREFILL, 8, 8))
    # The client has its reply; the engine has not said yet that the request has left.
    desk.book.ended(
        ticket(ended=103.0, output_tokens=3, client_id="x-1", path="/v1/completions"), "stop", ended(), None
    )
    desk.step(1.0, (1, DECODE, 1, 9))
    desk.idle(1.0)
    assert desk.records == []
    desk.step(1.0, (1, DECODE, 1, 10), (1, LEFT, 0, 0))
    (record,) = desk.records
    assert record.cost is not None
    assert (record.cost.prefill_s, record.cost.decode_s, record.cost.usd) == (2.0, 2.0, pytest.approx(0.004))
    assert (record.id, record.request_id, record.path) == ("r", "x-1", "/v1/completions")
    assert (record.steps, record.first_step, record.last_step, record.pages_peak) == (3, 1, 3, 1)
    assert (record.model, record.tier, record.finish_reason) == ("smol", "premium", "stop")
    assert (record.time, record.total_s, record.ttft_s) == (5100.0, 3.0, 3.0)
    assert desk.meter.account("r") is None, "an account that is closed is forgotten"


def test_what_the_cache_held_is_said_to_have_been_saved() -> None:
    desk = Desk()
    desk.step(2.0, (1, PREFILL, 8, 10), (1, LEFT, 0, 0))
    desk.book.ended(ticket(), "stop", ended(), None)
    desk.idle(0.0)
    desk.idle(0.0)
    assert desk.records[0].cost is not None
    # Eight tokens took two seconds, a quarter each; two were not computed.
    assert desk.records[0].cost.saved_usd == pytest.approx(0.0005)


def test_a_request_that_no_step_worked_for_costs_nothing() -> None:
    desk = Desk()
    refused = ticket(refusal=Refusal(429, "Too many requests wait."))
    desk.book.ended(refused, "abort", ended(None, tpot_s=None, cached_tokens=None), "Too many requests wait.")
    desk.idle(0.25)
    desk.idle(0.25)
    (record,) = desk.records
    assert record.cost is not None
    assert record.cost.saved_usd == 0.0, "nothing was found in the cache, whatever it would have cost"
    assert (record.finish_reason, record.error, record.cost.usd, record.steps) == (
        "refused", "Too many requests wait.", 0.0, 0
    )  # fmt: skip


def test_a_request_that_was_on_its_way_into_the_engine_is_waited_for() -> None:
    desk = Desk()
    desk.book.ended(ticket(), "abort", ended(None), None)
    desk.idle(0.25)
    assert desk.records == []
    desk.step(1.0, (1, PREFILL, 8, 8), (1, LEFT, 0, 0))
    assert [each.cost.prefill_s for each in desk.records if each.cost] == [1.0]


def test_without_a_price_nobody_knows_that_nothing_was_spent() -> None:
    desk = Desk(price=None)
    desk.book.ended(ticket(), "no reason of ours", ended(None), None)
    desk.idle(0.0)
    desk.idle(0.0)
    (record,) = desk.records
    assert record.cost is not None
    assert (record.cost.usd, record.pages_peak, record.finish_reason) == (None, None, "error")


def test_a_record_tells_whose_the_request_was_and_what_was_done_with_it() -> None:
    desk = Desk()
    desk.step(1.0, (1, PREFILL, 8, 8), (1, LEFT, 0, 0))
    given = {"profile": "night", "resumes": 2, "held": [(100.25, 100.5), (100.75, None)], "ended": 101.0}
    desk.book.ended(ticket(caller=Caller("k7", "Ada"), **given), "length", ended(cached_tokens=0), None)
    desk.idle(1.0)
    desk.idle(0.0)
    (record,) = desk.records
    assert (record.key, record.profile, record.set_aside, record.held_s) == ("k7", "night", 2, 0.5)
    assert record.cost is not None
    assert record.cost.saved_usd == 0.0


def test_an_engine_that_doesn_t_say_that_it_has_left_does_not_hold_the_record_for_ever() -> None:
    desk = Desk()
    desk.step(1.0, (1, PREFILL, 8, 8))
    desk.book.ended(ticket(), "abort", ended(None), None)
    desk.idle(OVERDUE_S)
    assert desk.records == []
    desk.idle(0.1)
    assert [each.finish_reason for each in desk.records] == ["abort"]


def test_a_request_in_a_step_that_takes_longer_is_closed_after_it() -> None:
    desk = Desk()
    under_way = np.array([(1, 1, PREFILL, 8, 8)], SHARE)
    desk.meter.feed(np.empty(0, STEP), under_way, lambda serial: "r", desk.now)
    began = desk.now
    desk.book.ended(ticket(), "abort", ended(None), None)
    for _ in range(5):
        desk.idle(OVERDUE_S)
    assert desk.records == []
    row = np.zeros(1, STEP)
    row["number"], row["time"], row["execute"], row["running"] = 1, began, desk.now - began, 1
    desk.meter.feed(row, np.array([(1, 1, LEFT, 0, 0)], SHARE), lambda serial: "r", desk.now)
    desk.book.tick()
    assert [each.cost.prefill_s for each in desk.records if each.cost] == [5 * OVERDUE_S]


async def test_a_budget_is_charged_what_the_request_has_cost() -> None:
    desk, request = Desk(), ticket()
    desk.step(2.0, (1, PREFILL, 8, 8), (1, LEFT, 0, 0))
    asked = asyncio.ensure_future(desk.book.cost_of(request))
    await asyncio.sleep(0)
    desk.book.ended(request, "stop", ended(), None)
    desk.idle(0.0)
    desk.idle(0.0)
    assert await asked == pytest.approx(0.002)


async def test_at_the_end_of_the_host_nobody_is_left_waiting() -> None:
    desk = Desk()
    open_, unknown = ticket(), ticket(request_id="other")
    asked = [asyncio.ensure_future(desk.book.cost_of(each)) for each in (open_, unknown)]
    await asyncio.sleep(0)
    desk.book.ended(open_, "abort", ended(None), None)
    desk.book.close()
    assert await asyncio.gather(*asked) == [0.0, None]
    assert len(desk.records) == 1
    # Who ends even later is written down all the same.
    late = ticket(request_id="late")
    desk.book.ended(late, "abort", ended(None), None)
    assert await desk.book.cost_of(late) is None
    assert [each.id for each in desk.records] == ["r", "late"]


async def test_a_fault_of_who_is_told_leaves_nobody_waiting() -> None:
    desk = Desk()
    desk.book._sinks = (_broken,)
    requests = [ticket(request_id=name) for name in ("a", "b")]
    asked = [asyncio.ensure_future(desk.book.cost_of(each)) for each in requests]
    await asyncio.sleep(0)
    for each in requests:
        desk.book.ended(each, "abort", ended(None), None)
    with pytest.raises(RuntimeError, match="broken"):
        desk.book.close()
    await asyncio.gather(*asked)


def test_texts_are_in_the_record_and_nowhere_else() -> None:
    desk = Desk()
    told = ticket(prompt_text="Why?", reply_text=["Be", "cause"])
    desk.book.ended(told, "stop", ended(), None)
    desk.idle(0.0)
    desk.idle(0.0)
    assert (desk.records[0].prompt, desk.records[0].reply) == ("Why?", "Because")
    assert (told.prompt_text, told.reply_text) == (None, None)


def test_without_a_price_a_cost_has_seconds_only() -> None:
    desk = Desk(price=None)
    desk.step(1.0, (1, PREFILL, 8, 8), (1, LEFT, 0, 0))
    desk.book.ended(ticket(), "stop", ended(), None)
    desk.idle(0.0)
    desk.idle(0.0)
    assert desk.records[0].cost is not None
    assert (desk.records[0].cost.seconds, desk.records[0].cost.usd) == (1.0, None)


def test_the_parts_add_up_to_ttft() -> None:
    parts = ttft_parts(ticket(queued=100.1, scheduled=100.6, computed=102.8), ended(3.0), 102.0)
    assert [round(each or 0, 6) for each in parts] == [0.1, 0.5, 1.4, 0.8, 0.2]
    assert sum(each or 0 for each in parts) == pytest.approx(3.0)


def test_a_step_that_began_before_the_request_was_scheduled_makes_no_part_negative() -> None:
    # The stamps come of two processes, the step's from before it was chosen.
    parts = ttft_parts(ticket(queued=100.1, scheduled=100.6, computed=103.5), ended(3.0), 100.4)
    assert [round(each or 0, 6) for each in parts] == [0.1, 0.5, 0.0, 2.4, 0.0]


def test_a_part_that_is_not_known_leaves_those_behind_it_unknown() -> None:
    assert ttft_parts(ticket(queued=100.1, scheduled=100.6, computed=102.8), ended(3.0), None)[2:] == (None, None, None)
    assert ttft_parts(ticket(queued=100.25), ended(None), None) == (0.25, None, None, None, None)
    # It was being computed when it ended.
    assert ttft_parts(ticket(queued=100.25, scheduled=100.5), ended(None), 100.75) == (0.25, 0.25, None, None, None)


def test_only_whole_sets_of_parts_are_told_the_hub_and_prefill_latency_is_up_to_the_first_token() -> None:
    desk = Desk()
    desk.step(2.0, (1, PREFILL, 8, 8), (1, LEFT, 0, 0))
    desk.book.ended(ticket(queued=100.1, scheduled=100.2, computed=102.0), "stop", ended(2.5), None)
    desk.book.ended(ticket(request_id="q", queued=100.1), "abort", ended(None), None)
    desk.idle(0.5)
    desk.idle(0.5)
    assert [(each.count, round(each.ttft_s, 6)) for each in desk.hub.parts()] == [(1, 2.5)] * 4
    (found,) = [each.prefill for each in desk.hub.prefill_by_length() if each.prefill is not None]
    assert found.p50 == pytest.approx(1.8, rel=0.01)
