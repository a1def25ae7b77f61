"""Rules about the device, on a trace of a CPU with an H200's readings put in by hand, in the device sampler's words."""

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from engine_host.api.types import DeviceEvent, Reading
from engine_host.doctor.record import Record
from engine_host.telemetry.nvml_power import throttle_words
from tests.doctor.recorded import found, on_gpu, trace, with_knobs

POWER_LIMIT, HARDWARE, TOO_HOT, TOO_HOT_HARDWARE, BRAKE, IDLE, APPLICATION = 0x04, 0x08, 0x20, 0x48, 0x88, 0x01, 0x02
"""Bits of nvmlClocksEventReasons."""


@pytest.fixture(scope="module")
def healthy() -> Record:
    return with_knobs(trace("healthy"), engine__enforce_eager=False)


def throttled(mask: int, mhz: int | None = 1400, stale: bool = False) -> dict[str, Reading]:
    held, words = throttle_words(mask)
    clock = None if mhz is None else mhz * 1e6
    return {
        "throttle": Reading("clocks held down", "words", float(held), "by hand", text=words, stale=stale),
        "clock_sm": Reading("SM clock", "hertz", clock, "by hand", text="of at most 1980 MHz"),
        "power_limit": Reading("power limit", "watts", 700.0, "by hand"),
    }


def link(text: str, **rates: float) -> dict[str, Reading]:
    found = {name: Reading(name, "bytes/s", value, "by hand") for name, value in rates.items()}
    return {"pcie_link": Reading("PCIe link", "words", 1.0, "by hand", text=text), **found}


def test_a_gpu_that_runs_freely_is_healthy(healthy: Record) -> None:
    more = throttled(0) | link("Gen 5 x16", pcie_rx=1e9, pcie_tx=1e9)
    assert found(on_gpu(healthy, more=more)) == {}


@pytest.mark.parametrize(
    ("mask", "rule"),
    [
        (POWER_LIMIT, "throttle-power"),
        (BRAKE, "throttle-power"),
        (HARDWARE, "throttle-power"),
        (TOO_HOT, "throttle-heat"),
        (TOO_HOT_HARDWARE, "throttle-heat"),
        (IDLE, None),
        (APPLICATION, None),
    ],
)
def test_throttling_is_told_by_its_cause(healthy: Record, mask: int, rule: str | None) -> None:
    assert list(found(on_gpu(healthy, more=throttled(mask)))) == ([rule] if rule else [])


def test_throttling_for_power_is_told_with_its_numbers(healthy: Record) -> None:
    finding = found(on_gpu(healthy, more=throttled(POWER_LIMIT)))["throttle-power"]
    assert finding.evidence == (
        "GPU 0 (NVIDIA H200), clocks held down: power limit reached.",
        "It draws 698 W of 700 W.",
        "Its SM clock is 1400 MHz, 71 % of the highest.",
    )
    assert "nvidia-smi -i 0 -pl" in finding.remedy


def test_a_gpu_at_its_power_limit_that_loses_little_clock_is_at_work(healthy: Record) -> None:
    assert "throttle-power" in found(on_gpu(healthy, more=throttled(POWER_LIMIT, mhz=1780)))
    assert found(on_gpu(healthy, more=throttled(POWER_LIMIT, mhz=1783))) == {}


def test_power_and_heat_together_are_two_findings(healthy: Record) -> None:
    assert set(found(on_gpu(healthy, more=throttled(POWER_LIMIT | TOO_HOT)))) == {"throttle-heat", "throttle-power"}


def test_heat_is_a_problem_with_the_temperature(healthy: Record) -> None:
    hot = Reading("temperature", "celsius", 91.0, "by hand")
    finding = found(on_gpu(healthy, more=throttled(TOO_HOT), temperature=hot))["throttle-heat"]
    assert finding.severity == "problem"
    assert "It is at 91 °C." in finding.evidence


def test_a_stale_reading_is_no_evidence(healthy: Record) -> None:
    assert found(on_gpu(healthy, more=throttled(TOO_HOT, stale=True))) == {}


