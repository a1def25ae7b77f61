"""Everything of vLLM that the recorder uses and vLLM doesn't promise: a release that changes it fails here."""

import inspect
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import pytest

from engine_host.api.flight import FlightReader, our_id

Make = Callable[..., tuple[Any, FlightReader]]

ATTRIBUTES = (
    "vllm_config.additional_config",
    "vllm_config.parallel_config.data_parallel_index",
    "scheduler_config.max_num_batched_tokens",
    "scheduler_config.max_num_seqs",
    "scheduler_config.long_prefill_token_threshold",
    "scheduler_config.enable_chunked_prefill",
    "scheduler_config.async_scheduling",
    "max_num_scheduled_tokens",
    "max_num_active_reqs",
    "policy.value",
    "waiting",
    "kv_holding_waiting",
    "max_model_len",
    "block_size",
    "running",
    "kv_cache_config.num_blocks",
    "kv_cache_config.kv_cache_tensors",
    "kv_cache_manager.watermark_blocks",
    "kv_cache_manager.block_pool.blocks",
    "kv_cache_manager.block_pool.num_gpu_blocks",
    "kv_cache_manager.block_pool.get_num_free_blocks",
    "kv_cache_manager.coordinator.single_type_managers",
    "get_request_counts",
    "requests",
)


@pytest.mark.parametrize("name", ATTRIBUTES)
def test_the_scheduler_has(recorded: Make, name: str) -> None:
    attrgetter(name)(recorded()[0])


def test_blocks_managers_and_tensors_are_as_read(recorded: Make) -> None:
    scheduler = recorded()[0]
    pool = scheduler.kv_cache_manager.block_pool
    null, first = pool.blocks[:2]
    assert (null.block_id, null.is_null, first.block_id, first.ref_cnt, first._block_hash) == (0, True, 1, 0, None)
    first.set_block_hash(b"hash")
    assert first._block_hash == b"hash"
    for manager in scheduler.kv_cache_manager.coordinator.single_type_managers:
        assert manager.block_pool is pool
        assert dict(manager.req_to_blocks) == {}
    tensor = scheduler.kv_cache_config.kv_cache_tensors[0]
    assert tensor.size == 65 * 8192
    assert not tensor.host_resident


def test_the_scheduler_s_methods_are_called_as_recorded() -> None:
    from vllm.v1.core.sched.scheduler import Scheduler

    from engine_host.engine.scheduler import Recorder

    def parameters(name: str) -> list[str]:
        return list(inspect.signature(getattr(Scheduler, name)).parameters)[1:]

    assert parameters("schedule") == ["throttle_prefills"]
    assert parameters("update_from_output") == ["scheduler_output", "model_runner_output"]
    assert parameters("finish_requests") == ["request_ids", "finished_status"]
    assert parameters("_free_request") == ["request", "delay_free_blocks"]
    assert parameters("set_pause_state") == ["pause_state"]
    assert parameters("reset_prefix_cache") == ["reset_running_requests", "reset_connector"]
    assert parameters("shutdown") == []
    ours = {name for name in vars(Recorder) if not name.startswith("__")}
    assert ours - set(vars(Scheduler)) == {"_record"}, "an override that overrides nothing any more"


def test_the_scheduler_output_has_what_is_counted() -> None:
    from vllm.v1.core.sched.output import CachedRequestData, NewRequestData, SchedulerOutput

    fields = {
        SchedulerOutput: {
            "num_scheduled_tokens",
            "total_num_scheduled_tokens",
            "scheduled_new_reqs",
            "scheduled_cached_reqs",
            "preempted_req_ids",
            "scheduled_spec_decode_tokens",
        },
        CachedRequestData: {"req_ids", "num_output_tokens"},
        NewRequestData: {"req_id"},
    }
    for cls, used in fields.items():
        assert used <= set(cls.__annotations__), cls


def test_a_request_has_its_prompt_and_what_is_computed_of_it() -> None:
    from benchmarks.bare_scheduler import prompt, request

    made = request("a-0123abcd", prompt(7, 1), 4)
    assert (made.num_prompt_tokens, made.num_computed_tokens, made.request_id) == (7, 0, "a-0123abcd")


def test_the_pause_states_are_told_by_name() -> None:
    from vllm.v1.core.sched.interface import PauseState

    assert {state.name for state in PauseState} == {"UNPAUSED", "PAUSED_NEW", "PAUSED_ALL"}


def test_the_core_s_request_ids_lead_back_to_ours() -> None:
    from types import SimpleNamespace

    from vllm.sampling_params import SamplingParams
    from vllm.v1.engine.input_processor import InputProcessor
    from vllm.v1.engine.parallel_sampling import ParentRequest

    request = SimpleNamespace(
        request_id="chatcmpl-7", external_req_id=None, sampling_params=SamplingParams(n=2), params=SamplingParams(n=2)
    )
    InputProcessor.assign_request_id(request)
    assert request.request_id != "chatcmpl-7"
    assert our_id(request.request_id) == "chatcmpl-7"
    child, _ = ParentRequest(request).get_child_info(1)
    assert our_id(child) == "chatcmpl-7"
