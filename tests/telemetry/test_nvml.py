"""GPU readings through the real NVML bindings, on a driver library that misbehaves as drivers do."""

from pathlib import Path
from typing import Any

import pytest

MIB = 1 << 20
LIBRARY_MISMATCH, NOT_SUPPORTED, LOST, NO_PERMISSION, UNKNOWN = 18, 3, 15, 4, 999


def test_a_healthy_gpu(gpu: Any) -> None:
    assert gpu.sample().utilization.why == "needs two readings"
    device = gpu.sample()
    assert (device.kind, device.name, device.problem) == ("gpu", "NVIDIA Fake", None)
    assert (device.utilization.label, device.utilization.value) == ("SM active", 0.71)
    assert device.utilization.source == "nvmlGpmMetricsGet(SM_UTIL)"
    assert (device.memory_used.value, device.memory_total.value) == (90_000 * MIB, 140_000 * MIB)
    assert (device.power.value, device.temperature.value) == (123.5, 62)


def test_handles_are_fetched_once(gpu: Any) -> None:
    for _ in range(20):
        gpu.sample()
    assert gpu.calls("nvmlDeviceGetPowerUsage") == 20
    assert gpu.calls("nvmlDeviceGetHandleByIndex_v2") == gpu.calls("nvmlInitWithFlags") == 1
    assert gpu.calls("nvmlGpmSampleAlloc") == 2


def test_without_gpm_the_processes_are_summed(gpu: Any) -> None:
    gpu.tell(gpm=0)
    gpu.sample()
    busy = gpu.sample().utilization
    assert (busy.label, busy.value) == ("SM busy (processes)", 0.6)
    gpu.tell(process_percent=80)
    assert gpu.sample().utilization.value == 1.0
    gpu.tell(process_percent=-1)
    assert gpu.sample().utilization.value == 0.0


def test_without_process_utilization_kernels_are_what_is_left(gpu: Any) -> None:
    gpu.tell(nvmlGpmQueryDeviceSupport=13, nvmlDeviceGetProcessUtilization=NOT_SUPPORTED)
    busy = gpu.sample().utilization
    assert (busy.label, busy.value, busy.source) == ("kernel-busy", 0.97, "nvmlDeviceGetUtilizationRates")


def test_a_gpm_that_may_not_be_sampled_is_passed_over(gpu: Any) -> None:
    gpu.tell(nvmlGpmSampleGet=NO_PERMISSION)
    assert gpu.sample().utilization.label == "SM busy (processes)"


@pytest.mark.parametrize("percent", [137, -1, float("nan"), 4.2e9])
def test_an_impossible_percentage_is_not_shown(gpu: Any, percent: float) -> None:
    gpu.sample()
    gpu.tell(sm_percent=percent)
    busy = gpu.sample().utilization
    assert busy.value is None
    assert "reported" in (busy.why or "")


def test_one_metric_may_fail_alone(gpu: Any) -> None:
    gpu.sample()
    gpu.tell(metric_return=NOT_SUPPORTED)
    device = gpu.sample()
    assert (device.utilization.value, device.utilization.why) == (None, "this GPU does not report it")
    assert device.problem is None


def test_what_is_not_supported_is_unknown_and_the_rest_is_read(gpu: Any) -> None:
    gpu.tell(
        nvmlDeviceGetMemoryInfo_v2=NOT_SUPPORTED,
        nvmlGpmQueryDeviceSupport=NOT_SUPPORTED,
        nvmlDeviceGetProcessUtilization=NOT_SUPPORTED,
        nvmlDeviceGetUtilizationRates=NOT_SUPPORTED,
    )
    device = gpu.sample()
    for reading in (device.memory_used, device.memory_total, device.utilization):
        assert (reading.value, reading.why) == (None, "this GPU does not report it")
    assert (device.power.value, device.temperature.value, device.problem) == (123.5, 62, None)


def test_a_missing_library_leaves_the_cpu_and_says_why(make_gpu: Any, nvml_library: Path) -> None:
    gpu = make_gpu(installed=False)
    gpu.sample()
    device = gpu.sample()
    assert (device.kind, device.utilization.label) == ("cpu", "CPU busy")
    assert device.utilization.value is not None
    assert device.problem.startswith("libnvidia-ml.so.1 was not found (NVML_ERROR_LIBRARY_NOT_FOUND): install")
    gpu.install(nvml_library)
    assert gpu.sample().kind == "cpu"
    gpu.advance(5)
    assert (gpu.sample().kind, gpu.sample().problem) == ("gpu", None)


def test_a_missing_library_is_the_gpus_problem_where_the_engine_wants_one(make_gpu: Any) -> None:
    device = make_gpu(installed=False, kind="gpu").sample()
    assert (device.kind, device.memory_used.value) == ("gpu", None)
    assert "was not found" in device.problem


def test_a_library_that_does_not_match_the_driver(gpu: Any) -> None:
    gpu.tell(nvmlInitWithFlags=LIBRARY_MISMATCH)
    device = gpu.sample()
    assert (device.kind, device.utilization.value) == ("gpu", None)
    assert device.memory_used.why == "NVML_ERROR_LIB_RM_VERSION_MISMATCH"
    assert "different versions" in device.problem
    gpu.tell(nvmlInitWithFlags=0)
    gpu.advance(5)
    assert gpu.sample().problem is None


