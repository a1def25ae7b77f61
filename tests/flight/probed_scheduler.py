"""The recorded scheduler, and a way to ask EngineCore what vLLM itself believes. EngineCore loads this module."""

from typing import Any

from vllm.v1.engine.core import EngineCore

from engine_host.engine.scheduler import RecordingScheduler


def flight_truth(core: Any) -> dict[str, Any]:
    """Block ids by the core's request id, blocks with a hash, references by block, and vLLM's KV cache usage."""
    scheduler = core.scheduler
    cache = scheduler.kv_cache_manager
    owned = cache.coordinator.single_type_managers[0].req_to_blocks
    return {
        "owned": {name: list(cache.get_block_ids(name)[0]) for name in owned},
        "hashed": [block.block_id for block in cache.block_pool.blocks if block.block_hash is not None],
        "refs": [block.ref_cnt for block in cache.block_pool.blocks],
        "usage": scheduler.get_kv_cache_usage(),
    }


EngineCore.flight_truth = flight_truth


class ProbedScheduler(RecordingScheduler):
    """Loading this class is what makes `flight_truth` callable."""
