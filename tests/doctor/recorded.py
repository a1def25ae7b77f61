"""The traces that were recorded (`tests.doctor.record_traces`), and what is changed in one by hand."""

from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import msgspec

from engine_host.api.figures import Finding
from engine_host.api.types import Device, Reading, Snapshot
from engine_host.doctor.record import Record, load
from engine_host.doctor.rules import diagnose

TRACES = Path(__file__).parent / "traces"


@cache
def trace(name: str) -> Record:
    """A record of a real engine on a CPU; "host-starved" is of vLLM's scheduler alone. In "hiccup", nothing is wrong
    but that the machine was busy with something else for half a second, by chance."""
    return load(TRACES / f"{name}.npz")


def found(record: Record) -> dict[str, Finding]:
    """What the rules find, by rule."""
    return {each.rule: each for each in diagnose(record)}


def with_knobs(record: Record, **knobs: Any) -> Record:
    """The same under another profile; `section__knob=value`."""
    values = record.profile.model_dump()
    for path, value in knobs.items():
        section, _, name = path.partition("__")
        values[section][name] = value
    return replace(record, profile=type(record.profile).model_validate(values))


def with_snapshot(record: Record, **fields: Any) -> Record:
    """The same with other fields of its snapshot."""
    snapshot: Snapshot = msgspec.structs.replace(record.snapshot, **fields)
    return replace(record, snapshot=snapshot)


def on_gpu(record: Record, busy: float = 0.9, **fields: Any) -> Record:
    """The same as if it had been on an H200: the device's readings are by hand."""
    h200 = Device(
        kind="gpu",
        name="NVIDIA H200",
        utilization=Reading("SM active", "fraction", busy, "by hand"),
        memory_used=Reading("memory used", "bytes", 9e10, "by hand"),
        memory_total=Reading("memory", "bytes", 1.5e11, "by hand"),
        power=Reading("power", "watts", 698.0, "by hand"),
        temperature=Reading("temperature", "celsius", 62.0, "by hand"),
    )
    device = msgspec.structs.replace(h200, **fields)
    telemetry = record.telemetry and msgspec.structs.replace(record.telemetry, devices=(device,))
    return with_snapshot(replace(record, telemetry=telemetry), device=device)
