"""Each rule about steps, pages, requests: what it says of its trace, and that it is silent just below its threshold."""

from dataclasses import replace
from typing import Any

import msgspec
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from engine_host.api.figures import LedgerStatus
from engine_host.api.flight import RECOMPUTE
from engine_host.api.types import EngineState, HistoryPoint
from engine_host.doctor.record import Record, StalledClient
from engine_host.doctor.rules import RULES, diagnose
from engine_host.doctor.steps import recent
from engine_host.flight.layout import SHARE, STEP
from engine_host.startup import explain
from tests.console.stub_figures import TELEMETRY
from tests.doctor.recorded import found, on_gpu, trace, with_knobs, with_snapshot

# Counts as small as may be, among them zeros; times of the last minute, in no order.
step_rows = st.tuples(
    st.integers(0, 9),
    st.floats(-60, 0),
    *[st.floats(0, 2, width=32)] * 3,
    *[st.integers(0, 9)] * (len(STEP.names or ()) - 5),
)


def test_nothing_is_wrong_with_a_healthy_engine() -> None:
    assert diagnose(trace("healthy")) == []


@pytest.mark.parametrize(
    ("name", "rules"),
    [
        ("hiccup", set()),
        ("long-prompts", {"token-budget", "long-prompt-stall"}),
        ("preempting", {"kv-preempting"}),
        ("queue", {"queue-growing"}),
        ("short-prompts", {"prefix-block"}),
        ("not-reading", {"client-stalled"}),
        ("host-starved", {"host-starved"}),
    ],
)
def test_each_trace_has_its_own_trouble_and_no_other(name: str, rules: set[str]) -> None:
    assert set(found(trace(name))) == rules


@given(
    steps=arrays(STEP, st.integers(0, 12), elements=step_rows),
    shares=arrays(SHARE, st.integers(0, 12), elements=st.tuples(*[st.integers(0, 9)] * 5)),
    told=st.fixed_dictionaries({}, optional={"kv": st.none(), "gateway": st.none()}),
    measured=st.booleans(),
)
@settings(max_examples=150, deadline=None, derandomize=True)
def test_no_rule_fails_whatever_the_steps_are(steps: Any, shares: Any, told: dict[str, Any], measured: bool) -> None:
    healthy = trace("long-prompts")
    record = replace(
        with_snapshot(healthy, **told),
        steps=steps,
        shares=shares,
        offset=healthy.time,
        telemetry=healthy.telemetry if measured else None,
    )
    assert [each for each in diagnose(on_gpu(record)) if "failed" in each.title] == []


def test_an_engine_that_has_done_nothing_is_healthy_too() -> None:
    idle = trace("healthy")
    assert diagnose(replace(idle, steps=idle.steps[:0], shares=idle.shares[:0], past=[], requests=[])) == []


def test_a_long_prompt_that_stalls_decoding_is_named_with_its_step() -> None:
    record = trace("long-prompts")
    finding = found(record)["long-prompt-stall"]
    assert (finding.severity, finding.step) == ("warning", 293)
    assert "Step 293 took 989 ms, 13.2 times the 75 ms" in finding.evidence[0]
    assert f"1,021 of them for request {finding.request} (prompt of 1,100 tokens)" in finding.evidence[1]
    assert "3 requests waited" in finding.evidence[1]
    assert "scheduler.long_prefill_threshold = 128 (now no limit)" in finding.remedy
    # The moment is that of the step, for the step ring.
    (began,) = record.steps["time"][record.steps["number"] == 293]
    assert finding.time == began + record.offset


def test_a_stall_of_a_second_is_a_problem() -> None:
    record = trace("long-prompts")
    steps = record.steps.copy()
    steps["execute"][steps["number"] == 293] += 0.02
    assert found(replace(record, steps=steps))["long-prompt-stall"].severity == "problem"


def test_a_stall_below_the_target_is_none() -> None:
    record = trace("long-prompts")
    longest = float(recent(record).seconds.max())
    assert "long-prompt-stall" in found(with_knobs(record, targets__ttl_ms=longest * 999))
    assert "long-prompt-stall" not in found(with_knobs(record, targets__ttl_ms=longest * 1001))


