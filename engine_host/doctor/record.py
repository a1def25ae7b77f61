"""Everything the doctor's rules read, as plain data; and the one file it is kept in, for reports of bugs and for tests.

The file is numpy's npz: the two arrays as they are, and the rest as JSON in the array `facts`.
"""

import io
import zipfile
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from engine_host.api.figures import Telemetry
from engine_host.api.records import RequestRecord
from engine_host.api.types import HistoryPoint, Snapshot
from engine_host.flight.layout import SHARE, STEP
from profiles.files import beside
from profiles.schema import Profile

VERSION = 1
"""Of the file; another one is refused."""


LATELY_S = 600.0
"""Requests that ended longer ago tell of a past that the operator may have mended already."""


class RecordError(Exception):
    """The file can't be read as a record; the message is a sentence that names it."""


class Named(msgspec.Struct, frozen=True):
    """A request of the shares: its id as the host gave it, and the tokens of its prompt, `None` where not known."""

    id: str
    prompt_tokens: int | None = None


class StalledClient(msgspec.Struct, frozen=True):
    """A client that has taken nothing of what was sent to it for so many seconds."""

    request: str
    seconds: float


class Processor(msgspec.Struct, frozen=True):
    """The host's processors: how many it may use, the load average of the last minute, and the share of time (0 to 1)
    that the hypervisor has given to others since it was asked before; `None` where the system doesn't say."""

    cores: int | None = None
    load: float | None = None
    steal: float | None = None


@dataclass(frozen=True, eq=False)
class Record:
    """What is known at one instant, `time` (Unix seconds).

    `offset` is Unix time less monotonic time: it makes Unix times of those in `steps`. `steps` are rows of
    `engine_host.flight.layout.STEP`, oldest first; `shares` rows of `SHARE`; `names` tells of the serials in these,
    where they are still known. `past` are the seconds before, `requests` those that ended lately, without prompts and
    replies. `shared_prefix` is how many tokens they begin with that one just before began with too, as the median.
    """

    time: float
    offset: float
    steps: NDArray[Any]
    shares: NDArray[Any]
    names: dict[int, Named]
    profile: Profile
    snapshot: Snapshot
    telemetry: Telemetry | None = None
    past: Sequence[HistoryPoint] = ()
    requests: Sequence[RequestRecord] = ()
    stalled: Sequence[StalledClient] = ()
    processor: Processor = field(default_factory=Processor)
    shared_prefix: int | None = None

    @property
    def lately(self) -> list[RequestRecord]:
        """The requests that ended within the last `LATELY_S` seconds."""
        return [each for each in self.requests if each.time + each.total_s >= self.time - LATELY_S]


class _Facts(msgspec.Struct, frozen=True):
    """All of a record but the arrays."""

    version: int
    time: float
    offset: float
    names: dict[int, Named]
    profile: dict[str, Any]
    snapshot: Snapshot
    telemetry: Telemetry | None
    past: list[HistoryPoint]
    requests: list[RequestRecord]
    stalled: list[StalledClient]
    processor: Processor
    shared_prefix: int | None


def dump(record: Record) -> bytes:
    """The file's content. A store's address stays out of it: it may hold a password."""
    profile = record.profile.model_dump(mode="json")
    profile["gateway"]["store"] = None
    facts = _Facts(
        version=VERSION,
        time=record.time,
        offset=record.offset,
        names=record.names,
        profile=profile,
        snapshot=record.snapshot,
        telemetry=record.telemetry,
        past=list(record.past),
        requests=list(record.requests),
        stalled=list(record.stalled),
        processor=record.processor,
        shared_prefix=record.shared_prefix,
    )
    encoded = np.frombuffer(msgspec.json.encode(facts), np.uint8)
    out = io.BytesIO()
    np.savez_compressed(out, steps=record.steps, shares=record.shares, facts=encoded)
    return out.getvalue()


def parse(content: bytes, name: str = "This") -> Record:
    """The record of a file's content; `name` is what its sentences call it. Raises `RecordError`."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as arrays:
            steps, shares, encoded = arrays["steps"], arrays["shares"], arrays["facts"].tobytes()
    except (ValueError, KeyError, OSError, EOFError, zipfile.BadZipFile) as error:
        raise RecordError(f"{name} is no record of the doctor's. llmconsole doctor --save writes one.") from error
    try:
        version = msgspec.json.decode(encoded)["version"]
        if version != VERSION or steps.dtype != STEP or shares.dtype != SHARE:
            raise RecordError(
                f"{name} is a record of version {version}, and this program reads version {VERSION} with the flight "
                "record of its own. Use the llmconsole that wrote it."
            )
        facts = msgspec.json.decode(encoded, type=_Facts)
        profile = Profile.model_validate(facts.profile)
    except (msgspec.MsgspecError, KeyError, TypeError, ValueError) as error:
        raise RecordError(f"{name} is a record that can't be read: {error}.") from error
    return Record(
        time=facts.time,
        offset=facts.offset,
        steps=steps,
        shares=shares,
        names=facts.names,
        profile=profile,
        snapshot=facts.snapshot,
        telemetry=facts.telemetry,
        past=facts.past,
        requests=facts.requests,
        stalled=facts.stalled,
        processor=facts.processor,
        shared_prefix=facts.shared_prefix,
    )


def save(record: Record, path: Path) -> None:
    """Write a record to `path`, whole or not at all. Raises `OSError`."""
    with beside(path) as new:
        new.write_bytes(dump(record))


def load(path: Path) -> Record:
    """Read a record. Raises `RecordError`."""
    try:
        content = path.read_bytes()
    except OSError as error:
        raise RecordError(f"{path} can't be read: {error.strerror}.") from error
    return parse(content, str(path))
