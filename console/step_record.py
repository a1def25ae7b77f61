"""The ring of steps as it stands in a flight record, read once. Call it from a thread."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import monotonic, time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

LONG = 3.0
"""A step is long that takes more than this many times the median of the ring's."""

_KINDS = {1: "prefill", 2: "decode", 3: "recompute", 4: "preempted", 5: "left"}
"""What a request's part of a step is, by its number in the record."""


class StepLine(NamedTuple):
    """One step: when it began (Unix time), seconds by part, tokens, and the state after it."""

    number: int
    time: float
    schedule: float
    execute: float
    update: float
    prefill: int
    decode: int
    budget: int
    running: int
    waiting: int
    preempted: int
    finished: int
    used_blocks: int

    @property
    def took(self) -> float:
        """Seconds together."""
        return self.schedule + self.execute + self.update


class StepShare(NamedTuple):
    """One request's part of one step; `request` is `None` where it came too long ago to be named."""

    serial: int
    request: str | None
    kind: str
    tokens: int
    context: int


@dataclass(frozen=True)
class StepRecord:
    """The steps the ring held at `read_at` (Unix time), oldest first.

    `parts` are the rows of requests' parts of steps as they lie in the record, `names` the requests by their serials.
    """

    read_at: float
    steps: list[StepLine]
    parts: NDArray[Any]
    names: dict[int, str | None]

    @property
    def long_from(self) -> float:
        """Seconds above which a step counts as long."""
        return LONG * median(step.took for step in self.steps) if self.steps else float("inf")

    def at_step(self, number: int) -> int | None:
        """The index of the step of this number; `None` if the ring doesn't hold it."""
        return next((index for index, step in enumerate(self.steps) if step.number == number), None)

    def at_time(self, moment: float) -> int | None:
        """The index of the last step that had begun at this Unix time; `None` if that has left the ring."""
        found = [index for index, step in enumerate(self.steps) if step.time <= moment]
        return found[-1] if found else None

    def shares(self, number: int) -> list[StepShare]:
        """The requests' parts of the step of this number."""
        rows = self.parts[self.parts["step"] == number & 0xFFFFFFFF]
        return [
            StepShare(serial, self.names.get(serial), _KINDS.get(kind, f"kind {kind}"), tokens, context)
            for _, serial, kind, tokens, context in rows.tolist()
        ]

    def steps_of(self, request: str) -> list[StepLine]:
        """The steps that a request has a part in."""
        serials = [serial for serial, name in self.names.items() if name == request]
        numbers = set(self.parts["step"][np.isin(self.parts["serial"], serials)].tolist())
        return [step for step in self.steps if step.number & 0xFFFFFFFF in numbers]


def read_step_record(path: str) -> StepRecord:
    """Read the ring at `path`. Raises `OSError` or `FlightVersionError`."""
    from engine_host.api.flight import FlightReader

    reader = FlightReader(path)
    try:
        to_unix = time() - monotonic()
        rows = reader.read_steps(0)
        steps = [
            StepLine(*(row[name].item() for name in StepLine._fields))._replace(time=float(row["time"]) + to_unix)
            for row in rows.rows
        ]
        parts = reader.read_shares(0).rows
        names = {serial: reader.request_of(serial) for serial in np.unique(parts["serial"]).tolist()}
        return StepRecord(time(), steps, parts, names)
    finally:
        reader.close()
