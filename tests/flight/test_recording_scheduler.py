"""The recorder around vLLM's own schedulers, step by step, against what vLLM itself says."""

import random
import threading
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from engine_host.api.flight import (
    CACHED,
    DECODE,
    FREE,
    LEFT,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    USED,
    FlightReader,
    PageMap,
)
from engine_host.flight.writer import FlightWriter
from tests.flight.clock import Clock

Make = Callable[..., tuple[Any, FlightReader]]

both_schedulers = pytest.mark.parametrize("asynchronous", [False, True], ids=["sync", "async"])


def add(scheduler: Any, name: str, tokens: int, seed: int, max_tokens: int = 4) -> None:
    from benchmarks.bare_scheduler import prompt, request

    scheduler.add_request(request(f"{name}-0123abcd", prompt(tokens, seed), max_tokens))


def step(scheduler: Any) -> Any:
    from benchmarks.bare_scheduler import step

    return step(scheduler)


def abort(scheduler: Any, name: str) -> None:
    from vllm.v1.request import RequestStatus

    scheduler.finish_requests(f"{name}-0123abcd", RequestStatus.FINISHED_ABORTED)


def said_by_vllm(scheduler: Any) -> tuple[dict[str, list[int]], list[int], float]:
    """Pages by request, references by page, and the share of the KV cache in use."""
    cache = scheduler.kv_cache_manager
    owned = {
        name.removesuffix("-0123abcd"): [page - 1 for page in cache.get_block_ids(name)[0]]
        for name in cache.coordinator.single_type_managers[0].req_to_blocks
    }
    return owned, [block.ref_cnt for block in cache.block_pool.blocks[1:]], scheduler.get_kv_cache_usage()


def assert_as_vllm_says(pages: PageMap, scheduler: Any) -> None:
    owned, refs, usage = said_by_vllm(scheduler)
    assert {name: pages.pages_of(name).tolist() for name in pages.owners} == owned
    assert pages.refs.tolist() == refs
    assert pages.used / len(pages.state) == pytest.approx(usage)
    assert pages.unlisted == 0


@both_schedulers
def test_pages_and_steps_are_what_vllm_says_through_a_random_load(
    recorded: Make, clock: Clock, asynchronous: bool
) -> None:
    from vllm.v1.utils import compute_iteration_details

    from benchmarks.bare_scheduler import produce

    # Little room: prompts come in chunks, requests are preempted and computed again.
    scheduler, reader = recorded(
        asynchronous=asynchronous, blocks=33, max_num_batched_tokens=128, max_num_seqs=8, max_model_len=512
    )
    chance, added, ended_before = random.Random(5), 0, 0
    while added < 40 or scheduler.has_requests():
        if added < 40 and chance.random() < 0.5:
            add(scheduler, f"r{added}", chance.randrange(1, 400), chance.randrange(6), chance.randrange(1, 90))
            added += 1
        if chance.random() < 0.05 and len(scheduler.running) > 1:
            abort(scheduler, scheduler.running[-1].request_id.removesuffix("-0123abcd"))
        clock.now += 0.2
        output = scheduler.schedule()
        # A snapshot was due right after scheduling.
        assert_as_vllm_says(reader.read_pages(), scheduler)
        scheduler.update_from_output(output, produce(scheduler, output))
        details = compute_iteration_details(output)
        steps = reader.read_steps(ended_before)
        assert len(steps) == (output.total_num_scheduled_tokens > 0)
        if len(steps):
            ended_before = int(steps.number[0])
            assert (steps.prefill[0], steps.decode[0]) == (details.num_ctx_tokens, details.num_generation_tokens)
            assert (steps.running[0], steps.waiting[0]) == scheduler.get_request_counts()
            assert steps.used_blocks[0] == round(scheduler.get_kv_cache_usage() * 32)
    rows = reader.read_steps().rows
    assert rows["finished"].sum() == added
    assert rows["preempted"].sum() > 0
    assert reader.read_pages().used == 0
    assert not reader.stopped


