"""Which GPUs, or MIG slices of them, the engine sees: what CUDA_VISIBLE_DEVICES means, asked of NVML."""

import contextlib
from collections.abc import Sequence
from typing import Any

from engine_host.telemetry.nvml_library import GpuUnavailable, Nvml

Wanted = str | int
"""An NVML index, or a UUID or the beginning of one."""


def wanted_devices(nvml: Nvml, visible: str | None) -> Sequence[Wanted]:
    """The entries of `visible` (as CUDA_VISIBLE_DEVICES), or all GPUs where it is `None`. NVML must be initialised.

    Indices are NVML's, in PCI order. As CUDA does, an entry of -1 and one that names no GPU end the list; if that is
    the first one, it is `GpuUnavailable`.
    """
    count = nvml.calls.nvmlDeviceGetCount()
    if count == 0:
        raise GpuUnavailable("The NVIDIA driver runs, but this machine has no NVIDIA GPU.", "no GPU", absent=True)
    if visible is None:
        return range(count)
    wanted: list[Wanted] = []
    for entry in (part.strip() for part in visible.split(",")):
        if entry.isdecimal() and int(entry) < count:
            wanted.append(int(entry))
        elif entry.isdecimal() or entry in ("", "-1") or not (uuid := _full_uuid(nvml, entry, count)):
            if not wanted:
                text = f"CUDA_VISIBLE_DEVICES names {entry}, which is no GPU of this machine: see nvidia-smi -L."
                raise GpuUnavailable(text, "no such GPU")
            break
        else:
            wanted.append(uuid)
    return wanted


def _full_uuid(nvml: Nvml, entry: str, count: int) -> str | None:
    with contextlib.suppress(nvml.Error):
        nvml.calls.nvmlDeviceGetHandleByUUID(entry.encode())
        return entry
    # CUDA takes the beginning of a GPU's UUID, if no other begins so.
    found = []
    for index in range(count):
        with contextlib.suppress(nvml.Error):
            uuid = str(nvml.calls.nvmlDeviceGetUUID(nvml.calls.nvmlDeviceGetHandleByIndex(index)))
            if uuid.startswith(entry):
                found.append(uuid)
    return found[0] if len(found) == 1 else None


def handle_of(nvml: Nvml, wanted: Wanted) -> tuple[Any, Any | None]:
    """The handles of the whole GPU and of its slice, `None` if it isn't sliced. Raises `NVMLError`, `GpuUnavailable`.

    On a GPU in MIG mode it is the first slice, the one CUDA would take.
    """
    calls = nvml.calls
    if isinstance(wanted, int):
        handle = calls.nvmlDeviceGetHandleByIndex(wanted)
    else:
        handle = calls.nvmlDeviceGetHandleByUUID(wanted.encode())
    piece = _mig_slice(nvml, handle)
    return (handle if piece is None else calls.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(piece)), piece


def _mig_slice(nvml: Nvml, handle: Any) -> Any | None:
    """The handle itself if it is a slice, the first slice of a GPU in MIG mode, `None` for a whole GPU."""
    calls = nvml.calls
    try:
        if calls.nvmlDeviceIsMigDeviceHandle(handle):
            return handle
        if calls.nvmlDeviceGetMigMode(handle)[0] == calls.NVML_DEVICE_MIG_DISABLE:
            return None
        slots = calls.nvmlDeviceGetMaxMigDeviceCount(handle)
    except nvml.Error as error:
        if nvml.name(error) in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
            return None
        raise
    for slot in range(slots):
        # Slots are numbered up to the most the GPU can have; empty ones answer "not found".
        with contextlib.suppress(calls.NVMLError_NotFound):
            return calls.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
    raise GpuUnavailable("The GPU is in MIG mode but has no slice: create one with nvidia-smi mig.", "no MIG slice")
