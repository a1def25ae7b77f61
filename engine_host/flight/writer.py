"""Writes a flight record. Lives in the scheduler's process; knows nothing of vLLM."""

import mmap
import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from engine_host.flight.knobs import Knobs, WantedKnobs, write_knobs
from engine_host.flight.layout import (
    HEADER,
    MAGIC,
    NAME_SLOTS,
    OWNER_BYTES,
    OWNER_SLOTS,
    RING_SHARES,
    RING_STEPS,
    SHARE_COLUMNS,
    STEP_STRUCT,
    VERSION,
    pair_capacity,
    record_size,
    views,
)

Column = Sequence[int] | NDArray[np.uint32]


class FlightWriter:
    """One record of `blocks` KV blocks of `block_size` tokens, at `path`.

    The file appears whole: it is written beside and renamed. Its memory is touched at once: no step pays for it.
    `page_bytes` is the size of a block in bytes over all layers, `None` if unknown.
    """

    def __init__(self, path: Path, *, engine_id: int, blocks: int, block_size: int, page_bytes: int | None) -> None:
        beside = path.with_name(f"{path.name}.new")
        size = record_size(blocks)
        with beside.open("w+b") as file:
            # Written, not truncated to size: the pages exist, and a full disk is told now and not by a SIGBUS.
            file.write(bytes(size))
            file.flush()
            self._map = mmap.mmap(file.fileno(), size, mmap.MAP_SHARED | getattr(mmap, "MAP_POPULATE", 0))
        self._views = views(self._map, blocks)
        self._ring = self._views.ring.data.cast("B")
        self._head = self._views.head.data
        self._step = 0
        self._shares_head = self._views.shares_head.data
        self._columns = self._views.shares.view(np.uint32).reshape(RING_SHARES, len(SHARE_COLUMNS))
        self._shares = 0
        self.wanted = WantedKnobs(self._views.wanted)
        header = self._views.header
        header["engine_id"], header["pid"] = engine_id, os.getpid()
        header["blocks"], header["block_size"] = blocks, block_size
        header["page_bytes"] = page_bytes or 0
        header["pairs"] = pair_capacity(blocks)
        header["created"] = time.time()
        header["version"] = VERSION
        self._map[: len(MAGIC)] = MAGIC
        assert HEADER.itemsize >= len(MAGIC)
        beside.replace(path)

    def publish(self, knobs: Knobs) -> None:
        """Say which knobs are in force."""
        write_knobs(self._views.control, knobs)

    def write_pages(
        self,
        refs: NDArray[np.uint16],
        cached: NDArray[np.uint8],
        owned: Sequence[tuple[str, Sequence[int]]],
        at: float,
    ) -> None:
        """Publish a snapshot of the page map.

        `refs` and `cached` have one entry a block; `owned` gives each request its block ids; the last to
        list a shared one is its owner. Requests beyond the room of the tables are counted as unlisted. `at` is the
        monotonic time the snapshot was begun, from which its cost is told.
        """
        # All that takes time comes before the sequence lock: a reader meets it as rarely as can be.
        v = self._views
        names: list[bytes] = []
        counts: list[int] = []
        ids: list[NDArray[np.int32]] = []
        unlisted, room = 0, len(v.pair_block)
        for request_id, blocks in owned:
            if len(names) == OWNER_SLOTS or len(blocks) > room:
                unlisted += 1
                continue
            room -= len(blocks)
            names.append(request_id.encode()[:OWNER_BYTES])
            counts.append(len(blocks))
            ids.append(np.asarray(blocks, np.int32))
        pair_block = np.concatenate(ids) if ids else np.empty(0, np.int32)
        pair_owner = np.repeat(np.arange(len(names), dtype=np.int32), counts)
        owner = np.full(len(v.owner), -1, np.int32)
        owner[pair_block] = pair_owner  # of a shared page's owners the last listed stays
        head, pairs = v.pages[0], len(pair_block)
        head["sequence"] += 1  # odd: being written
        v.refs[:], v.cached[:], v.owner[:] = refs, cached, owner
        v.owner_ids[: len(names)] = names
        v.pair_block[:pairs], v.pair_owner[:pairs] = pair_block, pair_owner
        head["owners"], head["pairs"], head["unlisted"] = len(names), pairs, unlisted
        head["time"] = at
        head["taken"] += 1
        head["cost"] = time.monotonic() - at
        head["sequence"] += 1

    def write_step(
        self,
        began: float,
        spent: tuple[float, float, float],
        tokens: tuple[int, int],
        requests: tuple[int, int, int, int],
        budget: int,
        used_blocks: int,
        generation: int,
    ) -> None:
        """Append a step.

        `spent` are the seconds of schedule, execute and update; `tokens` the prefill and decode tokens; `requests` how
        many run, wait, were preempted and finished; `budget` the token budget in force, `generation` that of the knobs.
        """
        number = self._step + 1
        place = self._step % RING_STEPS * STEP_STRUCT.size
        STEP_STRUCT.pack_into(
            self._ring, place, number, began, *spent, *tokens, *requests, budget, used_blocks, generation
        )
        self._head[0] = number
        self._step = number

    def write_name(self, serial: int, request_id: str, prompt_tokens: int) -> None:
        """Tell which request a serial stands for; before its first share."""
        self._views.names[serial % NAME_SLOTS] = (serial, prompt_tokens, request_id.encode()[:OWNER_BYTES])

    def write_shares(
        self,
        step: int,
        serials: Column,
        kinds: Column | int,
        tokens: Column | int,
        contexts: Column | int,
    ) -> None:
        """Append the parts of `step`, the number it has or will have in the ring of steps: one entry a request.

        What all have in common may be given once.
        """
        count = len(serials)
        place = self._shares % RING_SHARES
        around = place + count > RING_SHARES
        block = np.empty((count, len(SHARE_COLUMNS)), np.uint32) if around else self._columns[place : place + count]
        block[:, 0] = step & 0xFFFFFFFF
        block[:, 1] = serials
        block[:, 2] = kinds
        block[:, 3] = tokens
        block[:, 4] = contexts
        if around:
            room = RING_SHARES - place
            self._columns[place:] = block[:room]
            self._columns[: count - room] = block[room:]
        self._shares += count
        self._shares_head[0] = self._shares

    def stop(self) -> None:
        """Mark that nothing more will be written: what is here is the past."""
        self._views.header["stopped"] = 1
