"""NVML's calls and errors, in our terms: a value, or why there is none, or that the GPU must be opened again."""

from collections.abc import Callable
from typing import Any

from engine_host.api.types import Reading
from engine_host.telemetry.readings import TWO_READINGS, Implausible, NotYet, Unit

_SENTENCES = {
    "LIBRARY_NOT_FOUND": (
        "libnvidia-ml.so.1 was not found",
        "install the NVIDIA driver, or give the container access to the GPU.",
    ),
    "DRIVER_NOT_LOADED": ("The NVIDIA kernel driver is not loaded", "load it (modprobe nvidia), or reboot."),
    "LIB_RM_VERSION_MISMATCH": (
        "The NVIDIA library and the loaded kernel driver have different versions, as after an update",
        "reboot, or reload the driver.",
    ),
    "GPU_IS_LOST": ("The GPU fell off the bus", "look for Xid messages in dmesg, then reset the GPU or reboot."),
    "RESET_REQUIRED": ("The GPU needs a reset", "run nvidia-smi --gpu-reset when nothing uses it, or reboot."),
    "NO_PERMISSION": ("This user may not read the GPU", "check the permissions of /dev/nvidia*."),
    "NOT_FOUND": ("The GPU is not there any more", "look for Xid messages in dmesg, and at nvidia-smi -L."),
}
_WHY = {
    "NOT_SUPPORTED": "this GPU does not report it",
    "FUNCTION_NOT_FOUND": "the driver is too old to report it",
    "NO_PERMISSION": "not permitted to this user",
}
_GONE = (
    "UNINITIALIZED",
    "DRIVER_NOT_LOADED",
    "LIB_RM_VERSION_MISMATCH",
    "GPU_IS_LOST",
    "RESET_REQUIRED",
    "GPU_NOT_FOUND",
)


class GpuUnavailable(Exception):
    """The GPU can't be read now. The text is a sentence to show; `absent` if the machine seems to have none."""

    def __init__(self, sentence: str, why: str, absent: bool = False) -> None:
        super().__init__(sentence)
        self.why = why
        self.absent = absent


class Nvml:
    """The bindings, as `calls`, and what their errors mean."""

    def __init__(self) -> None:
        import pynvml

        self.calls: Any = pynvml
        self.Error: type[Exception] = pynvml.NVMLError
        self._names = {
            value: name.removeprefix("NVML_ERROR_")
            for name, value in vars(pynvml).items()
            if name.startswith("NVML_ERROR_")
        }

    def reading(self, label: str, unit: Unit, source: str, call: Callable[[], float]) -> Reading:
        """What `call` gives, or why it gives nothing. Raises `GpuUnavailable` where the GPU must be opened again."""
        try:
            return Reading(label, unit, call(), source)
        except NotYet:
            return Reading(label, unit, None, source, TWO_READINGS)
        except Implausible as error:
            return Reading(label, unit, None, source, str(error))
        except self.Error as error:
            return Reading(label, unit, None, source, self.why(error))

    def why(self, error: Any) -> str:
        """An error of one call in a few words. Raises `GpuUnavailable` where the GPU must be opened again."""
        name = self.name(error)
        if name in _GONE:
            raise self.unavailable(error) from None
        return _WHY.get(name, f"NVML_ERROR_{name}")

    def name(self, error: Any) -> str:
        """NVML's name of the error, without its prefix."""
        return str(self._names.get(error.value, error.value))

    def unavailable(self, error: Any) -> GpuUnavailable:
        """The error as a reason why there is no GPU to read."""
        name = self.name(error)
        what, remedy = _SENTENCES.get(name, (f"NVML failed, {error}", "see what nvidia-smi says."))
        absent = name in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED")
        return GpuUnavailable(f"{what} (NVML_ERROR_{name}): {remedy}", f"NVML_ERROR_{name}", absent)
