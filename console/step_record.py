"""The ring of steps as it stands in a flight record, read once. Call it from a thread."""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from time import monotonic, time
from typing import NamedTuple

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
    """The steps the ring held at `read_at` (Unix time), oldest first, and the requests' parts of each by its number."""

    read_at: float
    steps: list[StepLine]
    shares: dict[int, list[StepShare]]

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

    def steps_of(self, request: str) -> list[StepLine]:
        """The steps that a request has a part in."""
        of_it = {number for number, shares in self.shares.items() if any(share.request == request for share in shares)}
        return [step for step in self.steps if step.number in of_it]


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
        shares: dict[int, list[StepShare]] = {}
        names: dict[int, str | None] = {}
        oldest = steps[0].number if steps else 0
        for number, serial, kind, tokens, context in reader.read_shares(0).rows.tolist():
            if number < oldest:
                continue
            if serial not in names:
                names[serial] = reader.request_of(serial)
            share = StepShare(serial, names[serial], _KINDS.get(kind, f"kind {kind}"), tokens, context)
            shares.setdefault(number, []).append(share)
        return StepRecord(time(), steps, shares)
    finally:
        reader.close()
