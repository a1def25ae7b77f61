"""What the rules ask of the steps of a record: how long each took, what lay between them, who was in them."""

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.api.flight import PREFILL
from engine_host.doctor.record import Named, Record

WINDOW_S = 60.0
"""Steps before this many seconds ago tell of a past that the operator may have mended already."""


@dataclass(frozen=True)
class Recent:
    """The steps of the last `WINDOW_S` seconds of a record, one entry a step in each array."""

    record: Record
    rows: NDArray[Any]
    seconds: NDArray[np.float64]
    """From its beginning, or from the end of the step before where that was later, to its end. So overlapping steps of
    asynchronous scheduling add up to the time they took together."""
    gaps: NDArray[np.float64]
    """From the end of the step before to its beginning, while requests ran; 0 else."""

    @cached_property
    def plain_decode(self) -> NDArray[np.bool_]:
        """Steps that computed no prompt."""
        found: NDArray[np.bool_] = (self.rows["prefill"] == 0) & (self.rows["decode"] > 0)
        return found

    @cached_property
    def mixed(self) -> NDArray[np.bool_]:
        """Steps in which some requests waited for their next token while prompts of others were computed."""
        found: NDArray[np.bool_] = (self.rows["prefill"] > 0) & (self.rows["decode"] > 0)
        return found

    def decode_median(self, least: int) -> float | None:
        """Median seconds of a step that computes no prompt; `None` where there are fewer than `least`."""
        times = self.seconds[self.plain_decode]
        return float(np.median(times)) if len(times) >= least else None

    def unix(self, index: int) -> float:
        """When the step at `index` began."""
        return float(self.rows["time"][index]) + self.record.offset

    def shares_of(self, index: int) -> NDArray[Any]:
        """The shares of the step at `index`; none where they had left the ring."""
        shares = self.record.shares
        # Shares count steps in 32 bits.
        found: NDArray[Any] = shares[shares["step"] == np.uint32(int(self.rows["number"][index]) & 0xFFFFFFFF)]
        return found

    def longest_prompt(self, index: int) -> tuple[Named, int] | None:
        """The request with most prompt tokens in the step at `index`, and these; `None` where it isn't known."""
        shares = self.shares_of(index)
        prompts = shares[shares["kind"] == PREFILL]
        if not len(prompts):
            return None
        longest = prompts[int(np.argmax(prompts["tokens"]))]
        named = self.record.names.get(int(longest["serial"]))
        return (named, int(longest["tokens"])) if named is not None else None


def recent(record: Record) -> Recent:
    """The steps of the last `WINDOW_S` seconds before the record was made."""
    rows = record.steps[record.steps["time"] + record.offset >= record.time - WINDOW_S]
    begin = rows["time"].astype(np.float64)
    end = begin + rows["schedule"] + rows["execute"] + rows["update"]
    before = np.concatenate(([-np.inf], np.maximum.accumulate(end)[:-1])) if len(rows) else end
    busy = np.concatenate(([False], rows["running"][:-1] > 0)) if len(rows) else end > 0
    gaps = np.where(busy, np.maximum(begin - before, 0.0), 0.0)
    return Recent(record, rows, np.maximum(end - np.maximum(begin, before), 0.0), gaps)
