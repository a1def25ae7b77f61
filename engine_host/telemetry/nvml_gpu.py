"""One GPU, or one MIG slice of it, read through NVML. Everything here may block: it runs on the sampler's thread."""

import contextlib
from dataclasses import dataclass
from typing import Any

from engine_host.api.types import Device, DeviceEvent, Reading
from engine_host.telemetry.nvml_events import XidWatch, owner, with_events
from engine_host.telemetry.nvml_health import HealthMeter
from engine_host.telemetry.nvml_library import GpuUnavailable, Nvml
from engine_host.telemetry.nvml_links import LinkMeter
from engine_host.telemetry.nvml_power import NO_ENERGY, Energy, PowerMeter
from engine_host.telemetry.nvml_utilization import choose_meter, without_gpm
from engine_host.telemetry.nvml_visible import Wanted, handle_of

NAME = "NVIDIA GPU"
"""What a GPU is called before it has told its name."""


@dataclass(frozen=True)
class Past:
    """What stays of a GPU while it can't be read, and when it is opened again."""

    name: str = NAME
    uuid: str = ""
    index: int = 0
    energy: Energy = NO_ENERGY
    events: tuple[DeviceEvent, ...] = ()
    xids: int = 0


class Gpu:
    """An opened GPU: handles and what never changes are fetched once. Errors are `NVMLError` or `GpuUnavailable`."""

    def __init__(self, nvml: Nvml, wanted: Wanted, past: Past, watch: XidWatch) -> None:
        calls = nvml.calls
        self._nvml = nvml
        self._watch = watch
        self._whole, self._slice = handle_of(nvml, wanted)
        self._own = self._whole if self._slice is None else self._slice
        self._of = "" if self._slice is None else " of the whole GPU"
        self._name = str(calls.nvmlDeviceGetName(self._own))
        self._uuid, self._index = past.uuid, past.index
        with contextlib.suppress(nvml.Error):
            self._uuid = str(calls.nvmlDeviceGetUUID(self._own))
            self._index = int(calls.nvmlDeviceGetIndex(self._whole))
        self._events, self._xids = past.events, past.xids
        instance = None if self._slice is None else calls.nvmlDeviceGetGpuInstanceId(self._slice)
        watch.add(self._whole)
        delay = float(self._index % 5)
        self._power = PowerMeter(nvml, self._whole, self._of, past.energy)
        self._links = LinkMeter(nvml, self._whole, self._of, delay)
        self._health = HealthMeter(nvml, self._whole, self._own, self._of, delay)
        self._meter = choose_meter(nvml, self._whole, instance)

    @property
    def owner(self) -> int:
        """Whose events are this GPU's."""
        return owner(self._whole)

    @property
    def past(self) -> Past:
        """What to keep when this one is closed."""
        return Past(self._name, self._uuid, self._index, self._power.energy, self._events, self._xids)

    def note(self, events: list[DeviceEvent]) -> None:
        """Keep events of this GPU."""
        self._events = with_events(self._events, events)
        self._xids += len(events)

    def read(self, now: float) -> Device:
        """Read everything once, at monotonic `now`. A value that fails alone is unknown with its reason."""
        busy = self._meter.read()
        utilization = busy.pop("utilization")
        more = without_gpm() | busy
        used, total = self._memory()
        more |= self._power.read(now)
        power = more.pop("power")
        temperature = self._nvml.reading(f"temperature{self._of}", "celsius", "nvmlDeviceGetTemperature", self._celsius)
        if utilization.value is None and all(reading.value is None for reading in (used, power, temperature)):
            why = used.why or "no answer"
            raise GpuUnavailable(f"NVML gives no reading of the GPU: {why}.", why)
        more |= self._links.read(now, busy, 0.0 if self._power.idle else utilization.value)
        health, processes = self._health.read(now)
        unwatched = self._watch.why(self._whole)
        more["xid_events"] = Reading(
            f"Xid errors{self._of}, since the host started",
            "count",
            None if unwatched else float(self._xids),
            "nvmlEventSetWait_v2",
            unwatched,
        )
        return Device(
            kind="gpu",
            name=self._name,
            utilization=utilization,
            memory_used=used,
            memory_total=total,
            power=power,
            temperature=temperature,
            index=self._index,
            uuid=self._uuid,
            more=more | health,
            processes=processes,
            events=self._events,
        )

    def close(self) -> None:
        """Give back what NVML allocated. Never raises."""
        with contextlib.suppress(self._nvml.Error):
            self._meter.close()

    def _memory(self) -> tuple[Reading, Reading]:
        calls = self._nvml.calls
        of = "" if self._slice is None else " (slice)"
        source = "nvmlDeviceGetMemoryInfo_v2"
        info: list[Any] = []

        def used() -> float:
            info.append(calls.nvmlDeviceGetMemoryInfo(self._own, calls.nvmlMemory_v2))
            return float(info[0].used)

        first = self._nvml.reading(f"memory used{of}", "bytes", source, used)
        total = float(info[0].total) if info else None
        return first, Reading(f"memory total{of}", "bytes", total, source, first.why)

    def _celsius(self) -> float:
        return float(self._nvml.calls.nvmlDeviceGetTemperature(self._whole, self._nvml.calls.NVML_TEMPERATURE_GPU))
