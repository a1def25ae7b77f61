"""Changes a running vLLM scheduler's knobs between two steps.

What of vLLM's it sets stands here, and a test names each.
"""

from typing import Any

from vllm.v1.core.sched.request_queue import SchedulingPolicy, create_request_queue

from engine_host.flight.knobs import Knobs


def knobs_of(scheduler: Any, snapshot_hz: float) -> Knobs:
    """What the scheduler runs with now; its ceilings are what the engine was allocated for."""
    config = scheduler.scheduler_config
    return Knobs(
        token_budget=scheduler.max_num_scheduled_tokens,
        token_budget_ceiling=config.max_num_batched_tokens,
        max_active=scheduler.max_num_active_reqs,
        max_active_ceiling=config.max_num_seqs,
        long_prefill_threshold=config.long_prefill_token_threshold,
        watermark_blocks=scheduler.kv_cache_manager.watermark_blocks,
        chunked_prefill=config.enable_chunked_prefill,
        policy=scheduler.policy.value,
        snapshot_hz=snapshot_hz,
    )


def apply(scheduler: Any, knobs: Knobs) -> None:
    """Put `knobs` in force. Call it before a step is scheduled, with values that `clamped` has passed."""
    config = scheduler.scheduler_config
    scheduler.max_num_scheduled_tokens = knobs.token_budget
    # Only admission: `max_num_running_reqs` below what runs would fail an assertion.
    scheduler.max_num_active_reqs = knobs.max_active
    config.long_prefill_token_threshold = knobs.long_prefill_threshold
    config.enable_chunked_prefill = knobs.chunked_prefill
    scheduler.kv_cache_manager.watermark_blocks = knobs.watermark_blocks
    policy = SchedulingPolicy(knobs.policy)
    if policy != scheduler.policy:
        _requeue(scheduler, policy)


def _requeue(scheduler: Any, policy: SchedulingPolicy) -> None:
    """Order who waits by another policy. A preempted request goes before those that never ran, as vLLM puts it."""
    queues = {}
    for name in ("waiting", "kv_holding_waiting"):
        queue = create_request_queue(policy)
        for request in sorted(
            getattr(scheduler, name), key=lambda each: (each.num_preemptions == 0, each.arrival_time)
        ):
            queue.add_request(request)
        queues[name] = queue
    # Only now: a fault above leaves the old order whole.
    scheduler.waiting, scheduler.kv_holding_waiting = queues["waiting"], queues["kv_holding_waiting"]
    scheduler.policy = policy
