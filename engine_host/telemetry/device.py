"""Samples the device on a thread of its own, so that a driver that hangs stops nothing else."""

import os
import threading
import time
from collections.abc import Callable
from typing import Literal

import msgspec

from engine_host.api.types import Device, Reading
from engine_host.telemetry.cpu import Cpu, process_tree_memory
from engine_host.telemetry.nvml import Gpu, GpuUnavailable
from engine_host.telemetry.readings import each_reading, unknown

RETRY_S = 5.0
"""Seconds between two tries to open a GPU that can't be read."""

STALE_AFTER = 3
"""Readings older than this many intervals are marked stale."""

SILENT_AFTER_S = 10.0
"""Readings older than this many seconds are not shown any more."""

_GPU_NAME = "NVIDIA GPU"


class DeviceSampler:
    """Reads the device every `interval_s` seconds from a daemon thread; `reading` never blocks.

    kind: "gpu" or "cpu" for what the engine runs on; "auto" takes the CPU where the machine seems to have no NVIDIA
    GPU. Of several GPUs it is the first of CUDA_VISIBLE_DEVICES. clock: monotonic seconds.
    """

    def __init__(
        self,
        interval_s: float = 1.0,
        *,
        kind: Literal["auto", "gpu", "cpu"] = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = interval_s
        self._silent_after = max(SILENT_AFTER_S, STALE_AFTER * interval_s)
        self._kind = kind
        self._visible = os.environ.get("CUDA_VISIBLE_DEVICES")
        self._clock = clock
        self._stop = threading.Event()
        self._gpu: Gpu | None = None
        self._cpu: Cpu | None = None
        self._gpu_seen = kind == "gpu"
        self._failure: GpuUnavailable | None = None
        self._retry_at = clock()
        first = unknown("cpu" if kind == "cpu" else "gpu", "device", "not read yet", None)
        # One tuple, replaced whole: a reader on another thread never sees half of it.
        self._latest: tuple[Device, Reading | None, float] = (first, None, clock())

    def start(self) -> None:
        """Start sampling; a sampler is started once."""
        threading.Thread(target=self._run, name="device-sampler", daemon=True).start()

    def stop(self) -> None:
        """Tell the thread to end; doesn't wait for it, since the driver may be holding it."""
        self._stop.set()

    def reading(self) -> Device:
        """The latest readings. They turn stale, then unknown, when the device doesn't answer."""
        device, _, taken = self._latest
        age = self._clock() - taken
        if age > self._silent_after:
            who = "NVML" if device.kind == "gpu" else "The system"
            text = f"{who} is not answering: the last reading is {age:.0f} s old. Everything else runs on."
            why = f"{who} is not answering"
            return each_reading(device, lambda reading: _forget(reading, why), text)
        if age > STALE_AFTER * self._interval:
            return each_reading(device, _mark_stale, device.problem)
        return device

    def process_memory(self) -> Reading | None:
        """Memory of the host's and the engine's processes; `None` before the first reading and after a silence."""
        _, memory, taken = self._latest
        return memory if self._clock() - taken <= self._silent_after else None

    def _run(self) -> None:
        while True:
            self.sample()
            if self._stop.wait(self._interval):
                break
        if self._gpu is not None:
            self._gpu.close()

    def sample(self) -> None:
        """Read the device now, as the thread does at each interval. Blocks as long as the driver does."""
        device = self._read()
        self._latest = (device, process_tree_memory(), self._clock())

    def _read(self) -> Device:
        try:
            if self._kind != "cpu" and (device := self._read_gpu()) is not None:
                return device
            self._cpu = self._cpu or Cpu()
            return self._cpu.read(str(self._failure) if self._failure else None)
        except Exception as error:  # A driver or a kernel can answer anything; the thread must outlive it.
            return unknown(
                "gpu" if self._gpu_seen else "cpu", "device", "failed", f"Reading the device failed: {error}"
            )

    def _read_gpu(self) -> Device | None:
        """Readings of the GPU, or why there are none; `None` where the machine seems to have no GPU."""
        try:
            if self._gpu is None and self._clock() >= self._retry_at:
                self._gpu = Gpu(self._visible)
                self._gpu_seen = True
                self._failure = None
            if self._gpu is not None:
                return self._gpu.read()
        except GpuUnavailable as failure:
            if self._gpu is not None:
                self._gpu.close()
                self._gpu = None
            self._failure = failure
            self._retry_at = self._clock() + RETRY_S
            self._gpu_seen = self._gpu_seen or not failure.absent
        if self._failure is None or not self._gpu_seen:
            return None
        return unknown("gpu", _GPU_NAME, self._failure.why, f"{self._failure} Trying again every {RETRY_S:.0f} s.")


def _mark_stale(reading: Reading) -> Reading:
    return msgspec.structs.replace(reading, stale=reading.value is not None)


def _forget(reading: Reading, why: str) -> Reading:
    return msgspec.structs.replace(reading, value=None, why=why, stale=False)
