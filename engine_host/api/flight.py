"""Reads a flight record that a scheduler in another process is writing."""

import mmap
import re
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.flight.layout import (
    DECODE,
    HEADER,
    LEFT,
    NAME_SLOTS,
    PREEMPTED,
    PREFILL,
    RECOMPUTE,
    RING_SHARES,
    RING_STEPS,
    FlightVersionError,
    check_header,
    record_size,
    views,
)

__all__ = [
    "CACHED",
    "DECODE",
    "FREE",
    "LEFT",
    "PREEMPTED",
    "PREFILL",
    "RECOMPUTE",
    "USED",
    "FlightReader",
    "FlightVersionError",
    "Header",
    "PageMap",
    "Shares",
    "Steps",
]

FREE, USED, CACHED = 0, 1, 2
"""States of a page: held by nobody; held by a request or several; held by nobody, but its content can be found."""

MAX_TRIES = 64
"""Attempts at an untorn snapshot: a write takes well under a tenth of a percent of the time between two."""

FIRST_READ_PAUSE_S = 0.001
"""Pause between the attempts of a first read, which has no earlier snapshot to fall back on."""

SHARES_IN_FLIGHT = 4096
"""Entries that a writer may be writing now: more requests than an engine runs at once."""

# vLLM appends "-" and eight hexadecimal digits to the id it was given; n > 1 prepends the sequence's index and "_".
_SUFFIX = re.compile(r"^(?:\d+_)?(.*?)-[0-9a-f]{8}$")


def our_id(engine_id: str) -> str:
    """The request id as the host gave it, from the one EngineCore uses."""
    match = _SUFFIX.match(engine_id)
    return match[1] if match else engine_id


@dataclass(frozen=True)
class Header:
    """What doesn't change in a record. `block_size` is in tokens; `page_bytes` over all layers, `None` if unknown."""

    engine_id: int
    pid: int
    blocks: int
    block_size: int
    page_bytes: int | None
    created: float


@dataclass(frozen=True)
class PageMap:
    """One snapshot of the KV pages, immutable. Page i is vLLM's block i + 1: block 0 is its null block, never used.

    state: `FREE`, `USED` or `CACHED` a page; refs: requests holding it; owner: index into `owners` of one of those, -1
    if there is none. A shared page has several: `owners_of` lists them. `owners` are request ids as the host gave them.
    `taken` counts snapshots; `time` is monotonic seconds; `unlisted` requests found no room in the owner table.
    """

    time: float
    taken: int
    state: NDArray[np.uint8]
    refs: NDArray[np.uint16]
    owner: NDArray[np.int32]
    owners: tuple[str, ...]
    pair_owner: NDArray[np.int32]
    pair_page: NDArray[np.int32]
    unlisted: int

    @property
    def used(self) -> int:
        """Pages held by at least one request."""
        return int(np.count_nonzero(self.state == USED))

    @property
    def cached(self) -> int:
        """Pages held by nobody whose content can still be found by its prefix."""
        return int(np.count_nonzero(self.state == CACHED))

    @cached_property
    def pages_held(self) -> Mapping[str, int]:
        """Number of pages each request holds, shared ones included."""
        counts = np.bincount(self.pair_owner, minlength=len(self.owners))
        held: dict[str, int] = {}
        for name, count in zip(self.owners, counts.tolist(), strict=False):
            held[name] = held.get(name, 0) + count
        return held

    def pages_of(self, request_id: str) -> NDArray[np.int32]:
        """The pages a request holds, in the order of its tokens."""
        slots = [slot for slot, name in enumerate(self.owners) if name == request_id]
        return self.pair_page[np.isin(self.pair_owner, slots)]

    def owners_of(self, page: int) -> tuple[str, ...]:
        """All requests that hold `page`."""
        return tuple(self.owners[slot] for slot in self.pair_owner[self.pair_page == page])


@dataclass(frozen=True)
class Steps:
    """Scheduler steps, oldest first, immutable: one array a column, as `engine_host.flight.layout.STEP` explains.

    `missed` steps had left the ring before they were asked for.
    """

    rows: NDArray[Any]
    missed: int

    def __len__(self) -> int:
        return len(self.rows)

    def __getattr__(self, column: str) -> NDArray[Any]:
        try:
            found: NDArray[Any] = self.rows[column]
        except ValueError:
            raise AttributeError(column) from None
        return found


@dataclass(frozen=True)
class Shares:
    """Requests' parts of steps, in the order in which they were scheduled: rows of `engine_host.flight.layout.SHARE`.

    The kinds are `PREFILL`, `DECODE`, `RECOMPUTE`, `PREEMPTED`, `LEFT`. `end` is the number of the last one, to ask for
    what follows; `missed` had left the ring before they were asked for.
    """

    rows: NDArray[Any]
    end: int
    missed: int