def test_a_step_is_long_only_beside_others() -> None:
    record = trace("long-prompts")
    median = recent(record).decode_median(1)
    assert median is not None
    for factor, told in ((3.9, False), (4.2, True)):
        steps = record.steps.copy()
        steps["execute"][steps["prefill"] > 1000] = factor * median
        assert ("long-prompt-stall" in found(replace(record, steps=steps))) == told


def test_a_short_prompt_is_not_blamed_for_a_hiccup_of_the_machine() -> None:
    # As it was recorded: a step took six times the median, with 12 prompt tokens in it.
    steps = recent(trace("hiccup"))
    (index,) = np.flatnonzero(steps.rows["number"] == 106)
    assert steps.seconds[index] > 0.4
    assert steps.rows["prefill"][index] == 12
    assert found(trace("hiccup")) == {}


def test_a_long_prompt_that_is_chunked_already_is_answered_by_the_budget() -> None:
    finding = found(with_knobs(trace("long-prompts"), scheduler__long_prefill_threshold=128))["long-prompt-stall"]
    assert "scheduler.token_budget = 131 (now 1,024)" in finding.remedy


def test_a_budget_too_large_for_the_target_is_answered_by_the_one_that_fits() -> None:
    finding = found(trace("long-prompts"))["token-budget"]
    assert finding.severity == "problem"
    assert finding.step == 293
    assert "The target is 200 ms a token (targets.ttl_ms); the 3 full steps" in finding.evidence[0]
    assert "1,024 tokens a step; a prompt token took 0.866 ms" in finding.evidence[1]
    # (200 ms - 75 ms) / 0.866 ms, in sixteens, and the three that decode.
    assert finding.remedy == "Set scheduler.token_budget = 147 (now 1024)."


def test_a_budget_whose_full_steps_meet_the_target_is_right() -> None:
    record = trace("long-prompts")
    steps = recent(record)
    full = float(np.median(steps.seconds[steps.mixed & (steps.rows["prefill"] > 1000)]))
    assert "token-budget" in found(with_knobs(record, targets__ttl_ms=full * 999))
    assert "token-budget" not in found(with_knobs(record, targets__ttl_ms=full * 1001))
    assert "token-budget" not in found(with_knobs(record, targets__ttl_ms=None))


def test_a_target_that_decoding_alone_misses_is_no_matter_of_the_budget() -> None:
    finding = found(with_knobs(trace("long-prompts"), targets__ttl_ms=50))["token-budget"]
    assert finding.remedy.startswith("No budget meets this target: lower scheduler.max_active (now 16)")


def test_the_strictest_target_of_a_tier_in_use_counts() -> None:
    record = trace("long-prompts")
    tiers = {"standard": {"ttl_target_ms": 150}, "premium": {"ttl_target_ms": 20}}
    profile = type(record.profile).model_validate({**record.profile.model_dump(exclude={"tiers"}), "tiers": tiers})
    finding = found(replace(record, profile=profile))["token-budget"]
    assert "150 ms a token (tiers.standard.ttl_target_ms)" in finding.evidence[0]


def test_a_full_pool_that_preempts_is_answered_by_what_it_holds() -> None:
    record = trace("preempting")
    finding = found(record)["kv-preempting"]
    assert (finding.severity, finding.step) == ("problem", 500)
    assert finding.evidence[0] == "4 preemptions in the last minute; step 500 made 1 of them."
    assert "64 of 65 pages" in finding.evidence[1]
    assert finding.evidence[2] == "771 tokens were computed again: 20 % of all."
    assert finding.request is not None
    assert finding.request in finding.evidence[3]
    assert "scheduler.max_active = 5" in finding.remedy
    assert "engine.kv_cache_memory (now 47 MiB)" in finding.remedy


def test_one_or_two_preemptions_are_the_edge_of_a_well_used_pool() -> None:
    record = trace("preempting")
    few = record.steps.copy()
    few["preempted"][np.flatnonzero(few["preempted"])[2:]] = 0
    assert found(replace(record, steps=few)) == {}