@both_schedulers
@pytest.mark.parametrize("second_runner", [False, True], ids=["runner1", "runner2"])
def test_shares_are_what_each_request_was_scheduled_for(
    recorded: Make, clock: Clock, asynchronous: bool, second_runner: bool
) -> None:
    from benchmarks.bare_scheduler import produce

    scheduler, reader = recorded(
        asynchronous=asynchronous, blocks=33, max_num_batched_tokens=128, max_num_seqs=8, max_model_len=512
    )
    # vLLM's second model runner is told of preempted requests as of new ones.
    scheduler.use_v2_model_runner = second_runner
    chance, added = random.Random(7), 0
    expected: list[tuple[int, str, int, int]] = []
    computed: dict[str, int] = {}
    steps = 0
    while added < 30 or scheduler.has_requests():
        if added < 30 and chance.random() < 0.5:
            add(scheduler, f"r{added}", chance.randrange(1, 400), chance.randrange(6), chance.randrange(1, 90))
            added += 1
        output = scheduler.schedule()
        steps += output.total_num_scheduled_tokens > 0
        for name, tokens in output.num_scheduled_tokens.items():
            computed[name] = scheduler.requests[name].num_computed_tokens
            expected.append((steps, name.removesuffix("-0123abcd"), tokens, computed[name]))
        scheduler.update_from_output(output, produce(scheduler, output))
    shares = reader.read_shares()
    assert shares.missed == 0
    rows = shares.rows
    work = rows[np.isin(rows["kind"], (PREFILL, DECODE, RECOMPUTE))]
    found = [(int(r["step"]), reader.request_of(int(r["serial"])), int(r["tokens"]), int(r["context"])) for r in work]
    assert found == expected
    # Each request of a step's prefill is told as such, what is computed again is not, and all have left in the end.
    ring = reader.read_steps().rows
    for number, prefill, decode in zip(ring["number"], ring["prefill"], ring["decode"], strict=True):
        mine = work[work["step"] == number]
        assert mine["tokens"][mine["kind"] == PREFILL].sum() == prefill
        assert mine["tokens"][mine["kind"] != PREFILL].sum() == decode
    assert (rows["kind"] == PREEMPTED).sum() == ring["preempted"].sum() > 0
    assert (work["kind"] == RECOMPUTE).any()
    assert (work["tokens"][work["kind"] == DECODE] == 1).all()
    left = rows["serial"][rows["kind"] == LEFT]
    assert sorted(left) == sorted(set(work["serial"].tolist()))
    assert reader.prompt_of(int(left[0]))


def test_a_token_and_its_drafts_is_decode_and_more_is_computed_again(recorded: Make) -> None:
    scheduler, _ = recorded()
    tokens = {"plain": 1, "drafted": 4, "again": 5, "long": 4, "prompt": 1}
    drafts = {"drafted": [7, 7, 7], "again": [7, 7, 7]}
    output = SimpleNamespace(
        num_scheduled_tokens=tokens, scheduled_spec_decode_tokens=drafts, total_num_scheduled_tokens=15
    )
    kinds = scheduler._recorder._kinds(output, ["prompt"])
    assert kinds == [DECODE, DECODE, RECOMPUTE, RECOMPUTE, PREFILL]


def test_a_prompt_of_one_token_is_a_prompt(recorded: Make) -> None:
    scheduler, reader = recorded()
    add(scheduler, "a", 1, seed=1, max_tokens=2)
    step(scheduler)
    assert reader.read_shares().rows["kind"].tolist() == [PREFILL]


@both_schedulers
def test_a_request_that_preempts_itself_is_told_so_though_nothing_is_scheduled(
    recorded: Make, asynchronous: bool
) -> None:
    scheduler, reader = recorded(asynchronous=asynchronous, blocks=5, max_model_len=512)
    add(scheduler, "long", 120, seed=1, max_tokens=200)
    while step(scheduler).total_num_scheduled_tokens:
        pass
    rows = reader.read_shares().rows
    assert (rows[-1]["kind"], rows[-1]["step"]) == (PREEMPTED, reader.steps_made)
    abort(scheduler, "long")
    add(scheduler, "short", 40, seed=2)
    step(scheduler)
    assert reader.read_steps().preempted.tolist()[-2:] == [0, 1]


