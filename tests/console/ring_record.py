"""A flight record with two hundred steps of three requests: a long step, a preemption, and one nobody can name."""

import time
from pathlib import Path

from stub_host import snapshot

from engine_host.api.flight import DECODE, PREEMPTED, PREFILL
from engine_host.api.types import FlightFile, Snapshot
from engine_host.flight.writer import FlightWriter

LONG_STEPS = (120, 180)
PREEMPTING = 150
CHAT, BATCH, FORGOTTEN = 1, 2, 3


def write_ring(path: Path, steps: int = 200, now: float | None = None) -> FlightWriter:
    """One step every 0.1 s up to `now` (monotonic seconds). The chat decodes in all of them; the batch request has its
    prompt computed in the long ones, and is preempted in one."""
    writer = FlightWriter(path, engine_id=0, blocks=64, block_size=32, page_bytes=None)
    writer.write_name(CHAT, "chatcmpl-7f3a91c0-0123abcd", 412)
    writer.write_name(BATCH, "cmpl-[b44e1b7d2-0123abcd", 4_096)
    began = (time.monotonic() if now is None else now) - 0.1 * steps
    for number in range(1, steps + 1):
        long = number in LONG_STEPS
        preempted = int(number == PREEMPTING)
        took = (0.0004, 0.412 if long else 0.029, 0.0006)
        writer.write_shares(number, [CHAT], [DECODE], [1], [412 + number])
        if long:
            writer.write_shares(number, [BATCH], [PREFILL], [2_048], [2_048])
        if preempted:
            writer.write_shares(number, [BATCH, FORGOTTEN], [PREEMPTED, DECODE], [0, 1], [2_048, 9])
        requests = (2, 1, preempted, 0)
        writer.write_step(began + 0.1 * number, took, (2_048 * long, 1), requests, 2_048, 40, 0)
    return writer


def serving(path: Path, now: float | None = None) -> Snapshot:
    """A host whose engine writes such a record."""
    write_ring(path, now=now)
    return snapshot(flight=(FlightFile(0, str(path)),))
