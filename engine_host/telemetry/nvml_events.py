"""Xid errors: what the driver reports of a GPU when something goes wrong."""

import contextlib
import ctypes
from collections.abc import Callable, Iterable
from typing import Any

from engine_host.api.types import DeviceEvent
from engine_host.telemetry.nvml_library import Nvml

KEPT = 20
"""Events of a GPU that are kept; the oldest go first."""

MOST_A_ROUND = 20
"""Events taken in one round, so that a storm of them doesn't hold the sampler."""

# The meanings of the common ones in NVIDIA's "XID Errors" documentation (r555, 2024), in our words.
_MEANINGS = {
    8: "a kernel ran longer than the driver's limit and was stopped",
    13: "a kernel failed, as by an access out of bounds or an illegal instruction",
    31: "a process accessed GPU memory that isn't its own or isn't there",
    32: "a corrupted command reached the GPU, as over a bad PCIe link",
    38: "the driver's firmware failed",
    43: "a process did something illegal and its work was ended; the GPU is well",
    44: "a graphics fault while contexts were switched",
    45: "a process's work was removed, as when it ended or another error came before",
    48: "an ECC error in memory that can't be corrected",
    61: "an internal micro-controller stopped",
    62: "an internal micro-controller halted",
    63: "a memory page was retired, or a row remapped, for ECC errors",
    64: "retiring a memory page or remapping a row failed",
    68: "the video decoder failed",
    69: "an error in the graphics engine",
    74: "an NVLink error",
    79: "the GPU fell off the bus",
    92: "many ECC errors that were corrected",
    94: "an uncorrectable memory error, contained: only the process that met it is lost",
    95: "an uncorrectable memory error that wasn't contained: the GPU needs a reset",
    109: "switching between contexts timed out",
    119: "the GPU's system processor didn't answer: the GPU needs a reset",
    120: "the GPU's system processor failed: the GPU needs a reset",
    121: "an error on the link between GPU and CPU, corrected",
    140: "an ECC error that wasn't recovered",
    143: "starting the GPU failed",
    154: "the GPU asks for a reset or a reboot",
}


def xid_sentence(xid: int) -> str:
    """An Xid number as a sentence."""
    meaning = _MEANINGS.get(xid, "see NVIDIA's XID Errors documentation")
    return f"Xid {xid}: {meaning}."


class XidWatch:
    """Takes the events of all GPUs out of one event set, without waiting. `why` says why there are none to come."""

    def __init__(self, nvml: Nvml, wall: Callable[[], float]) -> None:
        self._nvml = nvml
        self._wall = wall
        self._why: dict[int, str | None] = {}
        self._set: Any = None
        with contextlib.suppress(nvml.Error):
            self._set = nvml.calls.nvmlEventSetCreate()

    def add(self, gpu: Any) -> None:
        """Watch a whole GPU too. Raises `GpuUnavailable` where it must be opened again."""
        why: str | None = "the driver gives no events"
        if self._set is not None:
            try:
                calls = self._nvml.calls
                calls.nvmlDeviceRegisterEvents(gpu, calls.nvmlEventTypeXidCriticalError, self._set)
                why = None
            except self._nvml.Error as error:
                why = self._nvml.why(error)
        self._why[_address(gpu)] = why

    def why(self, gpu: Any) -> str | None:
        """Why no events of the GPU come; `None` if they do."""
        return self._why.get(_address(gpu), "not watched")

    def take(self) -> list[tuple[int, DeviceEvent]]:
        """What came since the last call, each with the address of the GPU's handle (`owner`)."""
        found: list[tuple[int, DeviceEvent]] = []
        if not any(why is None for why in self._why.values()):
            return found
        with contextlib.suppress(self._nvml.Error):  # "Timeout" is how NVML says that there are no more.
            for _ in range(MOST_A_ROUND):
                event = self._nvml.calls.nvmlEventSetWait_v2(self._set, 0)
                found.append((_address(event.device), DeviceEvent(self._wall(), xid_sentence(int(event.eventData)))))
        return found

    def close(self) -> None:
        """Give the event set back."""
        if self._set is not None:
            with contextlib.suppress(self._nvml.Error):
                self._nvml.calls.nvmlEventSetFree(self._set)


def owner(gpu: Any) -> int:
    """What tells one whole GPU's events from another's."""
    return _address(gpu)


def with_events(kept: tuple[DeviceEvent, ...], more: Iterable[DeviceEvent]) -> tuple[DeviceEvent, ...]:
    """The last `KEPT` events."""
    return (*kept, *more)[-KEPT:]


def _address(handle: Any) -> int:
    return ctypes.cast(handle, ctypes.c_void_p).value or 0
