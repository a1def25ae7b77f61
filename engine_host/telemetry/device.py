"""Samples the devices on a thread of its own, so that a driver that hangs stops nothing else."""

import threading
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

import psutil

from engine_host.api.types import Device, Reading
from engine_host.telemetry.cpu import process_tree_memory
from engine_host.telemetry.device_reader import DeviceReader, Kind
from engine_host.telemetry.nvml_gpu import Past
from engine_host.telemetry.nvml_power import watts_of
from engine_host.telemetry.readings import Slowly, each_reading, forget, mark_stale, unknown

STALE_AFTER = 3
"""Readings older than this many intervals are marked stale."""

SILENT_AFTER_S = 10.0
"""Readings older than this many seconds are not shown any more."""

GIVE_UP_AFTER_S = 60.0
"""A thread that a call has held for this many seconds is left to itself, and another one asks."""

MAX_STUCK = 3
"""Threads that may be left to themselves at once; the last one then waits for the driver, however long."""

PROCESSES_EVERY_S = 10.0
"""Seconds between two looks at the memory of the host's processes, which are many small reads."""

COST_SPAN = 60
"""The sampler's own cost is that of this many last rounds."""


@dataclass(frozen=True)
class _Round:
    """What one round found, replaced whole: a reader on another thread never sees half of it."""

    devices: tuple[Device, ...]
    memory: Reading | None
    taken: float
    pasts: tuple[Past, ...] = ()
    cost: float | None = None


class DeviceSampler:
    """Reads the devices every `interval_s` seconds from one daemon thread; what asks it never blocks.

    kind: as for `DeviceReader`. clock: monotonic seconds.
    """

    def __init__(
        self,
        interval_s: float = 1.0,
        *,
        kind: Kind = "auto",
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._interval = interval_s
        self._silent_after = max(SILENT_AFTER_S, STALE_AFTER * interval_s)
        self._kind = kind
        self._clock = clock
        self._stop = threading.Event()
        first = unknown("cpu" if kind == "cpu" else "gpu", "device", "not read yet", None)
        self._latest = _Round((first,), None, clock())
        self._reader = DeviceReader(kind, clock)
        self._process_memory = Slowly(PROCESSES_EVERY_S, _process_memory)
        self._spent: deque[tuple[float, float]] = deque(maxlen=COST_SPAN + 1)
        self._thread: threading.Thread | None = None
        self._begun = clock()
        self._stuck: list[threading.Thread] = []
        self._giving_up = threading.Lock()

    def start(self) -> None:
        """Start sampling; a sampler is started once."""
        self._begin()

    def stop(self) -> None:
        """Tell the thread to end; doesn't wait for it, since the driver may be holding it."""
        self._stop.set()

    def reading(self) -> Device:
        """The first device of `readings`."""
        return self.readings()[0]

    def readings(self) -> tuple[Device, ...]:
        """The latest readings of each device. They turn stale, then unknown, when the device doesn't answer."""
        latest = self._latest
        age = self._clock() - latest.taken
        if age > self._silent_after:
            self._give_up_on_the_stuck(latest)
            return tuple(_silent(device, age) for device in latest.devices)
        if age > STALE_AFTER * self._interval:
            return tuple(each_reading(device, mark_stale, device.problem) for device in latest.devices)
        return latest.devices

    def watts(self, devices: int | None = None) -> float | None:
        """The power that all devices draw together, or the first so many, as CUDA counts them.

        `None` if that of one is unknown, old or not its own (MIG).
        """
        drawn = [watts_of(device.power) for device in self.readings()[:devices]]
        return None if None in drawn else sum(watts for watts in drawn if watts is not None)

    def cost(self) -> Reading:
        """What sampling costs: the thread's CPU time over the time of its last rounds, as the share of one core."""
        why = None if self._latest.cost is not None else "needs two readings"
        return Reading("sampler, of a core", "fraction", self._latest.cost, "time.thread_time", why)

    def process_memory(self) -> Reading | None:
        """Memory of the host's and the engine's processes; `None` before the first reading and after a silence."""
        latest = self._latest
        return latest.memory if self._clock() - latest.taken <= self._silent_after else None

    def sample(self) -> None:
        """Read the devices now, as the thread does at each interval. Blocks as long as the driver does."""
        self._sample(self._reader)

    def _sample(self, reader: DeviceReader) -> None:
        devices = reader.read()
        memory = self._process_memory.get(self._clock())
        if reader is self._reader:  # Else this thread was given up, and another one's readings count.
            self._latest = _Round(devices, memory, self._clock(), reader.pasts, self._cost())

    def _cost(self) -> float | None:
        self._spent.append((time.monotonic(), time.thread_time()))
        (from_wall, from_cpu), (to_wall, to_cpu) = self._spent[0], self._spent[-1]
        return (to_cpu - from_cpu) / (to_wall - from_wall) if to_wall > from_wall else None

    def _begin(self) -> None:
        self._begun = self._clock()
        self._spent.clear()
        self._thread = threading.Thread(target=self._run, args=(self._reader,), name="device-sampler", daemon=True)
        self._thread.start()

    def _run(self, reader: DeviceReader) -> None:
        while reader is self._reader:
            self._sample(reader)
            if self._stop.wait(self._interval):
                break
        reader.close()

    def _give_up_on_the_stuck(self, latest: _Round) -> None:
        if self._thread is None or self._stop.is_set() or not self._giving_up.acquire(blocking=False):
            return
        try:
            self._stuck = [thread for thread in self._stuck if thread.is_alive()]
            held = self._clock() - max(latest.taken, self._begun)
            if held > GIVE_UP_AFTER_S and len(self._stuck) < MAX_STUCK:
                self._stuck.append(self._thread)
                self._reader = DeviceReader(self._kind, self._clock, latest.pasts)
                self._begin()
        finally:
            self._giving_up.release()


def _silent(device: Device, age: float) -> Device:
    who = "NVML" if device.kind == "gpu" else "The system"
    text = f"{who} is not answering: the last reading is {age:.0f} s old. Everything else runs on."
    return forget(device, f"{who} is not answering", text)


def _process_memory() -> Reading | None:
    try:
        return process_tree_memory()
    except (psutil.Error, OSError):  # As when the host has no file descriptors left: the thread must outlive it.
        return None