@both_schedulers
def test_a_name_that_comes_again_is_another_request(recorded: Make, asynchronous: bool) -> None:
    scheduler, reader = recorded(asynchronous=asynchronous)
    for _ in range(2):
        add(scheduler, "a", 40, seed=1, max_tokens=3)
        while scheduler.has_requests():
            step(scheduler)
    rows = reader.read_shares().rows
    assert rows["serial"].tolist() == sorted(rows["serial"].tolist())
    assert set(rows["serial"].tolist()) == {1, 2}
    assert rows["context"][rows["serial"] == 2].tolist()[0] == 40


@both_schedulers
def test_what_the_prefix_cache_holds_is_not_scheduled_again(recorded: Make, asynchronous: bool) -> None:
    scheduler, reader = recorded(asynchronous=asynchronous)
    add(scheduler, "first", 100, seed=1, max_tokens=50)
    step(scheduler)
    end = reader.read_shares().end
    add(scheduler, "second", 100, seed=1, max_tokens=50)
    step(scheduler)
    rows = reader.read_shares(end).rows
    (row,) = rows[rows["kind"] == PREFILL]
    assert (reader.request_of(row["serial"]), row["tokens"], row["context"]) == ("second", 4, 100)


@both_schedulers
def test_a_shared_prefix_has_all_its_owners(recorded: Make, clock: Clock, asynchronous: bool) -> None:
    scheduler, reader = recorded(asynchronous=asynchronous)
    add(scheduler, "first", 100, seed=1, max_tokens=50)
    step(scheduler)
    add(scheduler, "second", 100, seed=1, max_tokens=50)
    clock.now += 0.2
    step(scheduler)
    pages = reader.read_pages()
    shared = [page for page in range(len(pages.refs)) if pages.refs[page] > 1]
    assert len(shared) == 100 // 32
    assert all(pages.owners_of(page) == ("first", "second") for page in shared)
    assert pages.pages_held == {"first": 4, "second": 4}


@both_schedulers
def test_an_abort_frees_its_pages_without_a_further_step(recorded: Make, asynchronous: bool) -> None:
    scheduler, reader = recorded(asynchronous=asynchronous)
    add(scheduler, "stays", 100, seed=1, max_tokens=50)
    add(scheduler, "leaves", 100, seed=2, max_tokens=50)
    step(scheduler)
    abort(scheduler, "leaves")
    pages = reader.read_pages()
    assert pages.owners == ("stays",)
    assert pages.used == 4


@both_schedulers
def test_after_the_end_full_pages_are_cached_and_a_reset_clears_them(recorded: Make, asynchronous: bool) -> None:
    scheduler, reader = recorded(asynchronous=asynchronous)
    add(scheduler, "a", 100, seed=1, max_tokens=2)
    while scheduler.has_requests():
        step(scheduler)
    pages = reader.read_pages()
    assert (pages.state == CACHED).sum() == 3
    assert (pages.state == USED).sum() == 0
    assert pages.owners == ()
    assert scheduler.reset_prefix_cache()
    assert (reader.read_pages().state == FREE).all()


def test_a_pause_shows_what_is_frozen(recorded: Make) -> None:
    from vllm.v1.core.sched.interface import PauseState

    scheduler, reader = recorded()
    add(scheduler, "a", 100, seed=1, max_tokens=50)
    step(scheduler)
    taken = reader.read_pages().taken
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    assert reader.read_pages().taken > taken
    assert_as_vllm_says(reader.read_pages(), scheduler)


def test_a_step_that_comes_back_after_the_pause_is_shown(recorded: Make) -> None:
    from vllm.v1.core.sched.interface import PauseState

    from benchmarks.bare_scheduler import produce

    scheduler, reader = recorded(asynchronous=True)
    add(scheduler, "a", 96, seed=1, max_tokens=50)
    output = scheduler.schedule()
    scheduler.set_pause_state(PauseState.PAUSED_ALL)
    taken = reader.read_pages().taken
    scheduler.update_from_output(output, produce(scheduler, output))
    assert reader.read_pages().taken > taken


def test_steps_in_flight_are_recorded_in_their_order(recorded: Make) -> None:
    from benchmarks.bare_scheduler import produce

    scheduler, reader = recorded(asynchronous=True)
    add(scheduler, "a", 40, seed=1, max_tokens=50)
    outputs = [scheduler.schedule(), scheduler.schedule()]
    assert len(reader.read_steps()) == 0
    for output in outputs:
        scheduler.update_from_output(output, produce(scheduler, output))
    steps = reader.read_steps()
    assert steps.prefill.tolist() == [40, 0]
    assert steps.decode.tolist() == [0, 1]


