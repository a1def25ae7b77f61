"""What applying a profile would do, as a screen shows it: the diff of the knobs and both memory plans."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from engine_host.api.types import KnobLine, PlanLine, ProfileChange
from engine_host.engine.process import device_kind
from engine_host.telemetry.device_reader import DeviceReader
from profiles.diff import diff, value_text
from profiles.fit import refusal
from profiles.memory import MemoryPlan, plan
from profiles.model_shape import ModelShape, PlanError
from profiles.schema import Device, Profile

Unit = Literal["bytes", "pages", "sequences", "tokens"]


def profile_change(
    running: Profile,
    built: Profile,
    new: Profile,
    model_folder: Path | None,
    new_model_folder: Path | None,
    device: Device,
    device_bytes: int | None,
) -> ProfileChange:
    """What applying `new` would do to an engine built with `built` whose live values are those of `running`.

    `new_model_folder` is given where the model changes too. `device_bytes` is one device's memory. Without a rebuild
    the memory stays as it is, so both plans are the same. There is no plan without a model (`model_folder` is `None`)
    and for one that isn't a folder on this machine. Reads files: call it in a thread. Never raises: a new model that
    can't be read is the reason for a refusal.
    """
    found = diff(running, new, built)
    model = new_model_folder if new_model_folder is not None else model_folder
    rebuild = found.rebuild or model != model_folder
    now = _plan(model_folder, built, device, device_bytes)
    planned, refused = now, None
    if rebuild:
        planned = _plan(model, new, device, device_bytes)
        refused = refusal(planned) if isinstance(planned, MemoryPlan) else _unreadable(model, planned)
    return ProfileChange(
        old=running.name,
        new=new.name,
        knobs=tuple(
            KnobLine(".".join(knob.path), value_text(knob.old), value_text(knob.new), knob.when, knob.unit, knob.why)
            for knob in found.knobs
        ),
        plan=_lines(now, planned, device_bytes, _ceilings(built, new if rebuild else built)),
        rebuild=rebuild,
        refused=refused,
    )


def local_device() -> tuple[Device, int | None]:
    """What an engine started here would run on, and that device's memory in bytes (of a container: its limit)."""
    kind = device_kind()
    reader = DeviceReader("cpu" if kind == "cpu" else "gpu", time.monotonic)
    total = reader.read()[0].memory_total.value
    reader.close()
    return kind, None if total is None else int(total)


def _plan(folder: Path | None, profile: Profile, device: Device, device_bytes: int | None) -> MemoryPlan | PlanError:
    if folder is None:
        return PlanError("There is no model yet.")
    try:
        return plan(ModelShape.read(folder), profile, device_bytes, device)
    except PlanError as error:
        return error


def _unreadable(folder: Path | None, error: PlanError) -> str | None:
    """A folder that is here has to be readable; a name on a hub says nothing yet."""
    return str(error) if folder is not None and folder.is_dir() else None


def _ceilings(built: Profile, next_built: Profile) -> tuple[PlanLine, ...]:
    """How far live knobs can be raised: what the engine is allocated for."""
    return (
        PlanLine("token budget, ceiling", "tokens", built.allocated_tokens, next_built.allocated_tokens),
        PlanLine("active requests, ceiling", "sequences", built.allocated_requests, next_built.allocated_requests),
    )


def _lines(
    old: MemoryPlan | PlanError,
    new: MemoryPlan | PlanError,
    device_bytes: int | None,
    ceilings: tuple[PlanLine, ...],
) -> tuple[PlanLine, ...]:
    plans = tuple(side if isinstance(side, MemoryPlan) else None for side in (old, new))
    if plans == (None, None):
        return ()
    kv_estimated = any(side.kv_estimated for side in plans if side)
    split = any(side.weights_estimated for side in plans if side)

    def line(label: str, unit: Unit, value: Callable[[MemoryPlan], float | None], estimated: bool = False) -> PlanLine:
        before, after = (value(side) if side is not None else None for side in plans)
        return PlanLine(label, unit, before, after, estimated)

    return (
        line("weights", "bytes", lambda side: side.weights_bytes, split),
        line("activations", "bytes", lambda side: side.activation_bytes, True),
        line("KV cache", "bytes", lambda side: None if side.kv_bytes is None else max(side.kv_bytes, 0), kv_estimated),
        line("total", "bytes", lambda side: side.total_bytes, True),
        PlanLine("device memory", "bytes", device_bytes, device_bytes),
        line("page size", "bytes", lambda side: side.page_bytes),
        line("KV pages", "pages", lambda side: side.pages, kv_estimated),
        line("context length", "tokens", lambda side: side.context),
        line("concurrent sequences at context", "sequences", lambda side: side.concurrency, kv_estimated),
        *ceilings,
    )
