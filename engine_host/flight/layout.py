"""How a flight record lies in its file: one header, the control block, the page map, the ring of steps.

One scheduler writes, any number of processes map it read-only. All numbers are little-endian. The page map is guarded
by a sequence lock: its `sequence` is odd while it is being written. Each ring is guarded by its head: an entry counts
once the head has passed it.
"""

import struct
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

MAGIC = b"LLMCFLT\0"
VERSION = 3

RING_STEPS = 4096
"""Steps kept: 40 s at 100 steps a second."""

RING_SHARES = 1 << 18
"""Shares kept: those of all the ring's steps with up to 64 requests each; 10 s of 256 requests at 100 steps/s."""

NAME_SLOTS = 8192
"""Requests whose ids are kept: the last so many to come."""

OWNER_SLOTS = 2048
"""Requests the owner table holds; pages of further ones are shown as used by nobody known."""

OWNER_BYTES = 160
"""Longest request id kept, in bytes; ids made by vLLM are about 50."""

_ALIGN = 64

HEADER = np.dtype(
    [
        ("magic", "S8"),
        ("version", "<u4"),
        ("stopped", "<u4"),
        ("engine_id", "<u4"),
        ("pid", "<u4"),
        ("blocks", "<u4"),
        ("block_size", "<u4"),
        ("page_bytes", "<u8"),
        ("pairs", "<u4"),
        ("reserved", "<u4"),
        ("created", "<f8"),
    ]
)

CONTROL = np.dtype(
    [
        ("token_budget", "<i8"),
        ("token_budget_ceiling", "<i8"),
        ("max_active", "<i8"),
        ("max_active_ceiling", "<i8"),
        ("long_prefill_threshold", "<i8"),
        ("watermark_blocks", "<i8"),
        ("chunked_prefill", "<i4"),
        ("policy", "<i4"),
        ("snapshot_hz", "<f8"),
        ("generation", "<u8"),
    ]
)
"""Live knobs. `policy` is 0 for fcfs, 1 for priority, `watermark_blocks` a number of blocks.

There are two: what is wanted, written by the host, and what is in force, written by the scheduler with the ceilings.
`generation` is a sequence lock on the wanted one: odd while it is being written, even and higher than before once it
stands. The one in force names the generation it came from.
"""

PAGES = np.dtype(
    [
        ("sequence", "<u8"),
        ("time", "<f8"),
        ("cost", "<f8"),
        ("taken", "<u8"),
        ("owners", "<u4"),
        ("pairs", "<u4"),
        ("unlisted", "<u4"),
        ("reserved", "<u4"),
    ]
)
"""`time` is monotonic, `cost` the seconds the snapshot took, `taken` counts snapshots, `unlisted` owners or pairs that
found no room."""

STEP = np.dtype(
    [
        ("number", "<u8"),
        ("time", "<f8"),
        ("schedule", "<f4"),
        ("execute", "<f4"),
        ("update", "<f4"),
        ("prefill", "<u4"),
        ("decode", "<u4"),
        ("running", "<u4"),
        ("waiting", "<u4"),
        ("preempted", "<u4"),
        ("finished", "<u4"),
        ("budget", "<u4"),
        ("used_blocks", "<u4"),
        ("generation", "<u4"),
    ]
)
"""One scheduler step: when it began (monotonic), seconds spent in its parts, tokens scheduled.

`running`, `waiting` and `used_blocks` are counted after it; `preempted` by it; `finished` are the requests that ended,
for whatever reason, since the step before. `budget` is the token budget in force, `generation` that of the knobs in
force. With asynchronous scheduling `execute` holds the wait for the step before.
"""

PREFILL, DECODE, RECOMPUTE, PREEMPTED, LEFT = 1, 2, 3, 4, 5
"""Kinds of shares: tokens of a prompt; tokens after it; those of both that are computed again after a preemption; the
request has lost its pages and waits; it has ended, and lost them."""

