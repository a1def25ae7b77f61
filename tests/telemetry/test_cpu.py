"""Memory of a machine without a GPU, with and without a container's limit."""

from pathlib import Path

import psutil
import pytest

from engine_host.telemetry.cpu import Cpu, memory, process_tree_memory

GIB = 1 << 30
V2 = ("memory.max", "memory.current", "inactive_file")
V1 = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")


def cgroup(folder: Path, names: tuple[str, str, str], limit: int | str, used: int, inactive: int) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in zip((*names[:2], "memory.stat"), (limit, used, f"anon 5\n{names[2]} {inactive}\n"), strict=True):
        (folder / name).write_text(f"{text}\n")


@pytest.fixture
def own(tmp_path: Path) -> Path:
    path = tmp_path / "self"
    path.write_text("0::/outer/inner\n")
    return path


def test_the_lowest_limit_above_us_counts(tmp_path: Path, own: Path) -> None:
    cgroup(tmp_path / "outer" / "inner", V2, "max", 1 * GIB, 0)
    cgroup(tmp_path / "outer", V2, 4 * GIB, 3 * GIB, 1 * GIB)
    cgroup(tmp_path, V2, 8 * GIB, 7 * GIB, 0)
    used, limit = memory(64 * GIB, tmp_path, own)
    assert (used.label, used.value) == ("container memory used", 2 * GIB)
    assert (limit.label, limit.value) == ("container memory limit", 4 * GIB)


def test_a_container_that_sees_its_own_cgroup_as_the_root(tmp_path: Path, own: Path) -> None:
    cgroup(tmp_path, V2, 4 * GIB, 1 * GIB, 0)
    assert memory(64 * GIB, tmp_path, own)[1].value == 4 * GIB


def test_version_one_of_cgroups(tmp_path: Path) -> None:
    own = tmp_path / "self"
    own.write_text("3:cpu,cpuacct:/x\n2:memory:/x\n")
    cgroup(tmp_path / "memory" / "x", V1, 4 * GIB, 3 * GIB, 1 * GIB)
    used, limit = memory(64 * GIB, tmp_path, own)
    assert (used.value, limit.value) == (2 * GIB, 4 * GIB)


def test_a_limit_above_the_ram_is_none(tmp_path: Path, own: Path) -> None:
    cgroup(tmp_path, V2, 128 * GIB, 1 * GIB, 0)
    used, total = memory(64 * GIB, tmp_path, own)
    assert (used.label, total.label, total.value) == ("system memory used", "system memory", 64 * GIB)


def test_without_cgroups_it_is_the_machines_memory(tmp_path: Path) -> None:
    assert memory(64 * GIB, tmp_path, tmp_path / "missing")[1].label == "system memory"


def test_busy_needs_two_readings_and_what_a_cpu_has_not_is_unknown() -> None:
    cpu = Cpu()
    assert cpu.read(0.0).utilization.why == "needs two readings"
    device = cpu.read(1.0, "a reason")
    assert device.utilization.label == "CPU busy"
    assert 0 <= (device.utilization.value or 0) <= 1
    for reading in (device.power, device.temperature, device.more["dram_bandwidth"]):
        assert (reading.value, reading.why) == (None, "not read for a CPU")
    assert device.problem == "a reason"


def test_every_core_is_read_and_their_mean_is_the_utilization() -> None:
    cpu = Cpu()
    assert cpu.read(0.0).cores == ()
    device = cpu.read(1.0)
    assert len(device.cores) == psutil.cpu_count()
    assert device.utilization.value == pytest.approx(sum(device.cores) / len(device.cores))
    assert (device.more["load"].label, device.more["load"].unit) == ("load average, 1 min", "count")


def test_the_process_tree_is_at_least_this_process() -> None:
    found = process_tree_memory()
    assert found.value is not None
    assert found.value >= psutil.Process().memory_info().rss / 2
