"""Knobs wanted through the record's control block: refused by the writer, clamped by the reader, in force in a step."""

import math
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.api.flight import FlightReader
from engine_host.flight.knobs import POLICIES, ControlBlock, KnobRefusedError, Knobs, clamped
from engine_host.flight.layout import CONTROL, Views, record_size, views
from tests.flight.test_recording_scheduler import add, step

Make = Callable[..., tuple[Any, FlightReader]]

BLOCKS, LONGEST = 64, 512
NOW = Knobs(256, 1024, 8, 16, 0, 0, True, "fcfs", 10.0)


@given(st.binary(min_size=CONTROL.itemsize, max_size=CONTROL.itemsize))
def test_whatever_stands_in_the_file_an_engine_can_run_with_what_is_made_of_it(raw: bytes) -> None:
    knobs = clamped(np.frombuffer(raw, CONTROL)[0], NOW, BLOCKS, LONGEST)
    assert 1 <= knobs.token_budget <= 1024
    assert 1 <= knobs.max_active <= 16
    assert 0 <= knobs.long_prefill_threshold <= LONGEST
    assert 0 <= knobs.watermark_blocks < BLOCKS
    assert math.isfinite(knobs.snapshot_hz)
    assert 0 < knobs.snapshot_hz <= 10
    assert knobs.policy in POLICIES
    assert knobs.chunked_prefill or knobs.token_budget >= LONGEST
    assert (knobs.token_budget_ceiling, knobs.max_active_ceiling) == (1024, 16)


@pytest.mark.parametrize(
    ("change", "named"),
    [
        ({"token_budget": 1025}, "token budget can't be 1025: the running engine allows 1 to 1024"),
        ({"token_budget": 0}, "token budget"),
        ({"max_active": 17}, "active requests"),
        ({"max_active": 2.5}, "active requests"),
        ({"watermark_blocks": 64}, "watermark"),
        ({"long_prefill_threshold": -1}, "long-prefill"),
        ({"snapshot_hz": math.nan}, "snapshot rate"),
        ({"policy": "lifo"}, "policy 'lifo'"),
        ({"chunked_prefill": False}, "must hold the longest prompt"),
    ],
)
def test_what_the_engine_can_t_have_is_refused_and_nothing_is_written(
    recorded: Make, flight_path: Path, change: dict[str, Any], named: str
) -> None:
    recorded(blocks=BLOCKS, max_num_batched_tokens=1024, max_num_seqs=16, max_model_len=LONGEST)
    control = ControlBlock(flight_path)
    before = flight_path.read_bytes()
    with pytest.raises(KnobRefusedError, match=named):
        control.want(replace(NOW, **change), LONGEST)
    assert flight_path.read_bytes() == before


def test_wanted_knobs_are_in_force_in_the_next_step_and_the_ring_says_so(recorded: Make, flight_path: Path) -> None:
    scheduler, reader = recorded(blocks=BLOCKS, max_num_batched_tokens=128, max_num_seqs=4, max_model_len=LONGEST)
    add(scheduler, "long", 400, 1)
    step(scheduler)
    generation = ControlBlock(flight_path).want(replace(control_of(reader), token_budget=48, max_active=2), LONGEST)
    step(scheduler)
    before, after = reader.read_steps().rows[-2:]
    assert (before["budget"], before["prefill"], before["generation"]) == (128, 128, 0)
    assert (after["budget"], after["prefill"], after["generation"]) == (48, 48, generation)
    assert (scheduler.max_num_active_reqs, reader.control["max_active"]) == (2, 2)
    assert reader.control["generation"] == generation