def test_what_was_more_than_a_minute_ago_is_not_held_against_an_engine() -> None:
    record = trace("preempting")
    _, second, _, _ = record.steps["time"][record.steps["preempted"] > 0] + record.offset
    assert "kv-preempting" in found(replace(record, time=float(second) + 59.9))
    assert "kv-preempting" not in found(replace(record, time=float(second) + 60.1))


def test_exactly_three_preemptions_are_told_and_what_is_computed_again_makes_them_a_problem() -> None:
    record = trace("preempting")
    steps, shares = record.steps.copy(), record.shares.copy()
    steps["preempted"][np.flatnonzero(steps["preempted"])[3:]] = 0
    scheduled = int((steps["prefill"] + steps["decode"]).sum())
    again = np.flatnonzero(shares["kind"] == RECOMPUTE)
    shares["tokens"][again] = 0
    for share, severity in ((0.049, "warning"), (0.051, "problem")):
        shares["tokens"][again[0]] = share * scheduled
        finding = found(replace(record, steps=steps, shares=shares))["kv-preempting"]
        assert (finding.severity, finding.evidence[0][:13]) == (severity, "3 preemptions")


def test_what_is_computed_again_is_counted_from_the_first_step_of_the_minute() -> None:
    record = trace("preempting")
    (first, *_) = np.flatnonzero(record.shares["kind"] == RECOMPUTE)
    number, tokens = record.shares["step"][first], record.shares["tokens"][first]
    for since, less in ((number, 0), (number + 1, tokens)):
        steps = record.steps[record.steps["number"] >= since].copy()
        steps["preempted"][-1] = 3
        finding = found(replace(record, steps=steps))["kv-preempting"]
        assert f"{771 - less} tokens were computed again" in finding.evidence[2]


def test_prompts_shorter_than_a_page_are_answered_by_smaller_pages() -> None:
    finding = found(trace("short-prompts"))["prefix-block"]
    assert "0 % were found" in finding.evidence[0]
    assert "100 % of the last 24 prompts have no more than that (median 40 tokens)" in finding.evidence[1]
    assert "engine.block_size = 32 (now 128)" in finding.remedy


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({"hit_ratio": 0.009}, True),
        ({"hit_ratio": 0.01}, False),
        ({"hit_ratio": None}, False),
        ({"page_tokens": 32}, False),
    ],
)
def test_a_cache_that_finds_something_or_can_not_be_helped_is_left_alone(changes: dict[str, Any], told: bool) -> None:
    record = trace("short-prompts")
    assert record.snapshot.kv is not None
    record = with_snapshot(record, kv=msgspec.structs.replace(record.snapshot.kv, **changes))
    assert ("prefix-block" in found(record)) == told


def test_long_prompts_with_a_common_beginning_shorter_than_a_page() -> None:
    record = trace("short-prompts")
    longer = [msgspec.structs.replace(each, prompt_tokens=500) for each in record.requests]
    assert found(replace(record, requests=longer)) == {}
    finding = found(replace(record, requests=longer, shared_prefix=100))["prefix-block"]
    assert "begin with 100 tokens (median) that one just before began with" in finding.evidence[2]
    assert found(replace(record, requests=longer, shared_prefix=128)) == {}


@pytest.mark.parametrize(
    ("short", "count", "told"), [(10, 20, True), (9, 20, False), (19, 19, False)], ids=["half", "fewer", "too few"]
)
def test_half_of_the_prompts_must_not_fill_a_page(short: int, count: int, told: bool) -> None:
    record = trace("short-prompts")
    # A prompt that just fills a page is not found either: its last token is always computed.
    lengths = [128] * short + [129] * (count - short)
    requests = [msgspec.structs.replace(record.requests[0], prompt_tokens=each) for each in lengths]
    assert ("prefix-block" in found(replace(record, requests=requests))) == told


@pytest.mark.parametrize(("prefix", "block"), [(33, 32), (32, None), (127, 32), (128, None), (255, None), (64, 32)])
def test_the_page_suggested_is_filled_by_the_common_beginning(prefix: int, block: int | None) -> None:
    record = trace("short-prompts")
    longer = [msgspec.structs.replace(each, prompt_tokens=500) for each in record.requests]
    finding = found(replace(record, requests=longer, shared_prefix=prefix)).get("prefix-block")
    assert (finding is not None) == (block is not None)
    if finding is not None:
        assert f"engine.block_size = {block} " in finding.remedy


