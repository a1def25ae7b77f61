"""Several GPUs, and everything that is read of each beyond the five values of the overview."""

import os
from typing import Any

import psutil
import pytest

from engine_host.telemetry.nvml_power import throttle_words

MIB = 1 << 20
NOT_SUPPORTED, NOT_FOUND_IN_DRIVER, LOST = 3, 13, 15


def more(device: Any, name: str) -> tuple[str, float | None]:
    reading = device.more[name]
    return reading.label, reading.value


def test_what_gpm_measures_comes_out_of_one_pair_of_samples(gpu: Any) -> None:
    assert gpu.sample().more["tensor_active"].why == "needs two readings"
    device = gpu.sample()
    assert more(device, "sm_occupancy") == ("SM occupancy", 0.33)
    assert more(device, "tensor_active") == ("tensor active", 0.25)
    assert more(device, "dram_bandwidth") == ("DRAM bandwidth used", 0.64)
    assert more(device, "pcie_tx") == ("PCIe sent", 7 * MIB)
    assert more(device, "pcie_rx") == ("PCIe received", 9 * MIB)
    assert more(device, "nvlink_rx") == ("NVLink received", 500 * MIB)
    assert device.more["nvlink_tx"].source == "nvmlGpmMetricsGet(NVLINK_TOTAL_TX_PER_SEC)"
    assert gpu.calls("nvmlGpmMetricsGet") == 1
    assert gpu.calls("nvmlDeviceGetPcieThroughput") == 0


def test_without_gpm_its_readings_say_what_they_need(gpu: Any) -> None:
    gpu.tell(gpm=0)
    for name in ("sm_occupancy", "tensor_active", "dram_bandwidth"):
        assert gpu.sample().more[name].why == "needs GPM: a Hopper or newer GPU"


def test_without_gpm_pcie_is_asked_seldom_since_the_question_takes_long(gpu: Any) -> None:
    gpu.tell(gpm=0)
    device = gpu.sample()
    assert (more(device, "pcie_rx"), more(device, "pcie_tx")) == (("PCIe received", 3e6), ("PCIe sent", 2e6))
    gpu.advance(4)
    assert gpu.sample().more["pcie_rx"].value == 3e6
    assert gpu.calls("nvmlDeviceGetPcieThroughput") == 2
    gpu.advance(1)
    gpu.sample()
    assert gpu.calls("nvmlDeviceGetPcieThroughput") == 4


def test_nvlink_without_gpm_is_the_difference_of_counters(gpu: Any) -> None:
    gpu.tell(gpm=0, received_kib=1000, sent_kib=500)
    assert gpu.sample().more["nvlink_rx"].why == "needs two readings"
    gpu.tell(received_kib=3000, sent_kib=600)
    gpu.advance(2)
    device = gpu.sample()
    assert more(device, "nvlink_rx") == ("NVLink received", 1000 * 1024)
    assert more(device, "nvlink_tx") == ("NVLink sent", 50 * 1024)
    gpu.tell(received_kib=0)
    gpu.advance(1)
    assert gpu.sample().more["nvlink_rx"].why == "the counters went back"


@pytest.mark.parametrize(
    ("told", "links", "why"),
    [
        ({"nvlinks": 0}, None, "this GPU does not report it"),
        ({"nvlinks": 4, "nvlinks_down": 4}, 0, "no NVLink is active"),
    ],
)
def test_a_gpu_without_nvlink_has_no_rate(gpu: Any, told: dict[str, float], links: float | None, why: str) -> None:
    gpu.tell(gpm=0, **told)
    device = gpu.sample()
    assert device.more["nvlink_links"].value == links
    assert (device.more["nvlink_tx"].value, device.more["nvlink_tx"].why) == (None, why)


def test_links_that_are_down_are_not_counted(gpu: Any) -> None:
    gpu.tell(nvlinks_down=1)
    assert more(gpu.sample(), "nvlink_links") == ("NVLinks active", 17)


def test_energy_is_what_the_chip_counted_since_the_first_reading(gpu: Any) -> None:
    assert more(gpu.sample(), "energy") == ("energy", 0)
    gpu.tell(millijoules=5e9 + 250_000)
    assert gpu.sample().more["energy"].value == 250
    gpu.tell(millijoules=40_000)
    assert gpu.sample().more["energy"].value == 290, "the driver was loaded anew and counts from 0"


