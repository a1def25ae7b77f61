"""The CPU and the memory, where the engine runs without a GPU."""

import contextlib
import platform
from collections.abc import Iterator
from pathlib import Path

import psutil

from engine_host.api.types import Device, Reading
from engine_host.telemetry.readings import TWO_READINGS, Slowly

_CGROUPS = Path("/sys/fs/cgroup")
_OWN_CGROUP = Path("/proc/self/cgroup")
_CPUINFO = Path("/proc/cpuinfo")
_NOT_READ = "not read for a CPU"

CLOCK_EVERY_S = 10.0
"""Reading the clock is one file for each core."""


class Cpu:
    """Busy share of each of the machine's cores, and the memory that engine and host can have."""

    def __init__(self) -> None:
        self._name = cpu_name()
        psutil.cpu_percent(percpu=True)
        self._fresh = True
        self._clock = Slowly(CLOCK_EVERY_S, _clock)

    def read(self, now: float, problem: str | None = None) -> Device:
        """Read everything once, at monotonic `now`; `problem` is passed on to the panel."""
        used, total = memory(psutil.virtual_memory().total)
        cores = tuple(min(percent / 100, 1.0) for percent in psutil.cpu_percent(percpu=True))
        fresh, self._fresh = self._fresh, False
        # A difference to moments ago is noise.
        cores = () if fresh else cores
        busy = sum(cores) / len(cores) if cores else None
        source = "psutil.cpu_percent"
        return Device(
            kind="cpu",
            name=self._name,
            utilization=Reading("CPU busy", "fraction", busy, source, None if cores else TWO_READINGS),
            memory_used=used,
            memory_total=total,
            power=Reading("power", "watts", None, "none", _NOT_READ),
            temperature=Reading("temperature", "celsius", None, "none", _NOT_READ),
            problem=problem,
            more={
                "dram_bandwidth": Reading("DRAM bandwidth used", "fraction", None, "none", _NOT_READ),
                "load": Reading("load average, 1 min", "count", psutil.getloadavg()[0], "psutil.getloadavg"),
                "clock_cpu": self._clock.get(now),
            },
            cores=cores,
        )


def cpu_name() -> str:
    """The machine's CPU, as its readings and its calibration are filed under."""
    return f"{_model_name()}, {psutil.cpu_count()} cores"


def _clock() -> Reading:
    label, source = "CPU clock", f"psutil.cpu_freq, every {CLOCK_EVERY_S:.0f} s"
    with contextlib.suppress(OSError, NotImplementedError):
        if (frequency := psutil.cpu_freq()) is not None and frequency.current > 0:
            most = f"of at most {frequency.max:.0f} MHz" if frequency.max > 0 else ""
            return Reading(label, "hertz", frequency.current * 1e6, source, text=most)
    return Reading(label, "hertz", None, source, "this machine does not report it")


def memory(ram: int, cgroups: Path = _CGROUPS, own: Path = _OWN_CGROUP) -> tuple[Reading, Reading]:
    """Used and total bytes: the container's where its limit is below the machine's `ram`, else the machine's."""
    limits = [(limit, used) for limit, used in _limits(cgroups, own) if limit < ram]
    if limits:
        limit, used = min(limits)
        return (
            Reading("container memory used", "bytes", float(used), "cgroup memory.current less inactive_file"),
            Reading("container memory limit", "bytes", float(limit), "cgroup memory.max"),
        )
    machine = psutil.virtual_memory()
    return (
        Reading("system memory used", "bytes", float(ram - machine.available), "psutil.virtual_memory"),
        Reading("system memory", "bytes", float(ram), "psutil.virtual_memory"),
    )


def process_tree_memory() -> Reading:
    """Resident memory of this process and its descendants. Pages they share count once for each."""
    host = psutil.Process()
    resident = host.memory_info().rss
    for process in host.children(recursive=True):
        with contextlib.suppress(psutil.Error):  # It ended, or belongs to another user.
            resident += process.memory_info().rss
    return Reading("resident memory of host and engine", "bytes", float(resident), "psutil rss, summed")


def _limits(cgroups: Path, own: Path) -> Iterator[tuple[int, int]]:
    """Limit and use in bytes of our cgroup and of each one above it that has a limit (version 2, then version 1)."""
    with contextlib.suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                yield from _walk(cgroups, path, "memory.max", "memory.current", "inactive_file")
            elif "memory" in controllers.split(","):
                names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
                yield from _walk(cgroups / "memory", path, *names)


def _walk(root: Path, path: str, limit: str, usage: str, inactive: str) -> Iterator[tuple[int, int]]:
    # In a container the path may be the host's and missing here: the root of the mount is then our own.
    below = root / path.lstrip("/")
    for folder in (below, *below.parents):
        with contextlib.suppress(OSError, ValueError):  # "max" is no number and no limit.
            bound = int((folder / limit).read_text())
            stat = dict(line.split() for line in (folder / "memory.stat").read_text().splitlines() if line)
            yield bound, max(int((folder / usage).read_text()) - int(stat.get(inactive, 0)), 0)
        if folder == root:
            return


def _model_name() -> str:
    with contextlib.suppress(OSError):
        for line in _CPUINFO.read_text().splitlines():
            if line.startswith("model name"):
                return line.split(":", 1)[1].strip()
    return platform.machine()