def test_a_larger_page_is_suggested_where_the_beginning_fills_two_of_them() -> None:
    record = on_gpu(with_knobs(trace("short-prompts"), engine__enforce_eager=False))
    longer = [msgspec.structs.replace(each, prompt_tokens=500) for each in record.requests]
    for prefix, block in ((63, 16), (64, 32), (127, 32)):
        finding = found(replace(record, requests=longer, shared_prefix=prefix))["prefix-block"]
        assert f"engine.block_size = {block} " in finding.remedy


def test_a_cache_that_is_off_matters_where_prompts_take_the_time() -> None:
    off = with_knobs(trace("healthy"), engine__enable_prefix_caching=False)
    for share, told in ((0.29, False), (0.3, True)):
        steps = msgspec.structs.replace(TELEMETRY.steps, prefill_share=share)
        record = replace(off, telemetry=msgspec.structs.replace(TELEMETRY, steps=steps, devices=()))
        assert ("prefix-cache-off" in found(record)) == told


def test_a_pool_below_one_full_context() -> None:
    record = trace("healthy")
    assert record.snapshot.kv is not None
    longest = record.snapshot.kv.pages * record.snapshot.kv.page_tokens
    model = msgspec.structs.replace(record.snapshot.model, max_model_len=longest)
    assert found(with_snapshot(record, model=model)) == {}
    model = msgspec.structs.replace(model, max_model_len=2 * longest)
    finding = found(with_snapshot(record, model=model))["context-memory"]
    assert finding.severity == "warning"
    assert "0.50 of one such request" in finding.evidence[0]
    assert f"engine.max_model_len = {longest}" in finding.remedy


def test_an_engine_that_did_not_start_for_its_context_is_answered_by_one_that_fits() -> None:
    said = explain(
        ValueError(
            "To serve at least one request with the model's max seq len (8192), (0.36 GiB KV cache is needed, which is "
            "larger than the available KV cache memory (0.09 GiB). Try increasing `gpu_memory_utilization`"
        ),
        [],
    )
    findings = found(with_snapshot(trace("healthy"), state=EngineState("failed", 5.0, reason=said.reason)))
    assert list(findings) == ["context-memory"]
    finding = findings["context-memory"]
    assert finding.severity == "problem"
    assert "a context of 8,192 tokens takes 0.36 GiB, and there are 0.09 GiB" in finding.evidence[0]
    assert finding.remedy == "Set engine.max_model_len = 1904, or give the KV cache 374 MiB (engine.kv_cache_memory)."


def test_requests_that_do_not_fit_into_the_context() -> None:
    record = trace("healthy")
    refused = msgspec.structs.replace(record.requests[0], finish_reason="refused", prompt_tokens=2000, output_tokens=0)
    cut = msgspec.structs.replace(record.requests[1], prompt_tokens=1500, output_tokens=36)
    just = msgspec.structs.replace(cut, output_tokens=35)
    finding = found(replace(record, requests=[refused, cut, cut]))["context-length"]
    assert "1 had prompts of more than the 1,536 tokens of the context, and 2 ended because" in finding.evidence[0]
    assert "engine.max_model_len = 3072" in finding.remedy
    assert found(replace(record, requests=[refused, cut, just])) == {}


def test_a_queue_that_grows_is_answered_by_more_room() -> None:
    finding = found(trace("queue"))["queue-growing"]
    assert finding.severity == "problem"
    assert finding.evidence[0] == "The queue grew from 2 to 39 requests in 24 s: 1.6 a second."
    assert "0.5 requests a second are let in and 2.1 come" in finding.evidence[1]
    assert "scheduler.max_active = 2 (now 1); the engine has room for 2" in finding.remedy