def test_fewer_active_requests_end_none_that_runs(recorded: Make, flight_path: Path) -> None:
    scheduler, reader = recorded(blocks=BLOCKS, max_num_seqs=4)
    for number in range(4):
        add(scheduler, f"r{number}", 10, number, max_tokens=6)
    step(scheduler)
    ControlBlock(flight_path).want(replace(control_of(reader), max_active=1), scheduler.max_model_len)
    add(scheduler, "later", 10, 9, max_tokens=2)
    while scheduler.has_requests():
        running = {each.request_id for each in scheduler.running}
        assert ("later-0123abcd" in running) <= (len(running) == 1)
        step(scheduler)
    steps = reader.read_steps()
    assert steps.rows["running"][1] == 4
    assert steps.rows["finished"].sum() + reader.control["generation"] >= 4


def test_a_switch_of_policy_reorders_who_waits_and_loses_nobody(recorded: Make, flight_path: Path) -> None:
    scheduler, reader = recorded(blocks=BLOCKS, max_num_seqs=1)
    add(scheduler, "first", 10, 0, max_tokens=30)
    step(scheduler)
    for number, priority in enumerate((2, 0, 1, 0)):
        add(scheduler, f"w{number}", 10, number)
        scheduler.waiting[-1].priority = priority
        scheduler.waiting[-1].arrival_time = float(number)
    control, longest = ControlBlock(flight_path), scheduler.max_model_len
    assert waiting(scheduler) == ["w0", "w1", "w2", "w3"]
    control.want(replace(control_of(reader), policy="priority"), longest)
    step(scheduler)
    assert waiting(scheduler) == ["w1", "w3", "w2", "w0"]
    control.want(replace(control_of(reader), policy="fcfs"), longest)
    step(scheduler)
    assert waiting(scheduler) == ["w0", "w1", "w2", "w3"]


def test_garbage_in_the_control_block_takes_no_engine_down(recorded: Make, flight_path: Path) -> None:
    scheduler, _ = recorded(blocks=BLOCKS, max_num_batched_tokens=128, max_num_seqs=4, max_model_len=LONGEST)
    wanted = shared(flight_path).wanted
    chance = np.random.default_rng(7)
    for number in range(60):
        if number % 3 == 0:
            add(scheduler, f"r{number}", 1 + 5 * number, number)
        wanted.view(np.uint8)[:] = chance.integers(0, 256, CONTROL.itemsize, np.uint8)
        step(scheduler)
    while scheduler.has_requests():
        wanted["generation"] += 2
        step(scheduler)
    assert scheduler._recorder is not None
    assert not scheduler._recorder._off


def test_half_a_change_is_not_read(recorded: Make, flight_path: Path) -> None:
    scheduler, _ = recorded(blocks=BLOCKS, max_num_batched_tokens=128, max_num_seqs=4)
    wanted = shared(flight_path).wanted
    wanted["generation"], wanted["token_budget"] = 1, 7
    add(scheduler, "r", 40, 0)
    step(scheduler)
    assert scheduler.max_num_scheduled_tokens == 128


def test_the_engine_runs_below_its_ceilings_from_the_start(recorded: Make) -> None:
    scheduler, reader = recorded(
        blocks=BLOCKS, max_num_batched_tokens=128, max_num_seqs=4, knobs={"token_budget": 32, "max_active": 2}
    )
    assert (scheduler.max_num_scheduled_tokens, scheduler.max_num_active_reqs) == (32, 2)
    assert (reader.control["token_budget"], reader.control["token_budget_ceiling"]) == (32, 128)


def control_of(reader: FlightReader) -> Knobs:
    found = dict(reader.control)
    return Knobs(
        **{name: int(found[name]) for name in asdict(NOW) if name not in ("chunked_prefill", "policy", "snapshot_hz")},
        chunked_prefill=bool(found["chunked_prefill"]),
        policy=POLICIES[int(found["policy"])],
        snapshot_hz=found["snapshot_hz"],
    )


def waiting(scheduler: Any) -> list[str]:
    return [each.request_id.removesuffix("-0123abcd") for each in scheduler.waiting]


def shared(path: Path) -> Views:
    """The record, writable for anybody."""
    raw = np.memmap(path, np.uint8, "r+")
    blocks = FlightReader(path).header.blocks
    assert len(raw) == record_size(blocks)
    return views(raw, blocks)
