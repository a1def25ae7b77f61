"""One GPU, or one MIG slice of it, read through NVML. Everything here may block: it runs on the sampler's thread."""

import contextlib
from collections.abc import Callable
from typing import Any

from engine_host.api.types import Device, Reading
from engine_host.telemetry.nvml_utilization import UtilizationMeter, choose_meter
from engine_host.telemetry.readings import Implausible, NotYet, Unit

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


class Gpu:
    """An opened GPU. Handles are fetched once and kept; `read` raises `GpuUnavailable` when it must be opened again."""

    def __init__(self, visible_devices: str | None) -> None:
        """Open the first device of `visible_devices` (as CUDA_VISIBLE_DEVICES: index or UUID), else the first GPU.

        Indices are NVML's, in PCI order. On a GPU in MIG mode it is the first slice, the one CUDA would take.
        """
        import pynvml

        self._nvml: Any = pynvml
        self._names = {
            value: name.removeprefix("NVML_ERROR_")
            for name, value in vars(pynvml).items()
            if name.startswith("NVML_ERROR_")
        }
        self._meter: UtilizationMeter | None = None
        self._no_meter = ""
        wanted = None if visible_devices is None else visible_devices.split(",")[0].strip()
        if wanted in ("", "-1"):
            raise GpuUnavailable("CUDA_VISIBLE_DEVICES hides every GPU.", "hidden", absent=True)
        try:
            pynvml.nvmlInit()
        except pynvml.NVMLError as error:
            raise self._unavailable(error) from None
        try:
            self._open(wanted)
        except (pynvml.NVMLError, GpuUnavailable) as error:
            self.close()
            raise (error if isinstance(error, GpuUnavailable) else self._unavailable(error)) from None

    def _open(self, wanted: str | None) -> None:
        nvml = self._nvml
        if nvml.nvmlDeviceGetCount() == 0:
            raise GpuUnavailable("The NVIDIA driver runs, but this machine has no NVIDIA GPU.", "no GPU", absent=True)
        try:
            if wanted is None or wanted.isdecimal():
                handle = nvml.nvmlDeviceGetHandleByIndex(int(wanted or 0))
            else:
                handle = nvml.nvmlDeviceGetHandleByUUID(wanted.encode())
        except nvml.NVMLError as error:
            if self._name(error) not in ("INVALID_ARGUMENT", "NOT_FOUND"):
                raise
            text = f"CUDA_VISIBLE_DEVICES names {wanted}, which is no GPU of this machine: see nvidia-smi -L."
            raise GpuUnavailable(text, "no such GPU") from None
        self._slice = self._mig_slice(handle)
        self._whole = handle if self._slice is None else nvml.nvmlDeviceGetDeviceHandleFromMigDeviceHandle(self._slice)
        self._device_name = str(nvml.nvmlDeviceGetName(self._whole if self._slice is None else self._slice))
        try:
            instance = None if self._slice is None else nvml.nvmlDeviceGetGpuInstanceId(self._slice)
            self._meter = choose_meter(nvml, self._whole, instance)
        except nvml.NVMLError as error:
            self._no_meter = self._why(error)

    def _mig_slice(self, handle: Any) -> Any | None:
        """The handle itself if it is a slice, the first slice of a GPU in MIG mode, `None` for a whole GPU."""
        nvml = self._nvml
        try:
            if nvml.nvmlDeviceIsMigDeviceHandle(handle):
                return handle
            if nvml.nvmlDeviceGetMigMode(handle)[0] == nvml.NVML_DEVICE_MIG_DISABLE:
                return None
            slots = nvml.nvmlDeviceGetMaxMigDeviceCount(handle)
        except nvml.NVMLError as error:
            if self._name(error) in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
                return None
            raise
        for slot in range(slots):
            # Slots are numbered up to the most the GPU can have; empty ones answer "not found".
            with contextlib.suppress(nvml.NVMLError_NotFound):
                return nvml.nvmlDeviceGetMigDeviceHandleByIndex(handle, slot)
        raise GpuUnavailable("The GPU is in MIG mode but has no slice: create one with nvidia-smi mig.", "no MIG slice")

    def read(self) -> Device:
        """Read everything once. A value that fails alone is unknown with its reason."""
        of = "" if self._slice is None else " of the whole GPU"
        used, total = self._memory()
        device = Device(
            kind="gpu",
            name=self._device_name,
            utilization=self._utilization(),
            memory_used=used,
            memory_total=total,
            power=self._reading(f"power{of}", "watts", "nvmlDeviceGetPowerUsage", self._watts),
            temperature=self._reading(f"temperature{of}", "celsius", "nvmlDeviceGetTemperature", self._celsius),
        )
        values = (device.memory_used, device.power, device.temperature)
        if device.utilization.value is None and all(reading.value is None for reading in values):
            why = device.memory_used.why or "no answer"
            raise GpuUnavailable(f"NVML gives no reading of the GPU: {why}.", why)
        return device

    def close(self) -> None:
        """Leave NVML, so that opening again starts afresh. Never raises."""
        with contextlib.suppress(self._nvml.NVMLError):
            if self._meter is not None:
                self._meter.close()
        with contextlib.suppress(self._nvml.NVMLError):
            self._nvml.nvmlShutdown()

    def _utilization(self) -> Reading:
        if self._meter is None:
            return Reading("utilization", "fraction", None, "none", self._no_meter)
        return self._reading(self._meter.label, "fraction", self._meter.source, self._meter.read)

    def _memory(self) -> tuple[Reading, Reading]:
        nvml = self._nvml
        handle = self._whole if self._slice is None else self._slice
        of = "" if self._slice is None else " (slice)"
        source = "nvmlDeviceGetMemoryInfo_v2"
        info: list[Any] = []

        def used() -> float:
            info.append(nvml.nvmlDeviceGetMemoryInfo(handle, nvml.nvmlMemory_v2))
            return float(info[0].used)

        first = self._reading(f"memory used{of}", "bytes", source, used)
        total = float(info[0].total) if info else None
        return first, Reading(f"memory total{of}", "bytes", total, source, first.why)

    def _watts(self) -> float:
        return float(self._nvml.nvmlDeviceGetPowerUsage(self._whole)) / 1000

    def _celsius(self) -> float:
        return float(self._nvml.nvmlDeviceGetTemperature(self._whole, self._nvml.NVML_TEMPERATURE_GPU))

    def _reading(self, label: str, unit: Unit, source: str, call: Callable[[], float]) -> Reading:
        try:
            return Reading(label, unit, call(), source)
        except NotYet:
            return Reading(label, unit, None, source, "needs two readings")
        except Implausible as error:
            return Reading(label, unit, None, source, str(error))
        except self._nvml.NVMLError as error:
            if self._name(error) in _GONE:
                raise self._unavailable(error) from None
            return Reading(label, unit, None, source, self._why(error))

    def _name(self, error: Any) -> str:
        return str(self._names.get(error.value, error.value))

    def _why(self, error: Any) -> str:
        name = self._name(error)
        return _WHY.get(name, f"NVML_ERROR_{name}")

    def _unavailable(self, error: Any) -> GpuUnavailable:
        name = self._name(error)
        what, remedy = _SENTENCES.get(name, (f"NVML failed, {error}", "see what nvidia-smi says."))
        absent = name in ("LIBRARY_NOT_FOUND", "DRIVER_NOT_LOADED")
        return GpuUnavailable(f"{what} (NVML_ERROR_{name}): {remedy}", f"NVML_ERROR_{name}", absent)