def waiting(record: Record, lengths: list[int]) -> Record:
    """The same with other lengths of the queue, a second each."""
    began, point = record.time - len(lengths), record.past[0]
    points: list[HistoryPoint] = [
        msgspec.structs.replace(point, time=began + second, waiting=length) for second, length in enumerate(lengths)
    ]
    return replace(record, past=points)


def test_a_queue_that_grows_slowly_or_drains_again_is_no_trouble() -> None:
    record = trace("queue")
    assert "queue-growing" in found(waiting(record, [each // 5 for each in range(30)]))
    assert found(waiting(record, [each // 7 for each in range(30)])) == {}
    assert found(waiting(record, [*range(0, 40, 2), *range(40, 0, -4)])) == {}
    assert found(waiting(record, [30] * 30)) == {}
    assert found(waiting(record, list(range(14)))) == {}
    assert "queue-growing" in found(waiting(record, list(range(15))))
    # Each third must be longer than the one before.
    assert found(waiting(record, [*[0] * 10, *[10] * 20])) == {}
    assert found(waiting(record, [*[0] * 20, *[10] * 10])) == {}
    # A burst more than a minute ago, and minutes from the ledger, are no trend of now.
    assert found(waiting(record, [*range(0, 60, 6), *[60] * 60])) == {}
    assert "queue-growing" in found(waiting(record, [*[60] * 10, *range(60)]))
    minutes = [msgspec.structs.replace(each, span_s=60.0) for each in waiting(record, list(range(30))).past]
    assert found(replace(record, past=minutes)) == {}


def test_a_queue_before_a_full_pool_is_answered_by_memory() -> None:
    record = trace("queue")
    for used, memory in ((94, False), (95, True)):
        kv = msgspec.structs.replace(record.snapshot.kv, used=used, pages=100)
        remedy = found(with_snapshot(record, kv=kv))["queue-growing"].remedy
        assert remedy.startswith("The KV pool is full") == memory


def test_a_queue_that_no_knob_can_shorten_is_answered_by_another_host_or_a_bound() -> None:
    record = trace("queue")
    load = msgspec.structs.replace(record.snapshot.load, running=0)
    for without_room in (with_snapshot(record, load=load), with_knobs(record, headroom__max_active=1)):
        remedy = found(without_room)["queue-growing"].remedy
        # Ten seconds of waiting at the rate at which requests are let in.
        assert remedy.startswith("Add a host, or turn requests away that would wait too long")
        assert "gateway.lanes.max_queued = 4 (now 1024)" in remedy


def test_a_starved_host_is_told_by_the_time_between_steps() -> None:
    finding = found(trace("host-starved"))["host-starved"]
    assert (finding.severity, finding.step) == ("problem", 10)
    assert "50 % of the time of the last 60 steps" in finding.evidence[0]
    assert finding.evidence[1] == "The load is 7.5 on 2 cores (1 min)."
    assert "OMP_NUM_THREADS=1" in finding.remedy


def test_less_than_a_fifth_between_steps_is_none_and_time_without_requests_does_not_count() -> None:
    record = trace("host-starved")
    gaps, took = float(recent(record).gaps.sum()), float(recent(record).seconds.sum())
    for share, told in ((0.19, False), (0.21, True)):
        steps = record.steps.copy()
        # Longer steps, moved apart by as much.
        longer = gaps * (1 / share - 1) / took
        more = (longer - 1) * recent(record).seconds
        steps["execute"] += more
        steps["time"] += np.concatenate(([0], np.cumsum(more)[:-1]))
        assert ("host-starved" in found(replace(record, steps=steps))) == told
    nobody = record.steps.copy()
    nobody["running"] = 0
    assert found(replace(record, steps=nobody)) == {}


def test_a_client_that_does_not_read() -> None:
    record = trace("not-reading")
    finding = found(record)["client-stalled"]
    (client,) = record.stalled
    assert (finding.request, finding.time) == (client.request, record.time - client.seconds)
    assert finding.evidence[0] == f"The client of request {client.request} has taken nothing for 7.1 s."
    assert "gateway.clients.stall_s = 15 (now 30)" in finding.remedy


def test_the_client_that_has_not_read_for_longest_is_named_and_a_short_pause_is_none() -> None:
    record = trace("not-reading")
    two = [StalledClient("r1", 5.1), StalledClient("r2", 12.0)]
    assert found(replace(record, stalled=two))["client-stalled"].request == "r2"
    assert found(replace(record, stalled=[StalledClient("r1", 4.9)])) == {}
    assert "client-stalled" in found(replace(record, stalled=[StalledClient("r1", 5.0)]))


def test_errors_are_told_by_rate() -> None:
    record = trace("healthy")
    good = list(record.requests) * 3
    bad = [msgspec.structs.replace(good[0], id="bad", finish_reason="error", error="The engine died.")] * 3
    finding = found(replace(record, requests=[*good[:57], *bad]))["request-errors"]
    assert finding.evidence == ("3 of the last 60 requests did: 5 %.", "3 times: The engine died.")
    assert finding.request == "bad"
    assert found(replace(record, requests=[*good[:58], *bad])) == {}
    assert found(replace(record, requests=bad[:2])) == {}
    assert found(replace(record, requests=[*good[:57], *bad], time=record.time + 1200)) == {}


@pytest.mark.parametrize(("ago", "told"), [(599.0, True), (601.0, False)])
def test_requests_that_ended_more_than_ten_minutes_ago_do_not_count(ago: float, told: bool) -> None:
    record = trace("healthy")
    bad = msgspec.structs.replace(record.requests[0], time=record.time - ago - 5, total_s=5.0, finish_reason="error")
    assert ("request-errors" in found(replace(record, requests=[bad] * 3))) == told


def test_an_engine_that_has_failed_is_told_with_its_hint() -> None:
    state = EngineState("failed", 5.0, reason="The KV cache does not fit.", hint="Lower max_model_len.")
    finding = found(with_snapshot(trace("healthy"), state=state))["engine-failed"]
    assert (finding.severity, finding.evidence) == ("problem", ("The KV cache does not fit.",))
    assert finding.remedy == "Lower max_model_len."


def test_a_ledger_that_is_not_written() -> None:
    for problem, told in ((None, False), ("The disk is full.", True)):
        ledger = LedgerStatus("/data/ledger.db", 10, 3, 0, problem)
        record = replace(trace("healthy"), telemetry=msgspec.structs.replace(TELEMETRY, ledger=ledger, devices=()))
        assert ("ledger" in found(record)) == told


@pytest.mark.parametrize(
    ("verdict", "eager", "severity"),
    [
        ("launch-bound", True, "problem"),
        ("launch-bound", False, "warning"),
        ("unknown", True, "warning"),
        ("unknown", False, None),
        ("bandwidth-bound", True, None),
    ],
)
def test_decode_that_waits_for_launches(verdict: Any, eager: bool, severity: str | None) -> None:
    decode = msgspec.structs.replace(TELEMETRY.roofline.decode, verdict=verdict, why="3 % of both peaks.")
    roofline = msgspec.structs.replace(TELEMETRY.roofline, decode=decode)
    telemetry = msgspec.structs.replace(TELEMETRY, roofline=roofline, devices=(), ledger=None)
    cpu = replace(with_knobs(trace("healthy"), engine__enforce_eager=eager), telemetry=telemetry)
    assert found(cpu) == {}
    finding = found(on_gpu(cpu)).get("launch-bound")
    assert (finding.severity if finding is not None else None) == severity
    if finding is not None:
        assert ("engine.enforce_eager = false" in finding.remedy) == eager
        assert f"Decode is {verdict}: 3 % of both peaks." in finding.evidence


def test_a_rule_that_fails_hides_no_other() -> None:
    def broken(_: Record) -> None:
        raise ZeroDivisionError("division by zero")

    findings = diagnose(trace("long-prompts"), (broken, *RULES[::-1]))
    assert [each.rule for each in findings] == ["token-budget", "broken", "long-prompt-stall"]
    assert findings[1].evidence == ("ZeroDivisionError: division by zero",)


def test_problems_come_before_warnings() -> None:
    record = replace(trace("queue"), stalled=[StalledClient("r1", 9)])
    assert [each.rule for each in diagnose(record)] == ["queue-growing", "client-stalled"]
