"""Who uses a GPU's memory, and how the memory and the fan are. All of it changes slowly and is read every 10 s."""

import contextlib
from typing import Any

import psutil

from engine_host.api.types import DeviceProcess, Reading
from engine_host.telemetry.nvml_library import Nvml
from engine_host.telemetry.readings import Slowly

EVERY_S = 10.0

UNKNOWN_PROCESS = "not visible from here"


class HealthMeter:
    """`gpu` is the whole GPU, `own` the slice where it is sliced; `of` is appended to the whole GPU's labels."""

    def __init__(self, nvml: Nvml, gpu: Any, own: Any, of: str, delay_s: float) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._own = own
        self._of = of
        self._slow = Slowly(EVERY_S, lambda: (self._read(), self._processes()), delay_s)

    def read(self, now: float) -> tuple[dict[str, Reading], tuple[DeviceProcess, ...]]:
        """ "ecc_corrected", "ecc_uncorrected", "remapped_rows" or "retired_pages", "fan" where there is one; and who
        holds memory, most first. `now` is monotonic."""
        return self._slow.get(now)

    def _read(self) -> dict[str, Reading]:
        calls = self._nvml.calls
        found = {
            "ecc_corrected": self._ecc("corrected", calls.NVML_MEMORY_ERROR_TYPE_CORRECTED),
            "ecc_uncorrected": self._ecc("uncorrected", calls.NVML_MEMORY_ERROR_TYPE_UNCORRECTED),
            **self._worn_memory(),
        }
        fan = self._nvml.reading(
            f"fan{self._of}", "fraction", "nvmlDeviceGetFanSpeed", lambda: calls.nvmlDeviceGetFanSpeed(self._gpu) / 100
        )
        # Most GPUs of servers are cooled by the machine's fans: no fan is nothing to mention.
        return found if fan.value is None else found | {"fan": fan}

    def _ecc(self, which: str, kind: int) -> Reading:
        calls = self._nvml.calls
        return self._nvml.reading(
            f"ECC errors {which}, since the driver was loaded{self._of}",
            "count",
            "nvmlDeviceGetTotalEccErrors(VOLATILE)",
            lambda: float(calls.nvmlDeviceGetTotalEccErrors(self._gpu, kind, calls.NVML_VOLATILE_ECC)),
        )

    def _worn_memory(self) -> dict[str, Reading]:
        """Rows replaced by spare ones (Ampere and later), else pages taken out of use."""
        calls = self._nvml.calls
        label, source = f"memory rows remapped{self._of}", "nvmlDeviceGetRemappedRows"
        try:
            corrected, uncorrected, pending, failed = calls.nvmlDeviceGetRemappedRows(self._gpu)
        except self._nvml.Error as error:
            why = self._nvml.why(error)
            if self._nvml.name(error) not in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
                return {"remapped_rows": Reading(label, "count", None, source, why)}
            return {"retired_pages": self._retired_pages()}
        text = "a remapping failed: the GPU needs replacing" if failed else ""
        if pending and not failed:
            text = "a remapping takes effect at the GPU's next reset"
        return {"remapped_rows": Reading(label, "count", float(corrected + uncorrected), source, text=text)}

    def _retired_pages(self) -> Reading:
        calls = self._nvml.calls
        causes = (
            calls.NVML_PAGE_RETIREMENT_CAUSE_MULTIPLE_SINGLE_BIT_ECC_ERRORS,
            calls.NVML_PAGE_RETIREMENT_CAUSE_DOUBLE_BIT_ECC_ERROR,
        )
        return self._nvml.reading(
            f"memory pages retired{self._of}",
            "count",
            "nvmlDeviceGetRetiredPages",
            lambda: float(sum(len(calls.nvmlDeviceGetRetiredPages(self._gpu, cause)) for cause in causes)),
        )

    def _processes(self) -> tuple[DeviceProcess, ...]:
        calls = self._nvml.calls
        held: dict[int, float | None] = {}
        for listing in (calls.nvmlDeviceGetComputeRunningProcesses, calls.nvmlDeviceGetGraphicsRunningProcesses):
            try:
                for process in listing(self._own):
                    held[process.pid] = None if process.usedGpuMemory is None else float(process.usedGpuMemory)
            except self._nvml.Error as error:
                self._nvml.why(error)  # A lost GPU is raised; one that lists no processes has none to show.
        found = [DeviceProcess(pid, _name(pid), memory) for pid, memory in held.items()]
        return tuple(sorted(found, key=lambda process: -(process.memory or 0.0)))


def _name(pid: int) -> str:
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).name()
    return UNKNOWN_PROCESS