def test_energy_without_a_counter_is_integrated_power_and_says_so(gpu: Any) -> None:
    gpu.tell(nvmlDeviceGetTotalEnergyConsumption=NOT_SUPPORTED, milliwatts=100_000)
    assert more(gpu.sample(), "energy") == ("energy (integrated power)", 0)
    gpu.tell(milliwatts=300_000)
    gpu.advance(2)
    device = gpu.sample()
    assert (device.more["energy"].value, device.more["energy"].source) == (400, "nvmlDeviceGetPowerUsage")
    gpu.advance(600)
    assert gpu.sample().more["energy"].value == 400, "nobody knows what was drawn in ten minutes of silence"


def test_energy_goes_on_when_the_gpu_is_opened_again(gpu: Any) -> None:
    gpu.sample()
    gpu.tell(millijoules=5e9 + 100_000, nvmlDeviceGetMemoryInfo_v2=LOST)
    gpu.sample()
    gpu.tell(millijoules=5e9 + 500_000, nvmlDeviceGetMemoryInfo_v2=0)
    gpu.advance(5)
    assert gpu.sample().more["energy"].value == 500


def test_clocks_and_limit(gpu: Any) -> None:
    device = gpu.sample()
    assert more(device, "clock_sm") == ("SM clock", 1.755e9)
    assert device.more["clock_sm"].text == "of at most 1980 MHz"
    assert more(device, "clock_memory") == ("memory clock", 2.619e9)
    assert more(device, "power_limit") == ("power limit", 700)
    for _ in range(5):
        gpu.sample()
    assert gpu.calls("nvmlDeviceGetMaxClockInfo") == 2
    assert gpu.calls("nvmlDeviceGetEnforcedPowerLimit") == 1


@pytest.mark.parametrize(
    ("mask", "held", "words"),
    [
        (0x0, False, "no"),
        (0x1, False, "idle"),
        (0x2, False, "set by the application clocks"),
        (0x4, True, "power limit reached"),
        (0x8, True, "hardware slowdown"),
        (0x48, True, "too hot (hardware slowdown)"),
        (0x24, True, "power limit reached, too hot (software slowdown)"),
        (0x88, True, "power brake from outside"),
        (0x400, False, "reason 0x400 of NVML"),
    ],
)
def test_why_clocks_are_low_is_said_in_words(mask: int, held: bool, words: str) -> None:
    assert throttle_words(mask) == (held, words)


def test_clocks_that_are_held_down_are_a_problem(gpu: Any) -> None:
    assert gpu.sample().more["throttle"].value == 0
    gpu.tell(reasons=0x4)
    throttle = gpu.sample().more["throttle"]
    assert (throttle.label, throttle.unit, throttle.value) == ("clocks held down", "words", 1)
    assert throttle.text == "power limit reached"


def test_an_older_driver_knows_the_reasons_by_another_name(gpu: Any) -> None:
    gpu.tell(nvmlDeviceGetCurrentClocksEventReasons=NOT_FOUND_IN_DRIVER, reasons=4)
    throttle = gpu.sample().more["throttle"]
    assert (throttle.value, throttle.source) == (1, "nvmlDeviceGetCurrentClocksThrottleReasons")


def test_a_slow_link_counts_only_while_the_gpu_works(gpu: Any) -> None:
    gpu.tell(generation=1, reasons=1)
    gpu.sample()
    gpu.sample()
    idle = gpu.sample().more["pcie_link"]
    assert (idle.value, idle.text) == (0, "Gen 1 x16 of Gen 5 x16, as links do at idle")
    gpu.tell(reasons=0)
    assert gpu.sample().more["pcie_link"].value == 0, "it may have been about to speed up"
    slow = gpu.sample().more["pcie_link"]
    assert (slow.value, slow.text) == (1, "Gen 1 x16 of Gen 5 x16")
    gpu.tell(generation=5)
    assert (gpu.sample().more["pcie_link"].value, gpu.sample().more["pcie_link"].text) == (0, "Gen 5 x16")


def test_errors_of_the_memory(gpu: Any) -> None:
    device = gpu.sample()
    assert more(device, "ecc_corrected") == ("ECC errors corrected, since the driver was loaded", 4)
    assert device.more["ecc_uncorrected"].value == 1
    assert more(device, "remapped_rows") == ("memory rows remapped", 3)
    gpu.tell(remap_pending=1)
    gpu.advance(10)
    assert "next reset" in gpu.sample().more["remapped_rows"].text
    gpu.tell(remap_failed=1)
    gpu.advance(10)
    assert "needs replacing" in gpu.sample().more["remapped_rows"].text


