"""Reads the inside of vLLM's scheduler and writes it to the flight record.

What of vLLM's it needs stands in this file and in `scheduler`, and a test names each.
A fault in the recorder switches the recorder off; it never reaches the engine.
"""

import logging
import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.engine.live_knobs import apply, knobs_of
from engine_host.flight.budget import SnapshotBudget
from engine_host.flight.knobs import as_row, clamped
from engine_host.flight.layout import DECODE, LEFT, PREEMPTED, PREFILL, RECOMPUTE
from engine_host.flight.writer import FlightWriter

logger = logging.getLogger("vllm.llmconsole")


class FlightRecorder:
    """Records one scheduler. `lock` is held while the scheduler works, and while anything here is called.

    The lock is there for one case: the last change before the engine falls idle, when the share of time is spent. No
    step follows that could record it, so a timer does once the share allows.
    """

    def __init__(self, scheduler: Any, settings: Mapping[str, Any]) -> None:
        rank = scheduler.vllm_config.parallel_config.data_parallel_index
        cache = scheduler.kv_cache_manager
        self.lock = threading.RLock()
        self._scheduler = scheduler
        self._pool = cache.block_pool
        self._managers = [each for each in cache.coordinator.single_type_managers if each.block_pool is self._pool]
        self._off = False
        self._pending: deque[tuple[float, float, float, int, int, int, int, int]] = deque()
        self._finished = self._preempted = 0
        self._scheduled = 0
        self._serials: dict[str, int] = {}
        self._last_serial = 0
        self._names: list[str] = []
        self._known = np.empty(0, np.uint32)
        self._contexts: NDArray[np.uint32] | None = None
        self._changed = False
        self._paused = False
        self._steps_unshown = 0
        self._timer: threading.Timer | None = None
        blocks = len(self._pool.blocks)
        self._writer = FlightWriter(
            Path(settings["flight_path"] + (f".{rank}" if rank else "")),
            engine_id=settings["engine_id"],
            blocks=blocks,
            block_size=scheduler.block_size,
            page_bytes=_page_bytes(scheduler.kv_cache_config),
        )
        self._knobs = knobs_of(scheduler, settings["snapshot_hz"])
        self._limits = (blocks, scheduler.max_model_len)
        self._budget = SnapshotBudget(self._knobs.snapshot_hz, time.monotonic())
        # The engine is allocated for its ceilings, and runs below them.
        self._put_in_force(as_row(self._knobs) | settings.get("knobs", {}))
        self._snapshot()

    def guard(self, action: Callable[..., None], *args: Any) -> None:
        """Run one of the methods below. Should it fail: log why, mark the record as stopped, do nothing any more."""
        if self._off:
            return
        try:
            action(self, *args)
        except Exception:
            logger.exception("The flight record has stopped; the engine goes on without it.")
            self.stop()

    def obey(self) -> None:
        """Put in force what the host wants, before the next step is scheduled."""
        row = self._writer.wanted.changed()
        if row is not None:
            self._put_in_force(row)

    def _put_in_force(self, row: Any) -> None:
        knobs = clamped(row, self._knobs, *self._limits)
        apply(self._scheduler, knobs)
        if knobs.snapshot_hz != self._knobs.snapshot_hz:
            self._budget.set_rate(knobs.snapshot_hz, time.monotonic())
        self._knobs = knobs
        self._writer.publish(knobs)

    def scheduled(self, began: float, output: Any) -> None:
        """A step was scheduled; `output` is vLLM's `SchedulerOutput`."""
        ended = time.monotonic()
        if ended >= self._budget.next:
            self._snapshot()
        self._write_lost(output.preempted_req_ids or ())
        if output.total_num_scheduled_tokens:
            self._scheduled += 1
            prompts = self._prompts(output)
            self._write_shares(output, prompts)
            prefill = sum(map(output.num_scheduled_tokens.__getitem__, prompts))
            decode = output.total_num_scheduled_tokens - prefill
            preempted, budget = self._preempted, self._scheduler.max_num_scheduled_tokens
            generation = self._knobs.generation & 0xFFFFFFFF
            self._pending.append((began, ended, time.monotonic(), prefill, decode, preempted, budget, generation))
            self._preempted = 0

    def updated(self, began: float, output: Any) -> None:
        """The scheduler took in what the step of `output` produced."""
        ended = time.monotonic()
        scheduler = self._scheduler
        # Steps come back in the order they were scheduled, also where several are on their way.
        if output.total_num_scheduled_tokens and self._pending:
            step, scheduled, executing, prefill, decode, preempted, budget, generation = self._pending.popleft()
            running, waiting = scheduler.get_request_counts()
            self._writer.write_step(
                step,
                (scheduled - step, began - executing, ended - began),
                (prefill, decode),
                (running, waiting, preempted, self._finished),
                budget,
                self._used_blocks(),
                generation,
            )
            self._finished = 0
            self._steps_unshown += 1
        # With nothing left to run, or all of it paused, this may have been the last step for long.
        if self._changed or ((self._paused or not scheduler.running) and self._outdated()):
            self.changed()

    def ended(self, request_id: str) -> None:
        """A request ended. The step in which it did, or the call, shows its pages afterwards."""
        self._finished += 1
        self._changed = True
        self._names = []
        serial = self._serials.pop(request_id, None)
        if serial is not None:
            self._writer.write_shares(self._scheduled, (serial,), LEFT, 0, 0)

    def changed(self) -> None:
        """Something ended, was paused or was cleared: show it at once if the share allows, else as soon as it does."""
        self._changed = True
        wait = self._budget.wait(time.monotonic())
        if wait == 0:
            self._snapshot()
        elif self._timer is None:
            self._timer = threading.Timer(wait, self._late)
            self._timer.daemon = True
            self._timer.start()

    def paused(self, state: Any) -> None:
        """The scheduler was paused or resumed."""
        self._paused = state.name != "UNPAUSED"
        self.changed()

    def stop(self) -> None:
        """Mark the record as past, and write no more."""
        self._off = True
        if self._timer is not None:
            self._timer.cancel()
        self._writer.stop()

    def _prompts(self, output: Any) -> list[str]:
        """As `prefill_requests`; some of vLLM's model runners are told of a preempted request as of a new one."""
        return [
            each
            for each in prefill_requests(output)
            if each not in self._serials or not self._scheduler.requests[each].num_output_tokens
        ]

    def _write_lost(self, preempted: Collection[str]) -> None:
        """Note who has lost its pages; a step may have room for nobody else."""
        self._preempted += len(preempted)
        lost = [self._serials[each] for each in preempted if each in self._serials]
        if lost:
            self._writer.write_shares(self._scheduled, lost, PREEMPTED, 0, 0)

    def _write_shares(self, output: Any, prompts: Sequence[str]) -> None:
        """Note which requests the step works for."""
        scheduled, requests, serials = output.num_scheduled_tokens, self._scheduler.requests, self._serials
        for request in output.scheduled_new_reqs:
            if request.req_id not in serials:
                self._last_serial += 1
                serials[request.req_id] = self._last_serial
                self._writer.write_name(self._last_serial, request.req_id, requests[request.req_id].num_prompt_tokens)
        # Step after step works for the same requests: what is known of them is looked up once.
        if (names := list(scheduled)) != self._names:
            self._names, self._contexts = names, None
            self._known = np.array([serials[each] for each in names], np.uint32)
        if not prompts and output.total_num_scheduled_tokens == len(names):
            # A token each: those who had one in the step before end one further.
            self._contexts = self._computed(names) if self._contexts is None else self._contexts + 1
            self._writer.write_shares(self._scheduled, self._known, DECODE, 1, self._contexts)
            return
        self._contexts = None
        self._writer.write_shares(
            self._scheduled,
            self._known,
            self._kinds(output, prompts),
            array("I", list(scheduled.values())),
            self._computed(names),
        )

    def _computed(self, names: Sequence[str]) -> NDArray[np.uint32]:
        """Tokens that are computed of each of these requests once the step has been run."""
        requests = self._scheduler.requests
        return np.array([requests[each].num_computed_tokens for each in names], np.uint32)

    def _kinds(self, output: Any, prompts: Sequence[str]) -> Sequence[int]:
        drafts, first = output.scheduled_spec_decode_tokens, set(prompts)
        # One token and its drafts is a step of decode: more is catching up.
        return [
            PREFILL
            if name in first
            else DECODE
            if tokens == 1 or tokens <= 1 + len(drafts.get(name, ()))
            else RECOMPUTE
            for name, tokens in output.num_scheduled_tokens.items()
        ]

    def _late(self) -> None:
        with self.lock:
            self._timer = None
            if self._changed:
                # A step may have taken a snapshot meanwhile and spent what this was waiting for: then wait again.
                self.guard(FlightRecorder.changed)

    def _snapshot(self) -> None:
        began = time.monotonic()
        refs, cached = block_states(self._pool.blocks)
        self._writer.write_pages(refs, cached, owned_blocks(self._managers), began)
        self._changed = False
        self._steps_unshown = 0
        self._used_shown = self._used_blocks()
        self._budget.charge(began, time.monotonic())

    def _outdated(self) -> bool:
        return self._steps_unshown > 0 or self._used_blocks() != self._used_shown

    def _used_blocks(self) -> int:
        used: int = self._pool.num_gpu_blocks - 1 - self._pool.get_num_free_blocks()
        return used