@pytest.mark.parametrize(
    ("text", "busy", "told"),
    [
        ("Gen 5 x8 of Gen 5 x16", 0.0, True),
        ("Gen 3 x16 of Gen 5 x16", 0.5, True),
        ("Gen 1 x16 of Gen 5 x16, as links do at idle", 0.05, False),
        ("Gen 3 x16 of Gen 5 x16", 0.09, False),
        ("Gen 3 x16 of Gen 5 x16", 0.1, True),
        ("Gen 5 x16", 0.9, False),
        ("Gen 5 x16 of Gen 5 x16", 0.9, False),
    ],
)
def test_a_degraded_link_is_narrow_or_slow_at_work(healthy: Record, text: str, busy: float, told: bool) -> None:
    assert ("pcie-link" in found(on_gpu(healthy, busy, more=link(text)))) == told


def test_a_degraded_link_matters_more_where_devices_talk_over_it(healthy: Record) -> None:
    more = link("Gen 3 x8 of Gen 5 x16", pcie_rx=6.1e9, pcie_tx=0.5e9)
    alone = found(on_gpu(healthy, more=more))["pcie-link"]
    assert alone.severity == "warning"
    assert alone.evidence == (
        "GPU 0 (NVIDIA H200) is linked by Gen 3 x8 of Gen 5 x16.",
        "It receives 6.1 GB/s and sends 0.5 GB/s.",
    )
    parallel = found(on_gpu(with_knobs(healthy, engine__tensor_parallel_size=2), more=more))["pcie-link"]
    assert parallel.severity == "problem"


@pytest.mark.parametrize(
    ("fields", "severity"),
    [
        ({"events": (DeviceEvent(-60, "Xid 79: the GPU fell off the bus."),)}, "warning"),
        ({"events": (DeviceEvent(-3600, "Xid 79: the GPU fell off the bus."),)}, "warning"),
        ({"events": (DeviceEvent(-3601, "Xid 79: the GPU fell off the bus."),)}, None),
        ({"more": {"ecc_uncorrected": Reading("ECC", "count", 2.0, "by hand")}}, "problem"),
        ({"more": {"ecc_uncorrected": Reading("ECC", "count", 0.0, "by hand")}}, None),
        ({"more": {"remapped_rows": Reading("rows", "count", 1.0, "by hand", text="a remapping failed")}}, "problem"),
        ({"more": {"remapped_rows": Reading("rows", "count", 1.0, "by hand")}}, None),
    ],
)
def test_errors_of_the_gpu(healthy: Record, fields: dict[str, Any], severity: str | None) -> None:
    events = fields.get("events", ())
    fields = fields | {"events": tuple(DeviceEvent(healthy.time + each.time, each.text) for each in events)}
    finding = found(on_gpu(healthy, **fields)).get("gpu-errors")
    assert (finding.severity if finding is not None else None) == severity
    if events and finding is not None:
        ago = {60: "60 s", 3600: "60 min"}[-events[0].time]
        assert finding.evidence == (f"GPU 0 (NVIDIA H200), {ago} ago: Xid 79: the GPU fell off the bus.",)
        assert finding.time == healthy.time + events[0].time


def test_a_device_that_can_not_be_read_says_so(healthy: Record) -> None:
    finding = found(on_gpu(healthy, problem="NVML is not answering."))["device-unread"]
    assert finding.evidence == ("GPU 0 (NVIDIA H200): NVML is not answering.",)


def test_the_device_of_several_that_is_held_down_is_named(healthy: Record) -> None:

    well = on_gpu(healthy, more=throttled(0)).snapshot.device
    hot = msgspec.structs.replace(well, index=3, more=throttled(TOO_HOT))
    assert healthy.telemetry is not None
    telemetry = msgspec.structs.replace(healthy.telemetry, devices=(well, hot))
    finding = found(replace(healthy, telemetry=telemetry))["throttle-heat"]
    assert finding.evidence[0].startswith("GPU 3 (NVIDIA H200)")
    assert "nvidia-smi -i 3" in finding.remedy