def test_durations_are_those_of_the_parts(recorded: Make, monkeypatch: pytest.MonkeyPatch, clock: Clock) -> None:
    from benchmarks.bare_scheduler import produce
    from engine_host.engine import scheduler as module

    monkeypatch.setattr(module, "time", clock)
    scheduler, reader = recorded()
    inner = scheduler.kv_cache_manager.allocate_slots

    def slow(*args: Any, **kwargs: Any) -> Any:
        clock.now += 0.25
        return inner(*args, **kwargs)

    monkeypatch.setattr(scheduler.kv_cache_manager, "allocate_slots", slow)
    add(scheduler, "a", 40, seed=1, max_tokens=50)
    began = clock.now
    output = scheduler.schedule()
    clock.now += 2.0
    scheduler.update_from_output(output, produce(scheduler, output))
    row = reader.read_steps().rows[0]
    assert (row["time"], row["schedule"], row["execute"], row["update"]) == (began, 0.25, 2.0, 0.0)


def test_the_last_state_is_recorded_although_the_share_was_spent(
    recorded: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    write = FlightWriter.write_pages

    def slow(*args: Any) -> None:
        clock.now += 0.050
        write(*args)

    scheduler, reader = recorded()
    monkeypatch.setattr(FlightWriter, "write_pages", slow)
    for name in ("a", "b"):
        add(scheduler, name, 100, seed=1, max_tokens=1)
        step(scheduler)
    # The first end was shown at the cost of five seconds' share: the second has to wait.
    assert reader.read_pages().taken == 2
    assert len(clock.timers) == 1
    add(scheduler, "c", 100, seed=3, max_tokens=1)
    step(scheduler)
    assert len(clock.timers) == 1
    clock.fire()
    assert reader.read_pages().taken == 3
    assert clock.timers == []
    assert_as_vllm_says(reader.read_pages(), scheduler)


def test_a_late_snapshot_waits_while_the_scheduler_works(
    recorded: Make, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler, _ = recorded()
    entered, result = threading.Event(), []

    def late() -> None:
        entered.set()
        scheduler._recorder._late()
        result.append("late")

    inner = scheduler.kv_cache_manager.allocate_slots

    def during(*args: Any, **kwargs: Any) -> Any:
        thread.start()
        entered.wait(10)
        result.append("scheduling")
        return inner(*args, **kwargs)

    monkeypatch.setattr(scheduler.kv_cache_manager, "allocate_slots", during)
    thread = threading.Thread(target=late)
    add(scheduler, "a", 40, seed=1, max_tokens=50)
    scheduler.schedule()
    thread.join(10)
    assert result == ["scheduling", "late"]


def test_a_fault_ends_the_record_and_not_the_engine(
    recorded: Make, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    import logging

    def broken(*_: Any) -> None:
        raise RuntimeError("broken")

    scheduler, reader = recorded()
    monkeypatch.setattr(FlightWriter, "write_step", broken)
    logging.getLogger("vllm.llmconsole").addHandler(caplog.handler)
    add(scheduler, "a", 40, seed=1, max_tokens=5)
    while scheduler.has_requests():
        step(scheduler)
    assert reader.stopped
    messages = [record.getMessage() for record in caplog.records if record.name == "vllm.llmconsole"]
    assert messages == ["The flight record has stopped; the engine goes on without it."]


def test_a_record_that_can_not_be_made_leaves_the_engine_alone(recorded: Make, flight_path: Path) -> None:
    flight_path.mkdir()
    with pytest.raises(IsADirectoryError):
        recorded()  # the reader's complaint: the scheduler was made
    from benchmarks.bare_scheduler import bare_config, bare_scheduler
    from engine_host.engine.scheduler import RecordingScheduler

    config = bare_config(flight_path.parent)
    config.additional_config = {"llmconsole": {"flight_path": str(flight_path), "engine_id": 0, "snapshot_hz": 10}}
    scheduler = bare_scheduler(RecordingScheduler, config, 65)
    add(scheduler, "a", 40, seed=1, max_tokens=2)
    while scheduler.has_requests():
        step(scheduler)


def test_the_null_block_may_count_below_zero(recorded: Make, clock: Clock) -> None:
    scheduler, reader = recorded()
    scheduler.kv_cache_manager.block_pool.null_block.ref_cnt = -3
    scheduler.kv_cache_manager.block_pool.blocks[5].ref_cnt = 70_000
    clock.now += 0.2
    add(scheduler, "a", 40, seed=1)
    step(scheduler)
    assert reader.read_pages().refs[4] == 65_535
    assert not reader.stopped


def test_knobs_and_header_come_from_the_final_configuration(recorded: Make) -> None:
    _, reader = recorded(max_num_seqs=12, max_num_batched_tokens=512, long_prefill_token_threshold=64)
    control, header = reader.control, reader.header
    assert (control["token_budget"], control["token_budget_ceiling"]) == (512, 512)
    assert (control["max_active"], control["max_active_ceiling"]) == (12, 12)
    assert (control["long_prefill_threshold"], control["policy"], control["snapshot_hz"]) == (64, 0, 10)
    # One layer, keys and values, one head of 32 float32 values, 32 tokens.
    assert (header.engine_id, header.blocks, header.block_size, header.page_bytes) == (3, 65, 32, 2 * 32 * 4 * 32)


def test_each_data_parallel_rank_has_its_own_record(recorded: Make, flight_path: Path, tmp_path: Path) -> None:
    from benchmarks.bare_scheduler import bare_config, bare_scheduler
    from engine_host.engine.scheduler import RecordingScheduler

    recorded()
    config = bare_config(tmp_path)
    config.additional_config = {"llmconsole": {"flight_path": str(flight_path), "engine_id": 0, "snapshot_hz": 10}}
    config.parallel_config.data_parallel_index = 1
    bare_scheduler(RecordingScheduler, config, 33)
    assert FlightReader(flight_path).header.blocks == 65
    assert FlightReader(f"{flight_path}.1").header.blocks == 33


def test_without_settings_nothing_is_recorded(tmp_path: Path) -> None:
    from benchmarks.bare_scheduler import bare_config, bare_scheduler
    from engine_host.engine.scheduler import RecordingScheduler

    scheduler = bare_scheduler(RecordingScheduler, bare_config(tmp_path), 33)
    add(scheduler, "a", 40, seed=1, max_tokens=2)
    while scheduler.has_requests():
        step(scheduler)
    assert [path.name for path in tmp_path.iterdir()] == ["config.json"]


@pytest.mark.parametrize(("asynchronous", "name"), [(True, "AsyncScheduler"), (False, "Scheduler")])
def test_the_recorded_class_is_the_one_vllm_would_take(asynchronous: bool, name: str) -> None:
    from vllm.config import SchedulerConfig

    from engine_host.engine.scheduler import scheduler_class_for

    config = SchedulerConfig.default_factory(async_scheduling=asynchronous)
    chosen = scheduler_class_for(SimpleNamespace(scheduler_config=config))
    assert chosen.__mro__[2] is config.get_scheduler_cls()
    assert chosen.__mro__[2].__name__ == name


def test_shutting_down_marks_the_record_as_past(recorded: Make) -> None:
    scheduler, reader = recorded()
    scheduler.shutdown()
    assert reader.stopped


def test_a_scheduler_whose_record_can_not_be_written_works_on_without_it(recorded: Make, flight_path: Path) -> None:
    scheduler, _ = recorded()
    settings = scheduler.vllm_config.additional_config["llmconsole"]
    settings["flight_path"] = str(flight_path.parent / "no-such-folder" / "flight")
    blind = type(scheduler)(
        vllm_config=scheduler.vllm_config,
        kv_cache_config=scheduler.kv_cache_config,
        structured_output_manager=scheduler.structured_output_manager,
        block_size=scheduler.block_size,
        hash_block_size=scheduler.block_size,
        log_stats=True,
    )
    assert blind._recorder is None
    add(blind, "a", 40, seed=1, max_tokens=2)
    while blind.has_requests():
        step(blind)
    assert blind.get_request_counts() == (0, 0)
