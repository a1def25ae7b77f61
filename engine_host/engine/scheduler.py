"""The scheduler vLLM loads in EngineCore: its own, with a recorder around it.

vLLM doesn't declare this interface stable. Everything of it that is used stands in this file, and a test names it.
A fault in the recorder switches the recorder off; it never reaches the engine.
"""

import logging
import time
from collections import deque
from collections.abc import Callable, Iterable
from operator import attrgetter
from pathlib import Path
from typing import Any

import numpy as np
from vllm.v1.core.sched.async_scheduler import AsyncScheduler
from vllm.v1.core.sched.scheduler import Scheduler

from engine_host.flight.writer import FlightWriter, Knobs

logger = logging.getLogger("vllm.llmconsole")

SETTINGS = "llmconsole"
"""Our key in `additional_config`: flight_path, engine_id, snapshot_hz."""

SNAPSHOT_SHARE = 0.01
"""Most of a core's time that snapshots may take."""

MAX_CREDIT_S = 0.02
"""Snapshot time that can be saved up: a burst of finishing requests is shown at once, and then the share holds."""

_ref_count = attrgetter("ref_cnt")
_block_hash = attrgetter("block_hash")


class Recorder:
    """Records steps and pages around a vLLM scheduler. A mixin: put it before the scheduler's class."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._flight: FlightWriter | None = None
        self._guard(self._open_flight)

    def schedule(self, *args: Any, **kwargs: Any) -> Any:
        """Schedule a step, and note what it will do."""
        began = time.monotonic()
        output = super().schedule(*args, **kwargs)  # type: ignore[misc]
        if self._flight is not None:
            self._guard(self._after_schedule, began, output)
        return output

    def update_from_output(self, scheduler_output: Any, *args: Any, **kwargs: Any) -> Any:
        """Take in what the step produced, and record it."""
        began = time.monotonic()
        outputs = super().update_from_output(scheduler_output, *args, **kwargs)  # type: ignore[misc]
        if self._flight is not None:
            self._guard(self._after_update, began)
        return outputs

    def finish_requests(self, *args: Any, **kwargs: Any) -> Any:
        """End requests from outside (an abort), and show their pages as free at once."""
        finished = super().finish_requests(*args, **kwargs)  # type: ignore[misc]
        if self._flight is not None and finished:
            self._finished += len(finished)
            self._guard(self._snapshot_soon)
        return finished

    def set_pause_state(self, *args: Any, **kwargs: Any) -> None:
        """Pause or resume; a paused scheduler makes no steps, so its pages are recorded here."""
        super().set_pause_state(*args, **kwargs)  # type: ignore[misc]
        if self._flight is not None:
            self._guard(self._snapshot)

    def reset_prefix_cache(self, *args: Any, **kwargs: Any) -> Any:
        """Drop the prefix cache, and record that it is gone."""
        done = super().reset_prefix_cache(*args, **kwargs)  # type: ignore[misc]
        if self._flight is not None:
            self._guard(self._snapshot)
        return done

    def shutdown(self) -> None:
        """End, and mark the record as past."""
        if self._flight is not None:
            self._guard(self._flight.stop)
        super().shutdown()  # type: ignore[misc]

    def _guard(self, action: Callable[..., None], *args: Any) -> None:
        try:
            action(*args)
        except Exception:
            logger.exception("The flight record has stopped; the engine goes on without it.")
            flight, self._flight = self._flight, None
            if flight is not None:
                flight.stop()

    def _open_flight(self) -> None:
        core: Any = self
        settings = (core.vllm_config.additional_config or {}).get(SETTINGS)
        if not settings:
            return
        rank = core.vllm_config.parallel_config.data_parallel_index
        path = Path(settings["flight_path"] + (f".{rank}" if rank else ""))
        pool = core.kv_cache_manager.block_pool
        self._blocks = pool.blocks
        self._pool = pool
        self._managers = core.kv_cache_manager.coordinator.single_type_managers
        self._interval = 1 / settings["snapshot_hz"]
        self._pending: deque[tuple[Any, ...]] = deque()
        self._finished = 0
        self._changed = False
        self._cost = 0.0
        self._credit = MAX_CREDIT_S
        self._credited = self._taken = time.monotonic()
        groups = core.kv_cache_config.kv_cache_groups
        writer = FlightWriter(
            path,
            engine_id=settings["engine_id"],
            blocks=len(pool.blocks),
            block_size=core.block_size,
            page_bytes=sum(len(group.layer_names) * group.kv_cache_spec.page_size_bytes for group in groups)
            // len(groups),
        )
        scheduling = core.scheduler_config
        writer.write_knobs(
            Knobs(
                token_budget=core.max_num_scheduled_tokens,
                token_budget_ceiling=scheduling.max_num_batched_tokens,
                max_active=core.max_num_active_reqs,
                max_active_ceiling=scheduling.max_num_seqs,
                long_prefill_threshold=scheduling.long_prefill_token_threshold,
                watermark_blocks=core.kv_cache_manager.watermark_blocks,
                chunked_prefill=scheduling.enable_chunked_prefill,
                policy=core.policy.value,
                snapshot_hz=settings["snapshot_hz"],
            )
        )
        self._flight = writer
        self._snapshot()

    def _after_schedule(self, began: float, output: Any) -> None:
        if output.total_num_scheduled_tokens:
            prefill = prefill_tokens(output)
            preempted = len(output.preempted_req_ids or ())
            now = time.monotonic()
            self._pending.append((began, now, prefill, output.total_num_scheduled_tokens - prefill, preempted))
        self._maybe_snapshot()

    def _after_update(self, began: float) -> None:
        core: Any = self
        if self._pending:
            scheduled_at, scheduled, prefill, decode, preempted = self._pending.popleft()
            now = time.monotonic()
            finished = len(core.finished_req_ids)
            assert self._flight is not None
            self._flight.write_step(
                scheduled_at,
                (scheduled - scheduled_at, began - scheduled, now - began),
                (prefill, decode),
                (len(core.running), len(core.waiting) + len(core.kv_holding_waiting), preempted, finished),
                core.max_num_scheduled_tokens,
                len(self._blocks) - 1 - self._pool.free_block_queue.num_free_blocks,
            )
        if core.finished_req_ids:
            self._snapshot_soon()

    def _snapshot_soon(self) -> None:
        """Something ended: show it now if the share allows, else as soon as it does; at once if nothing is left."""
        core: Any = self
        self._changed = True
        if not core.running and not core.waiting and not core.kv_holding_waiting:
            # No further step may come.
            self._snapshot()
        else:
            self._maybe_snapshot()

    def _maybe_snapshot(self) -> None:
        now = time.monotonic()
        if not self._changed and now - self._taken < self._interval:
            return
        self._credit = min(self._credit + (now - self._credited) * SNAPSHOT_SHARE, max(MAX_CREDIT_S, self._cost))
        self._credited = now
        if self._credit >= self._cost:
            self._snapshot()

    def _snapshot(self) -> None:
        assert self._flight is not None
        began = time.monotonic()
        count = len(self._blocks)
        refs = np.fromiter(map(_ref_count, self._blocks), np.uint16, count)
        cached = np.fromiter(map(_is_set, map(_block_hash, self._blocks)), np.uint8, count)
        self._flight.write_pages(refs, cached, owned_blocks(self._managers), began)
        self._taken = time.monotonic()
        self._cost = self._taken - began
        self._credit -= self._cost
        self._changed = False


def _is_set(value: object) -> bool:
    return value is not None


def owned_blocks(managers: Iterable[Any]) -> list[tuple[str, list[int]]]:
    """Each request's block ids over all cache groups, without the null block."""
    owned: dict[str, list[int]] = {}
    for manager in managers:
        for request_id, blocks in manager.req_to_blocks.items():
            owned.setdefault(request_id, []).extend(block.block_id for block in blocks if block.block_id)
    return list(owned.items())


def prefill_tokens(output: Any) -> int:
    """Tokens of a step that belong to prompts, by vLLM's own rule: the request has produced nothing yet.

    A request that was preempted and is computed again counts as decode there, and so here.
    """
    scheduled = output.num_scheduled_tokens
    tokens = sum(scheduled[request.req_id] for request in output.scheduled_new_reqs)
    cached = output.scheduled_cached_reqs
    for request_id, produced in zip(cached.req_ids, cached.num_output_tokens, strict=True):
        if produced == 0:
            tokens += scheduled[request_id]
    return int(tokens)


class RecordingScheduler(Recorder, Scheduler):
    """vLLM's scheduler, recorded."""


class RecordingAsyncScheduler(Recorder, AsyncScheduler):
    """vLLM's scheduler for asynchronous scheduling, recorded."""


def scheduler_class_for(vllm_config: Any) -> type[Recorder]:
    """The recorded form of the scheduler vLLM would choose for this final configuration."""
    return RecordingAsyncScheduler if vllm_config.scheduler_config.async_scheduling else RecordingScheduler
