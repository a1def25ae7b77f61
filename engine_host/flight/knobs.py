"""The live knobs as the flight record carries them: wanted by the host, put in force by the scheduler.

Nothing read here is trusted: the file can be written by anyone who may open it, and an engine must survive what it
finds there.
"""

import math
import mmap
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.flight.layout import HEADER, check_header, record_size, views

POLICIES = ("fcfs", "priority")

MAX_HZ = 10.0
"""Most page-map snapshots a second: no screen is drawn more often."""


class KnobRefusedError(Exception):
    """A value is outside what the running engine allows; one sentence to show."""


@dataclass(frozen=True)
class Knobs:
    """The live knobs and their ceilings. Tokens, requests, blocks, snapshots a second.

    `max_model_len` (tokens) is what a step must hold where prompts are not chunked.
    """

    token_budget: int
    token_budget_ceiling: int
    max_active: int
    max_active_ceiling: int
    long_prefill_threshold: int
    watermark_blocks: int
    chunked_prefill: bool
    policy: str
    snapshot_hz: float
    generation: int = 0
    """Last in the row, so that it is written last."""


def checked(knobs: Knobs, blocks: int, max_model_len: int) -> Knobs:
    """The same knobs, if an engine of `blocks` KV blocks can run with them. Raises `KnobRefusedError`."""
    for name, value, low, high in (
        ("token budget", knobs.token_budget, 1, knobs.token_budget_ceiling),
        ("number of active requests", knobs.max_active, 1, knobs.max_active_ceiling),
        ("long-prefill threshold", knobs.long_prefill_threshold, 0, max_model_len),
        ("watermark", knobs.watermark_blocks, 0, blocks - 1),
    ):
        if type(value) is not int or not low <= value <= high:
            raise KnobRefusedError(
                f"The {name} can't be {value!r}: the running engine allows {low} to {high}. "
                "Beyond that it has to be rebuilt."
            )
    if not (math.isfinite(knobs.snapshot_hz) and 0 < knobs.snapshot_hz <= MAX_HZ):
        raise KnobRefusedError(f"The snapshot rate can't be {knobs.snapshot_hz} a second: it is at most {MAX_HZ:g}.")
    if knobs.policy not in POLICIES:
        raise KnobRefusedError(f"There is no scheduling policy {knobs.policy!r}, only {' and '.join(POLICIES)}.")
    if not knobs.chunked_prefill and knobs.token_budget < max_model_len:
        raise KnobRefusedError(
            f"Without chunked prefill the token budget ({knobs.token_budget}) must hold the longest prompt "
            f"({max_model_len} tokens), or it would never be scheduled."
        )
    return knobs


def clamped(row: Any, now: Knobs, blocks: int, max_model_len: int) -> Knobs:
    """What an engine running with `now` makes of a row of `CONTROL` that may hold anything.

    Numbers are brought between their limits; what means nothing leaves the value in force.
    """
    hz, policy, chunked = float(row["snapshot_hz"]), int(row["policy"]), int(row["chunked_prefill"])
    budget = _between(int(row["token_budget"]), 1, now.token_budget_ceiling)
    chunk = bool(chunked) if chunked in (0, 1) else now.chunked_prefill
    if not chunk and budget < max_model_len:
        # A prompt longer than the budget would wait for ever, and all behind it.
        chunk = now.token_budget_ceiling < max_model_len
        budget = budget if chunk else max_model_len
    return replace(
        now,
        token_budget=budget,
        max_active=_between(int(row["max_active"]), 1, now.max_active_ceiling),
        long_prefill_threshold=_between(int(row["long_prefill_threshold"]), 0, max_model_len),
        watermark_blocks=_between(int(row["watermark_blocks"]), 0, max(blocks - 1, 0)),
        chunked_prefill=chunk,
        policy=POLICIES[policy] if policy in (0, 1) else now.policy,
        snapshot_hz=min(hz, MAX_HZ) if math.isfinite(hz) and hz > 0 else now.snapshot_hz,
        generation=int(row["generation"]),
    )


def as_row(knobs: Knobs) -> dict[str, Any]:
    """The knobs by the names and in the types of a row of `CONTROL`."""
    return {**asdict(knobs), "policy": POLICIES.index(knobs.policy), "chunked_prefill": int(knobs.chunked_prefill)}


def write_knobs(control: NDArray[Any], knobs: Knobs) -> None:
    """Write a row of `CONTROL`, its generation last."""
    row = control[0]
    for name, value in as_row(knobs).items():
        row[name] = value


def read_knobs(control: NDArray[Any]) -> Knobs:
    """Read the row of the knobs in force."""
    row = control[0].copy()
    return Knobs(
        **{
            name: int(row[name])
            for name in (
                "token_budget",
                "token_budget_ceiling",
                "max_active",
                "max_active_ceiling",
                "long_prefill_threshold",
                "watermark_blocks",
                "generation",
            )
        },
        chunked_prefill=bool(row["chunked_prefill"]),
        policy=POLICIES[int(row["policy"])],
        snapshot_hz=float(row["snapshot_hz"]),
    )


class WantedKnobs:
    """The scheduler's end of the wanted knobs: costs a comparison a step while nothing changes."""

    def __init__(self, wanted: NDArray[Any]) -> None:
        self._wanted = wanted
        self._generation = wanted["generation"].data
        self._seen = self._generation[0]

    def changed(self) -> Any | None:
        """A copy of the row, once after each change; `None` while nothing changed or the host is still writing."""
        generation = self._generation[0]
        if generation == self._seen or generation % 2:
            return None
        row = self._wanted[0].copy()
        if self._generation[0] != generation:
            return None  # Written to meanwhile: the next step reads it.
        self._seen = generation
        return row


class ControlBlock:
    """The host's end: maps the record at `path` for writing. Raises `FlightVersionError` or `OSError`."""

    def __init__(self, path: Path) -> None:
        with path.open("r+b") as file:
            blocks = check_header(file.read(HEADER.itemsize), path)
            self._map = mmap.mmap(file.fileno(), record_size(blocks))
        self.blocks = blocks
        self._views = views(self._map, blocks)

    @property
    def in_force(self) -> Knobs:
        """What the scheduler runs with, ceilings included."""
        return read_knobs(self._views.control)

    def want(self, knobs: Knobs, max_model_len: int) -> int:
        """Ask for knobs (ceilings and generation are the engine's own); returns the generation to wait for.

        Raises `KnobRefusedError` and writes nothing where the running engine can't have them.
        """
        now = self.in_force
        knobs = replace(knobs, token_budget_ceiling=now.token_budget_ceiling, max_active_ceiling=now.max_active_ceiling)
        checked(knobs, self.blocks, max_model_len)
        wanted = self._views.wanted
        generation = (int(wanted["generation"][0]) // 2 * 2 + 2) % 2**62
        wanted["generation"][0] = np.uint64(generation - 1)
        write_knobs(wanted, replace(knobs, generation=generation - 1))
        wanted["generation"][0] = np.uint64(generation)
        return generation

    def close(self) -> None:
        """Unmap the file."""
        del self._views
        self._map.close()


def _between(value: int, low: int, high: int) -> int:
    return min(max(value, low), high)