def test_a_lost_gpu_is_named_and_found_again(gpu: Any) -> None:
    gpu.sample()
    gpu.tell(nvmlDeviceGetMemoryInfo_v2=LOST, nvmlDeviceGetHandleByIndex_v2=LOST)
    gpu.advance(3600)
    device = gpu.sample()
    assert (device.kind, device.memory_used.value, device.utilization.value) == ("gpu", None, None)
    assert "fell off the bus (NVML_ERROR_GPU_IS_LOST)" in device.problem
    gpu.advance(5)
    assert "fell off the bus" in gpu.sample().problem
    gpu.tell(nvmlDeviceGetMemoryInfo_v2=0, nvmlDeviceGetHandleByIndex_v2=0)
    assert gpu.sample().memory_used.value is None, "it is tried again every five seconds only"
    gpu.advance(5)
    gpu.sample()
    device = gpu.sample()
    assert (device.problem, device.utilization.value) == (None, 0.71)
    assert gpu.calls("nvmlInitWithFlags") == gpu.calls("nvmlShutdown") + 1 == 3


def test_a_gpu_that_answers_nothing_is_opened_again(gpu: Any) -> None:
    gpu.sample()
    broken = dict.fromkeys(
        ("nvmlDeviceGetMemoryInfo_v2", "nvmlDeviceGetPowerUsage", "nvmlDeviceGetTemperature", "nvmlGpmSampleGet"),
        UNKNOWN,
    )
    gpu.tell(**broken)
    assert gpu.sample().problem.startswith("NVML gives no reading of the GPU: NVML_ERROR_UNKNOWN.")
    gpu.tell(**dict.fromkeys(broken, 0))
    gpu.advance(5)
    assert gpu.sample().problem is None


def test_a_call_that_hangs_turns_readings_stale_then_unknown_and_back(gpu: Any) -> None:
    gpu.sample()
    gpu.hang("nvmlDeviceGetPowerUsage")
    gpu.start()
    with gpu.while_hanging("nvmlDeviceGetPowerUsage"):
        assert gpu.reading().memory_used.stale is False
        gpu.advance(4)
        stale = gpu.reading()
        assert (stale.memory_used.value, stale.memory_used.stale) == (90_000 * MIB, True)
        gpu.advance(26)
        silent = gpu.reading()
        assert (silent.memory_used.value, silent.memory_used.why) == (None, "NVML is not answering")
        assert silent.problem.startswith("NVML is not answering: the last reading is 30 s old.")
    with gpu.while_hanging("nvmlDeviceGetPowerUsage"):  # The next round hangs: the one before was finished.
        device = gpu.reading()
        assert (device.memory_used.value, device.memory_used.stale) == (90_000 * MIB, False)
        assert device.problem is None


def test_a_driver_that_hangs_at_once(gpu: Any) -> None:
    gpu.hang("nvmlInitWithFlags")
    gpu.start()
    with gpu.while_hanging("nvmlInitWithFlags"):
        assert gpu.reading().memory_used.why == "not read yet"
        gpu.advance(30)
        assert gpu.reading().problem.startswith("NVML is not answering")


@pytest.mark.parametrize("visible", ["MIG-1", "0", None])
def test_a_slice_shows_its_own_memory(make_gpu: Any, visible: str | None) -> None:
    gpu = make_gpu(visible_devices=visible)
    gpu.tell(mig=1, slice_slot=2)
    gpu.sample()
    device = gpu.sample()
    assert device.name == "NVIDIA Fake MIG 1g.18gb"
    assert (device.memory_used.value, device.memory_total.value) == (2_000 * MIB, 18_000 * MIB)
    assert (device.utilization.label, device.utilization.value) == ("SM active (slice)", 0.71)
    assert (device.power.label, device.power.value) == ("power of the whole GPU", 123.5)


def test_a_slice_without_gpm_has_no_utilization_but_its_memory(make_gpu: Any) -> None:
    gpu = make_gpu(visible_devices="MIG-1")
    gpu.tell(gpm=0)
    device = gpu.sample()
    assert (device.utilization.value, device.utilization.why) == (None, "this GPU does not report it")
    assert device.memory_used.value == 2_000 * MIB


def test_mig_mode_without_a_slice_is_said(gpu: Any) -> None:
    gpu.tell(mig=1, slice_slot=99)
    assert gpu.sample().problem.startswith("The GPU is in MIG mode but has no slice")


@pytest.mark.parametrize("visible", ["7", "GPU-unheard-of"])
def test_a_device_that_does_not_exist_is_named(make_gpu: Any, visible: str) -> None:
    assert f"names {visible}, which is no GPU" in make_gpu(visible_devices=f"{visible},0").sample().problem


@pytest.mark.parametrize("visible", ["", "-1"])
def test_hidden_gpus_leave_the_cpu(make_gpu: Any, visible: str) -> None:
    assert make_gpu(visible_devices=visible).sample().kind == "cpu"


def test_an_engine_on_the_cpu_never_asks_nvml(make_gpu: Any) -> None:
    gpu = make_gpu(kind="cpu")
    device = gpu.sample()
    assert (device.kind, device.problem) == ("cpu", None)
    assert gpu.calls("nvmlInitWithFlags") == 0