SHARE_COLUMNS = ("step", "serial", "kind", "tokens", "context")
SHARE = np.dtype([(name, "<u4") for name in SHARE_COLUMNS])
"""One request's part of one step: `tokens` scheduled for it, and the `context` they end at, in tokens.

`serial` numbers requests in the order in which they first were scheduled. Of the kinds preempted and left both counts
are 0, and `step` is the last one scheduled before.
"""

NAME = np.dtype([("serial", "<u4"), ("prompt", "<u4"), ("id", f"S{OWNER_BYTES}")])
"""A request: its serial, the tokens of its prompt, its id as EngineCore knows it. Its place is serial modulo
`NAME_SLOTS`."""

STEP_STRUCT = struct.Struct("<Qd3f9I")
"""`STEP` for packing: some microseconds quicker than assigning to a structured array."""


class FlightVersionError(Exception):
    """The file is no flight record of this version; the message says what it is."""


@dataclass(frozen=True)
class Views:
    """Numpy views on the parts of one mapped record. Arrays of pages have one entry a KV block."""

    header: NDArray[Any]
    wanted: NDArray[Any]
    control: NDArray[Any]
    pages: NDArray[Any]
    refs: NDArray[np.uint16]
    cached: NDArray[np.uint8]
    owner: NDArray[np.int32]
    owner_ids: NDArray[np.bytes_]
    pair_owner: NDArray[np.int32]
    pair_block: NDArray[np.int32]
    head: NDArray[np.uint64]
    ring: NDArray[Any]
    shares_head: NDArray[np.uint64]
    shares: NDArray[Any]
    names: NDArray[Any]


def pair_capacity(blocks: int) -> int:
    """Owner-block pairs there is room for: each block twice, and 256 requests that share a prefix of 256 blocks."""
    return 2 * blocks + 65_536


def record_size(blocks: int) -> int:
    """Bytes of a record for `blocks` KV blocks."""
    return _lay_out(None, blocks)[1]


def views(buffer: Any, blocks: int) -> Views:
    """Views on a mapped record of `blocks` KV blocks; writable if the buffer is."""
    found = _lay_out(buffer, blocks)[0]
    assert found is not None
    return found


def check_header(raw: bytes, path: Path) -> int:
    """The number of KV blocks a file's first bytes announce. Raises `FlightVersionError`."""
    if len(raw) < HEADER.itemsize or not raw.startswith(MAGIC[:7]):
        raise FlightVersionError(f"{path} is no flight record.")
    header = np.frombuffer(raw, HEADER, 1)[0]
    if header["version"] != VERSION:
        raise FlightVersionError(
            f"{path} is a flight record of version {header['version']}, and this program reads version {VERSION}. "
            "Use the llmconsole that runs the engine."
        )
    return int(header["blocks"])


def _lay_out(buffer: Any, blocks: int) -> tuple[Views | None, int]:
    assert sys.byteorder == "little"
    pairs = pair_capacity(blocks)
    parts: list[tuple[Any, int]] = [
        (HEADER, 1),
        (CONTROL, 1),
        (CONTROL, 1),
        (PAGES, 1),
        (np.dtype("<u2"), blocks),
        (np.dtype("u1"), blocks),
        (np.dtype("<i4"), blocks),
        (np.dtype(f"S{OWNER_BYTES}"), OWNER_SLOTS),
        (np.dtype("<i4"), pairs),
        (np.dtype("<i4"), pairs),
        (np.dtype("<u8"), 1),
        (STEP, RING_STEPS),
        (np.dtype("<u8"), 1),
        (SHARE, RING_SHARES),
        (NAME, NAME_SLOTS),
    ]
    arrays, offset = [], 0
    for dtype, count in parts:
        if buffer is not None:
            arrays.append(np.frombuffer(buffer, dtype, count, offset))
        offset += -(-dtype.itemsize * count // _ALIGN) * _ALIGN
    return (Views(*arrays) if buffer is not None else None), offset
