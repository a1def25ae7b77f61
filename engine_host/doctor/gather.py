"""Puts a record together from the parts of a running host."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from contextlib import closing, suppress
from dataclasses import replace
from statistics import median
from typing import Any

import msgspec
import numpy as np
import psutil

from engine_host.api.figures import Telemetry
from engine_host.api.flight import DECODE, LEFT, FlightReader, FlightVersionError
from engine_host.api.records import RequestRecord
from engine_host.api.types import HistoryPoint, Snapshot
from engine_host.doctor.record import Named, Processor, Record, StalledClient
from engine_host.flight.layout import SHARE, STEP
from profiles.schema import Profile

HISTORY_S = 120.0
"""Seconds of the past in a record: twice what a rule looks at."""

MAX_REQUESTS = 500
"""Requests in a record: the last so many to end."""


class Gatherer:
    """Asks the host's parts for what they know now. They live on its event loop, and so does this.

    `history` is asked with a Unix time for the seconds after it; `requests` are those that ended lately, oldest first;
    `stalled` the clients that take nothing now. The flight record is the one that the snapshot names.
    """

    def __init__(
        self,
        *,
        profile: Callable[[], Profile | None],
        snapshot: Callable[[], Snapshot],
        telemetry: Callable[[], Telemetry | None],
        history: Callable[[float], Sequence[HistoryPoint]],
        requests: Callable[[], Sequence[RequestRecord]],
        stalled: Callable[[], Sequence[StalledClient]],
        clock: Callable[[], float] = time.time,
        monotonic: Callable[[], float] = time.monotonic,
    ) -> None:
        self._profile = profile
        self._snapshot = snapshot
        self._telemetry = telemetry
        self._history = history
        self._requests = requests
        self._stalled = stalled
        self._clock = clock
        self._monotonic = monotonic
        self._times: Any = None

    async def gather(self) -> Record:
        """The record of now. Prompts and replies stay out of it; without an engine it has no steps."""
        now, snapshot = self._clock(), self._snapshot()
        record = Record(
            time=now,
            offset=now - self._monotonic(),
            steps=np.empty(0, STEP),
            shares=np.empty(0, SHARE),
            names={},
            profile=self._profile() or Profile(name=snapshot.profile or "none", description=""),
            snapshot=snapshot,
            telemetry=self._telemetry(),
            past=list(self._history(now - HISTORY_S)),
            requests=list(self._requests())[-MAX_REQUESTS:],
            stalled=list(self._stalled()),
            processor=self._processor(),
        )
        # With many requests running this takes tens of milliseconds, for which no stream should stand still.
        return await asyncio.to_thread(_completed, record)

    def _processor(self) -> Processor:
        before, self._times = self._times, psutil.cpu_times()
        steal = getattr(self._times, "steal", None)
        if steal is not None:
            took = sum(self._times) - (sum(before) if before is not None else 0.0)
            steal = (steal - (before.steal if before is not None else 0.0)) / took if took > 0 else None
        return Processor(len(os.sched_getaffinity(0)), os.getloadavg()[0], steal)


def _completed(record: Record) -> Record:
    """With the steps and shares of its flight record, and without what requests say."""
    said: dict[str, Any] = {
        "requests": [msgspec.structs.replace(each, prompt=None, reply=None) for each in record.requests],
        "shared_prefix": shared_prefix(record.requests),
    }
    for file in record.snapshot.flight[-1:]:
        # A mapping of its own: the host's may be closed meanwhile. The file is gone when the engine has just ended.
        with suppress(OSError, FlightVersionError), closing(FlightReader(file.path)) as reader:
            shares = reader.read_shares().rows
            return replace(record, steps=reader.read_steps().rows, shares=shares, names=_names(reader, shares), **said)
    return replace(record, **said)


def shared_prefix(requests: Sequence[RequestRecord]) -> int | None:
    """Tokens that a prompt begins with and one just before it too, as the median; `None` without two requests."""
    known = [each.shared_prefix for each in requests if each.shared_prefix is not None]
    return round(median(known)) if known else None


def _names(reader: FlightReader, shares: Any) -> dict[int, Named]:
    """The requests that were more than decoding: rules speak of no others."""
    told = np.unique(shares["serial"][~np.isin(shares["kind"], (DECODE, LEFT))])
    found = {}
    for serial in told.tolist():
        name = reader.request_of(serial)
        if name is not None:
            found[serial] = Named(name, reader.prompt_of(serial))
    return found
