"""Reads the devices of the engine, whatever they are. Belongs to one thread; every call may block."""

import os
from collections.abc import Callable, Sequence
from typing import Literal

from engine_host.api.types import Device
from engine_host.telemetry.cpu import Cpu
from engine_host.telemetry.nvml import Gpus
from engine_host.telemetry.nvml_gpu import Past
from engine_host.telemetry.readings import unknown

Kind = Literal["auto", "gpu", "cpu"]


class DeviceReader:
    """The GPUs of CUDA_VISIBLE_DEVICES; the CPU where the engine has none.

    kind: "gpu" or "cpu" for what the engine runs on; "auto" takes the CPU where the machine seems to have no NVIDIA
    GPU. pasts: what an earlier reader knew of the GPUs. clock: monotonic seconds.
    """

    def __init__(self, kind: Kind, clock: Callable[[], float], pasts: Sequence[Past] = ()) -> None:
        visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._gpus = None if kind == "cpu" else Gpus(visible, clock, pasts, expected=kind == "gpu")
        self._cpu: Cpu | None = None
        self._clock = clock

    @property
    def pasts(self) -> tuple[Past, ...]:
        """What the next reader is to know."""
        return self._gpus.pasts if self._gpus is not None else ()

    def read(self) -> tuple[Device, ...]:
        """At least one device, read now; never raises."""
        try:
            if self._gpus is not None and (devices := self._gpus.read()):
                return devices
            self._cpu = self._cpu or Cpu()
            failure = self._gpus.failure if self._gpus is not None else None
            return (self._cpu.read(self._clock(), str(failure) if failure else None),)
        except Exception as error:  # A driver or a kernel can answer anything; the thread must outlive it.
            kind: Literal["gpu", "cpu"] = "gpu" if self._gpus is not None and self._gpus.seen else "cpu"
            return (unknown(kind, "device", "failed", f"Reading the device failed: {error}"),)

    def close(self) -> None:
        """Leave NVML. Never raises."""
        if self._gpus is not None:
            self._gpus.close()