def block_states(blocks: Sequence[Any]) -> tuple[NDArray[np.uint16], NDArray[np.uint8]]:
    """Reference count and whether its content is findable, for each of vLLM's blocks.

    Counts saturate at 65 535; that of the null block is not kept by vLLM, and may be negative.
    """
    # One pass, and attributes rather than properties: this is most of a snapshot's cost.
    packed = np.fromiter([b.ref_cnt * 2 + (b._block_hash is not None) for b in blocks], np.int32, len(blocks))
    return np.clip(packed >> 1, 0, 65535).astype(np.uint16), (packed & 1).astype(np.uint8)


def owned_blocks(managers: Iterable[Any]) -> list[tuple[str, Sequence[int]]]:
    """Each request's block ids over all cache groups, without the null block."""
    owned: dict[str, array[int]] = {}
    for manager in managers:
        for request_id, blocks in manager.req_to_blocks.items():
            ids = array("i", [number for block in blocks if (number := block.block_id)])
            owned[request_id] = owned[request_id] + ids if request_id in owned else ids
    return list(owned.items())


def prefill_requests(output: Any) -> list[str]:
    """Requests of a step whose tokens belong to prompts, by vLLM's own rule: they have produced nothing yet.

    A request that was preempted after its first token and is computed again counts as decode there, and so here.
    """
    found = [request.req_id for request in output.scheduled_new_reqs]
    cached = output.scheduled_cached_reqs
    if 0 in cached.num_output_tokens:
        pairs = zip(cached.req_ids, cached.num_output_tokens, strict=True)
        found += [request_id for request_id, produced in pairs if produced == 0]
    return found


def _page_bytes(config: Any) -> int | None:
    """Bytes of a block over all layers, on one device."""
    # Every tensor is a part of one allocation, and says the size of that.
    sizes = [tensor.size for tensor in config.kv_cache_tensors if not tensor.host_resident]
    return sizes[0] // config.num_blocks if sizes else None