def test_older_chips_retire_pages_and_others_have_no_fan(gpu: Any) -> None:
    gpu.tell(nvmlDeviceGetRemappedRows=NOT_SUPPORTED, nvmlDeviceGetFanSpeed=NOT_SUPPORTED)
    device = gpu.sample()
    assert more(device, "retired_pages") == ("memory pages retired", 3)
    assert not {"remapped_rows", "fan"} & set(device.more)


def test_processes_that_hold_memory_are_named(gpu: Any) -> None:
    gpu.tell(pid=os.getpid())
    (process,) = gpu.sample().processes
    assert (process.pid, process.memory) == (os.getpid(), 1500 * MIB)
    assert process.name == psutil.Process().name()
    gpu.tell(pid=2**22 + 5, secret=1)
    assert gpu.sample().processes[0].pid == os.getpid(), "who holds memory is looked up every ten seconds"
    gpu.advance(10)
    (process,) = gpu.sample().processes
    assert (process.name, process.memory) == ("not visible from here", None)


def test_an_xid_error_is_said_in_a_sentence_and_stays(gpu: Any) -> None:
    assert gpu.sample().more["xid_events"].value == 0
    gpu.tell(xid=31, xids=1)
    device = gpu.sample()
    assert [event.text for event in device.events] == [
        "Xid 31: a process accessed GPU memory that isn't its own or isn't there."
    ]
    gpu.tell(xid=999, xids=30)
    assert device.events[0].time > 1.7e9
    gpu.sample()
    device = gpu.sample()
    assert (len(device.events), device.more["xid_events"].value) == (20, 30)
    assert device.events[-1].text == "Xid 999: see NVIDIA's XID Errors documentation."


def test_a_lost_gpu_shows_the_xid_that_says_so(gpu: Any) -> None:
    gpu.sample()
    gpu.tell(nvmlDeviceGetMemoryInfo_v2=LOST, xids=1)
    device = gpu.sample()
    assert (device.name, device.uuid, device.memory_used.value) == ("NVIDIA Fake", "GPU-1-x", None)
    assert device.events[0].text == "Xid 79: the GPU fell off the bus."
    assert gpu.sample().events == device.events


def test_a_driver_without_events_is_no_reason_to_count_none(gpu: Any) -> None:
    gpu.tell(nvmlDeviceRegisterEvents=NOT_SUPPORTED)
    xids = gpu.sample().more["xid_events"]
    assert (xids.value, xids.why) == (None, "this GPU does not report it")
    assert gpu.calls("nvmlEventSetWait_v2") == 0


def test_all_visible_gpus_are_read_each_with_its_own_values(gpu: Any) -> None:
    gpu.tell(count=3, **{"used_mib@1": 5, "milliwatts@2": 76_500})
    gpu.sample_all()
    devices = gpu.sample_all()
    assert [(device.index, device.uuid) for device in devices] == [(0, "GPU-1-x"), (1, "GPU-2-x"), (2, "GPU-3-x")]
    assert [device.memory_used.value for device in devices] == [90_000 * MIB, 5 * MIB, 90_000 * MIB]
    assert [device.utilization.value for device in devices] == [0.71] * 3
    assert gpu.reading() == devices[0]
    assert gpu.watts() == 123.5 + 123.5 + 76.5
    assert gpu.watts(2) == 123.5 + 123.5, "an engine on two of them doesn't pay for the third"


@pytest.mark.parametrize(
    ("visible", "found"),
    [
        ("2,0", [2, 0]),
        ("GPU-2-x,GPU-1", [1, 0]),
        ("1,-1,0", [1]),
        ("0,9,1", [0]),
        ("1,GPU-unheard", [1]),
        ("1,GPU-", [1]),
    ],
)
def test_the_order_and_the_end_of_cuda_visible_devices(make_gpu: Any, visible: str, found: list[int]) -> None:
    gpu = make_gpu(visible_devices=visible)
    gpu.tell(count=3)
    assert [device.index for device in gpu.sample_all()] == found


