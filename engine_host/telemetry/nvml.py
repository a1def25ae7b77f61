"""All visible GPUs through NVML: opened once, and opened again when they stop answering."""

import contextlib
import time
from collections.abc import Callable, Sequence

import msgspec

from engine_host.api.types import Device, DeviceEvent
from engine_host.telemetry.nvml_events import XidWatch
from engine_host.telemetry.nvml_gpu import NAME, Gpu, Past
from engine_host.telemetry.nvml_library import GpuUnavailable, Nvml
from engine_host.telemetry.nvml_visible import Wanted, wanted_devices
from engine_host.telemetry.readings import unknown

RETRY_S = 5.0
"""Seconds between two tries to open GPUs when none can be read."""

RETRY_BESIDE_S = 60.0
"""The same while others can be read: opening again interrupts their readings for a moment."""


class Gpus:
    """The visible GPUs, in the order of CUDA_VISIBLE_DEVICES (`visible`), or all in PCI order.

    Belongs to one thread. `pasts` is what another one has left: a GPU's energy and events go on. expected: there
    must be a GPU, whatever NVML says. clock: monotonic seconds; wall: Unix seconds.
    """

    def __init__(
        self,
        visible: str | None,
        clock: Callable[[], float],
        pasts: Sequence[Past] = (),
        expected: bool = False,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self._visible = visible
        self._clock = clock
        self._wall = wall
        self.pasts = tuple(pasts)
        self._nvml: Nvml | None = None
        self._watch: XidWatch | None = None
        self._gpus: list[Gpu | GpuUnavailable] = []
        self._retry_at = clock()
        self.failure: GpuUnavailable | None = None
        self.seen = expected or bool(pasts)

    def read(self) -> tuple[Device, ...]:
        """Every GPU's readings, or why it has none; nothing where the machine seems to have no GPU (`failure`)."""
        now = self._clock()
        if now >= self._retry_at and not self._all_well():
            self.close()
            self._open()
        if not self._gpus:
            return self._none()
        self._take_events()
        devices = tuple(self._read(place, now) for place in range(len(self._gpus)))
        if not self._any_well():
            self.failure = next(gpu for gpu in self._gpus if isinstance(gpu, GpuUnavailable))
            self.close()
            self._retry_at = self._clock() + RETRY_S
        return devices

    def close(self) -> None:
        """Leave NVML, so that opening again starts afresh. Never raises."""
        if self._nvml is None:
            return
        self._keep_pasts()
        for gpu in self._gpus:
            if isinstance(gpu, Gpu):
                gpu.close()
        if self._watch is not None:
            self._watch.close()
        with contextlib.suppress(self._nvml.Error):
            self._nvml.calls.nvmlShutdown()
        self._nvml = self._watch = None
        self._gpus = []

    def _all_well(self) -> bool:
        return bool(self._gpus) and all(isinstance(gpu, Gpu) for gpu in self._gpus)

    def _any_well(self) -> bool:
        return any(isinstance(gpu, Gpu) for gpu in self._gpus)

    def _open(self) -> None:
        self.failure = None
        try:
            self._open_all()
        except GpuUnavailable as failure:
            self.failure = failure
            self.seen = self.seen or not failure.absent
            self.close()
        self._retry_at = self._clock() + (RETRY_BESIDE_S if self._any_well() else RETRY_S)

    def _open_all(self) -> None:
        if self._visible is not None and self._visible.split(",")[0].strip() in ("", "-1"):
            raise GpuUnavailable("CUDA_VISIBLE_DEVICES hides every GPU.", "hidden", absent=True)
        nvml = Nvml()
        try:
            nvml.calls.nvmlInit()
        except nvml.Error as error:
            raise nvml.unavailable(error) from None
        self._nvml = nvml
        self._watch = XidWatch(nvml, self._wall)
        # Once known, GPUs are asked for by UUID: indices shift when one falls off the bus.
        if known := self._known():
            self._open_each(known)
        if not self._any_well():
            try:
                wanted = wanted_devices(nvml, self._visible)
            except nvml.Error as error:
                raise nvml.unavailable(error) from None
            self._open_each(wanted)
        self.seen = True

    def _open_each(self, wanted: Sequence[Wanted]) -> None:
        if len(self.pasts) != len(wanted):
            self.pasts = tuple(_stranger(entry) for entry in wanted)
        self._gpus = [self._open_one(entry, past) for entry, past in zip(wanted, self.pasts, strict=True)]
        self._keep_pasts()

    def _known(self) -> list[Wanted]:
        uuids: list[Wanted] = [past.uuid for past in self.pasts if past.uuid]
        return uuids if len(uuids) == len(self.pasts) else []

    def _open_one(self, wanted: Wanted, past: Past) -> Gpu | GpuUnavailable:
        assert self._nvml is not None
        assert self._watch is not None
        try:
            return Gpu(self._nvml, wanted, past, self._watch)
        except self._nvml.Error as error:
            return self._nvml.unavailable(error)
        except GpuUnavailable as failure:
            return failure

    def _read(self, place: int, now: float) -> Device:
        gpu = self._gpus[place]
        if isinstance(gpu, Gpu):
            try:
                device = gpu.read(now)
            except GpuUnavailable as failure:
                gpu.close()
                self._keep(place, gpu)
                self._gpus[place] = gpu = failure
                self._retry_at = now + RETRY_BESIDE_S
            else:
                self._keep(place, gpu)
                return device
        seconds = RETRY_BESIDE_S if self._any_well() else RETRY_S
        return _unread(self.pasts[place], gpu, seconds)

    def _none(self) -> tuple[Device, ...]:
        if self.failure is None or not self.seen:
            return ()
        return tuple(_unread(past, self.failure, RETRY_S) for past in self.pasts or (Past(),))

    def _take_events(self) -> None:
        if self._watch is None:
            return
        events: dict[int, list[DeviceEvent]] = {}
        for owner, event in self._watch.take():
            events.setdefault(owner, []).append(event)
        for gpu in self._gpus:
            if events and isinstance(gpu, Gpu) and gpu.owner in events:
                gpu.note(events[gpu.owner])

    def _keep_pasts(self) -> None:
        for place, gpu in enumerate(self._gpus):
            if isinstance(gpu, Gpu):
                self._keep(place, gpu)

    def _keep(self, place: int, gpu: Gpu) -> None:
        # Replaced whole: whoever holds the old tuple keeps it as it was.
        self.pasts = (*self.pasts[:place], gpu.past, *self.pasts[place + 1 :])


def _stranger(wanted: Wanted) -> Past:
    return Past(index=wanted) if isinstance(wanted, int) else Past(uuid=wanted)


def _unread(past: Past, failure: GpuUnavailable, retry_s: float) -> Device:
    problem = f"{failure} Trying again every {retry_s:.0f} s."
    device = unknown("gpu", past.name or NAME, failure.why, problem, past.index, past.uuid)
    return msgspec.structs.replace(device, events=past.events)