class FlightReader:
    """Maps the record at `path` read-only. Raises `FlightVersionError`, or `OSError` if it can't be opened."""

    def __init__(self, path: str | Path) -> None:
        path = Path(path)
        with path.open("rb") as file:
            blocks = check_header(file.read(HEADER.itemsize), path)
            size = record_size(blocks)
            if path.stat().st_size < size:
                raise FlightVersionError(f"{path} is cut short.")
            self._map = mmap.mmap(file.fileno(), size, access=mmap.ACCESS_READ)
        self._views = views(self._map, blocks)
        head = self._views.header[0]
        self.header = Header(
            engine_id=int(head["engine_id"]),
            pid=int(head["pid"]),
            blocks=blocks,
            block_size=int(head["block_size"]),
            page_bytes=int(head["page_bytes"]) or None,
            created=float(head["created"]),
        )
        self._last: PageMap | None = None

    def close(self) -> None:
        """Unmap the file; snapshots already read stay valid, and nothing can be read any more."""
        del self._views
        self._map.close()

    @property
    def stopped(self) -> bool:
        """Whether the scheduler has said that it records no more."""
        return bool(self._views.header[0]["stopped"])

    @property
    def steps_made(self) -> int:
        """Steps the scheduler has made since it began."""
        return int(self._views.head[0])

    @property
    def control(self) -> dict[str, float]:
        """The live knobs in force, by name."""
        row = self._views.control[0]
        return {name: row[name].item() for name in row.dtype.names or ()}

    def read_pages(self) -> PageMap:
        """The latest whole snapshot; the one read before, where a writer kept tearing this one.

        Before the first snapshot, or where the writer died in the middle of it, all pages are free and `taken` is 0.
        """
        v = self._views
        for attempt in range(MAX_TRIES):
            if attempt and self._last is None:
                time.sleep(FIRST_READ_PAUSE_S)
            before = int(v.pages["sequence"][0])
            if before % 2:
                continue
            if self._last is not None and int(v.pages["taken"][0]) == self._last.taken:
                return self._last
            head = v.pages[0].copy()
            pairs, owners = int(head["pairs"]), int(head["owners"])
            copies = (v.refs[1:].copy(), v.cached[1:].copy(), v.owner[1:].copy())
            names = v.owner_ids[:owners].tolist()
            pair_owner, pair_page = v.pair_owner[:pairs].copy(), v.pair_block[:pairs] - 1
            if int(v.pages["sequence"][0]) == before:
                self._last = _page_map(head, *copies, names, pair_owner, pair_page)
                return self._last
        return self._last if self._last is not None else _empty_map(self.header.blocks - 1)

    def read_steps(self, since: int = 0) -> Steps:
        """The steps numbered above `since` that the ring still holds."""
        v = self._views
        head = int(v.head[0])
        first = max(since + 1, head - RING_STEPS + 2, 1)
        numbers = np.arange(first, head + 1)
        rows = v.ring[(numbers - 1) % RING_STEPS]
        # The writer went on meanwhile: what it has overwritten, or may have begun to, is not trusted.
        rows = rows[numbers > int(v.head[0]) - RING_STEPS + 1]
        rows.flags.writeable = False
        return Steps(rows, missed=max(0, head - since) - len(rows))

    def read_shares(self, since: int = 0) -> Shares:
        """The parts numbered above `since` that the ring still holds; also of steps that haven't come back yet."""
        v = self._views
        head = int(v.shares_head[0])
        first = max(since, head - RING_SHARES)
        rows = v.shares[np.arange(first, head) % RING_SHARES]
        # As for steps; a write may be one entry for each of the requests that run.
        overtaken = max(0, int(v.shares_head[0]) + SHARES_IN_FLIGHT - RING_SHARES - first)
        rows = rows[overtaken:]
        rows.flags.writeable = False
        return Shares(rows, head, missed=max(0, head - since) - len(rows))

    def request_of(self, serial: int) -> str | None:
        """The id of a request as the host gave it; `None` where it came too long ago."""
        row = self._views.names[serial % NAME_SLOTS]
        return our_id(row["id"].decode("utf-8", "replace")) if int(row["serial"]) == serial else None

    def prompt_of(self, serial: int) -> int | None:
        """Tokens of its prompt; `None` where it came too long ago."""
        row = self._views.names[serial % NAME_SLOTS]
        return int(row["prompt"]) if int(row["serial"]) == serial else None


def _page_map(
    head: Any,
    refs: NDArray[np.uint16],
    cached: NDArray[np.uint8],
    owner: NDArray[np.int32],
    names: list[bytes],
    pair_owner: NDArray[np.int32],
    pair_page: NDArray[np.int32],
) -> PageMap:
    state = np.where(refs > 0, np.uint8(USED), np.where(cached > 0, np.uint8(CACHED), np.uint8(FREE)))
    for array in (state, refs, owner, pair_owner, pair_page):
        array.flags.writeable = False
    return PageMap(
        time=float(head["time"]),
        taken=int(head["taken"]),
        state=state,
        refs=refs,
        owner=owner,
        owners=tuple(our_id(name.decode("utf-8", "replace")) for name in names),
        pair_owner=pair_owner,
        pair_page=pair_page,
        unlisted=int(head["unlisted"]),
    )


def _empty_map(pages: int) -> PageMap:
    none = np.empty(0, np.int32)
    head = {"time": 0.0, "taken": 0, "unlisted": 0}
    nobody = np.full(pages, -1, np.int32)
    return _page_map(head, np.zeros(pages, np.uint16), np.zeros(pages, np.uint8), nobody, [], none, none.copy())
