"""Splits the time of scheduler steps over the requests they worked for. Pure arithmetic on the flight record's rows."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.flight.layout import DECODE, PREEMPTED, PREFILL, RECOMPUTE
from engine_host.telemetry.work import Floats, WorkModel


@dataclass(frozen=True)
class Spent:
    """What steps of one phase took: seconds of execution, estimated FLOP and bytes, and the steps that had it."""

    seconds: float
    flops: float
    bytes_: float
    steps: int

    def __add__(self, more: "Spent") -> "Spent":
        return Spent(
            self.seconds + more.seconds,
            self.flops + more.flops,
            self.bytes_ + more.bytes_,
            self.steps + more.steps,
        )


NOTHING = Spent(0.0, 0.0, 0.0, 0)


@dataclass(frozen=True)
class Split:
    """Steps taken apart. `prefill`, `decode` and `memory` are seconds by step; what follows is by request, in the order
    of `serials`: seconds, and what else its account needs. `prompt_step_began` is not a number where no step was for
    its prompt; `answered` tells that some step was for tokens after it."""

    prefill: Floats
    decode: Floats
    memory: Floats
    spent: tuple[Spent, Spent]
    serials: NDArray[Any]
    prefill_s: Floats
    decode_s: Floats
    memory_s: Floats
    steps: NDArray[Any]
    first_step: NDArray[Any]
    last_step: NDArray[Any]
    prompt_step_began: Floats
    answered: NDArray[np.bool_]
    computed: Floats
    preemptions: NDArray[Any]
    pages_peak: Floats
    pages_after: Floats


def split_steps(
    steps: NDArray[Any],
    shares: NDArray[Any],
    worked: Floats,
    serials: NDArray[Any],
    held: Floats,
    work: WorkModel,
    peaks: tuple[float, float] | None,
    memory_share: float,
    block_size: int,
) -> Split:
    """Split the seconds `worked` in each of the `steps`.

    `memory_share` of it goes by the pages held, the rest to prefill by FLOP and to decode by bytes; a step that holds
    both is divided between them by what each would take alone at the device's `peaks` (FLOP/s and bytes/s), or by FLOP
    where those are unknown. `serials` are all requests of `shares` and all that hold pages, ascending; `held` are the
    pages they held before.
    """
    first, count, size = int(steps["number"][0]), len(steps), len(serials)
    pages = _pages(shares, first, count, serials, held, block_size)
    entries = shares[(shares["kind"] <= RECOMPUTE) & (shares["step"] >= first)]
    row = np.searchsorted(serials, entries["serial"])
    column = (entries["step"].astype(np.int64) - first).astype(np.intp)
    decode = entries["kind"] == DECODE
    tokens, context = entries["tokens"].astype(np.float64), entries["context"].astype(np.float64)
    flops = work.flops(tokens, context, 1)
    traffic = np.where(
        decode, work.bytes_(tokens, context, 1, prefill=False), work.bytes_(tokens, context, 1, prefill=True)
    )
    of_step = _summed(column, tokens, count)
    # A step reads the weights once, for all its tokens alike.
    traffic = traffic + work.shared_bytes(of_step)[column] * tokens / of_step[column]

    def by_step(amount: Floats, chosen: NDArray[np.bool_]) -> Floats:
        return _summed(column[chosen], amount[chosen], count)

    prompt_flops, prompt_bytes = by_step(flops, ~decode), by_step(traffic, ~decode)
    decode_flops, decode_bytes = by_step(flops, decode), by_step(traffic, decode)
    if peaks is not None:
        alone = np.maximum(prompt_flops / peaks[0], prompt_bytes / peaks[1])
        both = alone + np.maximum(decode_flops / peaks[0], decode_bytes / peaks[1])
    else:
        alone, both = prompt_flops, prompt_flops + decode_flops
    # Of a step whose requests have left the ring, the tokens by phase are still known.
    counted = steps["prefill"] / np.maximum(1.0, steps["prefill"].astype(np.float64) + steps["decode"])
    prompt_share = np.divide(alone, both, out=counted, where=both > 0)

    in_use = pages[:, :count]
    memory = worked * memory_share * (in_use.sum(axis=0) > 0)
    prefill_time, decode_time = (worked - memory) * prompt_share, (worked - memory) * (1 - prompt_share)
    prompt_by, decode_by = np.zeros((size, count)), np.zeros((size, count))
    prompt_by[row[~decode], column[~decode]] = flops[~decode]
    decode_by[row[decode], column[decode]] = traffic[decode]

    chosen = entries["kind"] == PREFILL
    last_prompt = np.full(size, -1)
    np.maximum.at(last_prompt, row[chosen], column[chosen])
    began = np.where(last_prompt >= 0, steps["time"][np.maximum(last_prompt, 0)], np.nan)
    first_step, last_step = np.full(size, first + count), np.zeros(size, np.int64)
    np.minimum.at(first_step, row, column + first)
    np.maximum.at(last_step, row, column + first)
    computed = _summed(row[chosen], tokens[chosen], size)
    lost = np.searchsorted(serials, shares["serial"][shares["kind"] == PREEMPTED])
    return Split(
        prefill=prefill_time,
        decode=decode_time,
        memory=memory,
        spent=(
            Spent(float((worked * prompt_share).sum()), float(prompt_flops.sum()), float(prompt_bytes.sum()),
                  int((prompt_flops > 0).sum())),
            Spent(float((worked * (1 - prompt_share)).sum()), float(decode_flops.sum()), float(decode_bytes.sum()),
                  int((decode_flops > 0).sum())),
        ),
        serials=serials,
        prefill_s=_shared(prompt_by, prefill_time),
        decode_s=_shared(decode_by, decode_time),
        memory_s=_shared(in_use, memory),
        steps=np.bincount(row, minlength=size),
        first_step=first_step,
        last_step=last_step,
        prompt_step_began=began,
        answered=np.bincount(row[~chosen], minlength=size) > 0,
        computed=computed,
        preemptions=np.bincount(lost, minlength=size),
        pages_peak=in_use.max(axis=1, initial=0),
        pages_after=pages[:, count],
    )  # fmt: skip


def _summed(where: NDArray[Any], amounts: Floats, size: int) -> Floats:
    return np.bincount(where, amounts, size).astype(np.float64, copy=False)


def _shared(amounts: Floats, seconds: Floats) -> Floats:
    """Seconds by request: each step's, by the amounts (one row a request, one column a step)."""
    total = amounts.sum(axis=0)
    found: Floats = np.divide(amounts, total, out=np.zeros_like(amounts), where=total > 0) @ seconds
    return found


def _pages(
    shares: NDArray[Any], first: int, count: int, serials: NDArray[Any], held: Floats, block_size: int
) -> Floats:
    """Pages by request (rows) and step (columns), and in a last column after them: those its context takes, until it
    leaves or is preempted."""
    unsaid = -1.0
    pages = np.full((len(serials), count + 1), unsaid)
    pages[:, 0] = held
    row = np.searchsorted(serials, shares["serial"])
    column = shares["step"].astype(np.int64) - first
    gone = shares["kind"] >= PREEMPTED
    pages[row[gone], np.maximum(column[gone] + 1, 0)] = 0.0
    here = (shares["kind"] <= RECOMPUTE) & (column >= 0)
    pages[row[here], column[here]] = np.ceil(shares["context"][here] / block_size)
    said = np.where(pages == unsaid, 0, np.arange(count + 1))
    np.maximum.accumulate(said, axis=1, out=said)
    found: Floats = np.take_along_axis(pages, said, axis=1)
    return found