def test_one_lost_gpu_takes_no_other_with_it(gpu: Any) -> None:
    gpu.tell(count=3)
    gpu.sample_all()
    gpu.tell(**{"nvmlDeviceGetMemoryInfo_v2@1": LOST, "nvmlDeviceGetHandleByUUID@1": LOST, "xids": 1, "xid_gpu": 1})
    first, lost, third = gpu.sample_all()
    assert "fell off the bus" in lost.problem
    assert (lost.index, lost.uuid, lost.power.value) == (1, "GPU-2-x", None)
    assert [len(device.events) for device in (first, lost, third)] == [0, 1, 0]
    assert [first.utilization.value, third.utilization.value] == [0.71, 0.71]
    assert gpu.watts() is None
    gpu.advance(60)
    assert "fell off the bus" in gpu.sample_all()[1].problem
    gpu.tell(**{"nvmlDeviceGetMemoryInfo_v2@1": 0, "nvmlDeviceGetHandleByUUID@1": 0})
    gpu.advance(60)
    devices = gpu.sample_all()
    assert [device.problem for device in devices] == [None] * 3
    assert gpu.watts() == 3 * 123.5
    assert gpu.calls("nvmlDeviceGetHandleByIndex_v2") == 3, "indices shift when a GPU is lost, UUIDs don't"


def test_a_slice_has_nothing_of_the_whole_gpu_under_its_own_name(make_gpu: Any) -> None:
    gpu = make_gpu(visible_devices="MIG-1")
    gpu.tell(pid=os.getpid())
    gpu.sample()
    device = gpu.sample()
    assert (device.uuid, device.index) == ("MIG-1", 0)
    assert more(device, "dram_bandwidth") == ("DRAM bandwidth used (slice)", 0.64)
    assert device.processes[0].memory == 700 * MIB
    whole = set(device.more) - {"sm_occupancy", "tensor_active", "dram_bandwidth"}
    assert all("of the whole GPU" in device.more[name].label for name in whole)
    assert gpu.watts() is None, "what the whole GPU draws is not what the slice does"


def test_a_slice_whose_memory_is_not_told_never_shows_its_parents(make_gpu: Any) -> None:
    gpu = make_gpu(visible_devices="MIG-1")
    gpu.tell(nvmlDeviceGetMemoryInfo_v2=NOT_SUPPORTED)
    device = gpu.sample()
    assert (device.memory_used.label, device.memory_used.value) == ("memory used (slice)", None)
    assert (device.memory_total.value, device.memory_total.why) == (None, "this GPU does not report it")


def test_all_readings_turn_old_together(gpu: Any) -> None:
    gpu.tell(pid=os.getpid())
    gpu.sample()
    gpu.advance(4)
    stale = gpu.reading()
    assert stale.more["throttle"].stale
    assert stale.more["energy"].stale
    gpu.advance(10)
    silent = gpu.reading()
    assert {(reading.value, reading.text) for reading in silent.more.values()} == {(None, "")}
    assert silent.processes == ()
    assert gpu.watts() is None


def test_a_thread_that_is_held_for_long_is_given_up_and_another_one_asks(gpu: Any) -> None:
    gpu.tell(millijoules=5e9)
    gpu.sample()
    gpu.hang("nvmlDeviceGetPowerUsage")
    gpu.start()
    with gpu.while_hanging("nvmlDeviceGetPowerUsage"):
        gpu.tell(**{"hang.nvmlDeviceGetPowerUsage": 0, "millijoules": 5e9 + 7000})
        gpu.advance(59)
        gpu.reading()
        assert gpu.calls("nvmlInitWithFlags") == 1
        gpu.advance(2)
        gpu.reading()
        device = gpu.wait_for_an_answer()
        assert (device.problem, device.memory_used.value) == (None, 90_000 * MIB)
        assert device.more["energy"].value == 7
        assert gpu.calls("nvmlInitWithFlags") == 2
        assert gpu.threads() == 2
    gpu.wait_for_threads(1)
    assert gpu.reading().problem is None


def test_there_are_never_more_than_a_few_stuck_threads(gpu: Any) -> None:
    gpu.sample()
    gpu.hang("nvmlInitWithFlags")
    gpu.hang("nvmlDeviceGetPowerUsage")
    gpu.start()
    for _ in range(10):
        gpu.advance(61)
        gpu.reading()
    assert gpu.threads() == 4


def test_the_sampler_tells_what_it_costs(gpu: Any) -> None:
    gpu.sample()
    assert gpu.cost().why == "needs two readings"
    gpu.sample()
    cost = gpu.cost()
    assert (cost.label, cost.unit) == ("sampler, of a core", "fraction")
    assert 0 < cost.value <= 1.5
