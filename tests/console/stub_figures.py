"""What the stub host measures: one busy H200, one poor neighbour of it, a bill that adds up, and three findings."""

import msgspec

from engine_host.api.figures import (
    BILL_PARTS,
    Bill,
    BillPart,
    CostLine,
    Finding,
    LatencyLine,
    LedgerStatus,
    LengthBucket,
    PhaseRoofline,
    Quantiles,
    Roofline,
    StepFigures,
    Telemetry,
    TtftParts,
    WindowLatency,
)
from engine_host.api.types import Device, DeviceEvent, DeviceProcess, Reading

NOON = 1_767_268_800.0
"""The frozen clock: 2026-01-01 12:00:00 UTC."""

GPM, NVML = "nvmlGpmMetricsGet", "nvml"

H200 = Device(
    "gpu",
    "NVIDIA H200 [SXM]",
    Reading("SM active", "fraction", 0.71, f"{GPM}(SM_UTIL)"),
    Reading("memory used", "bytes", 91.2e9, "nvmlDeviceGetMemoryInfo_v2"),
    Reading("memory total", "bytes", 150.8e9, "nvmlDeviceGetMemoryInfo_v2"),
    Reading("power", "watts", 612.0, "nvmlDeviceGetPowerUsage"),
    Reading("temperature", "celsius", 62.0, "nvmlDeviceGetTemperature"),
    index=0,
    uuid="GPU-0f3a91c0-7f3a-91c0-0be5-7f1091c0aa12",
    more={
        "sm_occupancy": Reading("SM occupancy", "fraction", 0.38, f"{GPM}(SM_OCCUPANCY)"),
        "tensor_active": Reading("tensor active", "fraction", 0.29, f"{GPM}(ANY_TENSOR_UTIL)"),
        "dram_bandwidth": Reading("DRAM bandwidth used", "fraction", 0.64, f"{GPM}(DRAM_BW_UTIL)"),
        "power_limit": Reading("power limit", "watts", 700.0, NVML),
        "energy": Reading("energy", "joules", 461_448.0, "nvmlDeviceGetTotalEnergyConsumption"),
        "clock_sm": Reading("SM clock", "hertz", 1.755e9, NVML, text="of at most 1980 MHz"),
        "clock_memory": Reading("memory clock", "hertz", 3.201e9, NVML),
        "throttle": Reading("clocks held down", "words", 1.0, NVML, text="power limit"),
        "pcie_link": Reading("PCIe link", "words", 0.0, NVML, text="gen 5 ×16 of gen 5 ×16"),
        "pcie_rx": Reading("PCIe received", "bytes/s", 2.1e9, NVML),
        "pcie_tx": Reading("PCIe sent", "bytes/s", 0.4e9, NVML, stale=True),
        "nvlink_rx": Reading("NVLink received", "bytes/s", 41e9, f"{GPM}(NVLINK_TOTAL_RX_PER_SEC)"),
        "nvlink_tx": Reading("NVLink sent", "bytes/s", 39e9, f"{GPM}(NVLINK_TOTAL_TX_PER_SEC)"),
        "ecc_corrected": Reading("ECC errors corrected, since the driver was loaded", "count", 2.0, NVML),
        "ecc_uncorrected": Reading("ECC errors uncorrected, since the driver was loaded", "count", 0.0, NVML),
        "retired_pages": Reading("memory pages retired", "count", None, NVML, "not supported"),
        "xid_events": Reading("Xid errors, since the host started", "count", 1.0, "nvmlEventSetWait_v2"),
    },
    processes=(
        DeviceProcess(4312, "VLLM::EngineCore", 90.4e9),
        DeviceProcess(991, "python [train].py", None),
    ),
    events=(DeviceEvent(NOON - 340, "Xid 63: row remapping [pending]"),),
)
NEIGHBOUR = Device(
    "gpu",
    "Tesla [b P4\x1b[31m",
    Reading("kernel-busy", "fraction", 0.99, "nvmlDeviceGetUtilizationRates", stale=True),
    Reading("memory used", "bytes", 1.1e9, NVML),
    Reading("memory total", "bytes", 8.1e9, NVML),
    Reading("power", "watts", None, NVML, "not supported"),
    Reading("temperature", "celsius", None, NVML, "GPU is lost"),
    problem="GPU 1 is lost; it is opened again every 5 s.",
    index=1,
)
CPU = Device(
    "cpu",
    "AMD EPYC 9B14, 4 cores",
    Reading("CPU busy", "fraction", 0.71, "psutil.cpu_percent"),
    Reading("system memory used", "bytes", 2.9e9, "psutil.virtual_memory"),
    Reading("system memory", "bytes", 25.2e9, "psutil.virtual_memory"),
    Reading("power", "watts", None, "none", "not read on a CPU"),
    Reading("temperature", "celsius", None, "none", "not read on a CPU"),
    more={"dram_bandwidth": Reading("DRAM bandwidth used", "fraction", None, "none", "no counter that may be read")},
    cores=(0.93, 0.88, 0.61, 0.42),
)


def quantiles(p50: float, count: int) -> Quantiles:
    """Percentiles that rise as latencies do."""
    return Quantiles(p50, p50 * 1.6, p50 * 2.9, count)


def windows(ttft: float, ttl: float) -> tuple[WindowLatency, ...]:
    """One line's windows; nothing fell in the first."""
    return (
        WindowLatency("10s", None, None, None),
        WindowLatency("1m", quantiles(ttft, 48), quantiles(ttl, 6_112), quantiles(ttl * 1.02, 48)),
        WindowLatency("10m", quantiles(ttft * 1.1, 430), quantiles(ttl * 1.1, 58_112), quantiles(ttl * 1.1, 430)),
        WindowLatency("start", quantiles(ttft * 1.2, 512), quantiles(ttl * 1.2, 70_000), quantiles(ttl * 1.2, 512)),
    )


LATENCIES = (
    LatencyLine("all", "", windows(0.082, 0.031)),
    LatencyLine("tier", "premium", windows(0.061, 0.028)),
    LatencyLine("tier", "standard", windows(0.094, 0.033)),
    LatencyLine("tier", "best-effort", windows(0.4, 0.041)),
    LatencyLine("key", "k1", windows(0.06, 0.028)),
    LatencyLine("key", "k2 [red]掲示板", windows(0.1, 0.034)),
    LatencyLine("profile", "quick [b]", windows(0.082, 0.031)),
)
PARTS = (
    TtftParts("1m", 48, 0.0012, 0.0218, 0.041, 0.016, 0.002, 0.082),
    TtftParts("10m", 430, 0.0012, 0.0298, 0.041, 0.016, 0.002, 0.09),
)
LENGTHS = (
    LengthBucket(0, 256, quantiles(0.018, 210)),
    LengthBucket(256, 1_024, quantiles(0.041, 150)),
    LengthBucket(1_024, 4_096, quantiles(0.118, 60)),
    LengthBucket(4_096, 16_384, quantiles(0.52, 10)),
    LengthBucket(16_384, None, None),
)
STEPS = StepFigures(10.0, 312, 0.41, 0.22, 0.74, 0.029, 0.081, 3, 754.0, 0.64, 0.97)
ROOFLINE = Roofline(
    10.0,
    PhaseRoofline(
        "prefill",
        412e12,
        1.1e12,
        0.416,
        0.23,
        "compute-bound",
        "412 TFLOP/s of 989 at 410 FLOP/byte, right of the ridge at 206",
    ),
    PhaseRoofline(
        "decode", 31e12, 3.2e12, 0.031, 0.67, "bandwidth-bound", "3.2 of 4.8 TB/s at 10 FLOP/byte, left of the ridge"
    ),
    Reading("peak FLOP/s, BF16 dense", "flop/s", 989e12, "H200 data sheet, 2024-11"),
    Reading("peak memory bandwidth", "bytes/s", 4.8e12, "H200 data sheet, 2024-11"),
)

PRICE = 3.29
SECONDS: dict[BillPart, float] = {
    "prefill": 212.4,
    "decode": 655.6,
    "memory": 88.0,
    "scheduling": 31.5,
    "io": 22.5,
    "idle": 406.0,
    "down": 92.0,
}
"""Of two devices in 754 s."""
BILL = Bill(
    NOON - 754,
    2,
    1_508.0,
    SECONDS,
    PRICE,
    "built-in table: H200, on demand, 2026-01",
    True,
    {part: SECONDS[part] / 3_600 * PRICE for part in BILL_PARTS},
    None,
    1_508.0 / 3_600 * PRICE,
    1_508.0,
)
COSTS = (
    CostLine("all", "", 47, 61_204, 30_720, 8_412, 0.8737, 18.59, 4.81, 0.31, 71.2, 0.137),
    CostLine("tier", "premium", 31, 40_100, 28_672, 5_300, 0.54, 17.42, 4.7, 0.3, 70.1, 0.128),
    CostLine("tier", "standard", 14, 20_104, 2_048, 3_100, 0.33, 23.57, 5.0, 0.33, 72.8, 0.009),
    CostLine("tier", "best-effort", 2, 1_000, 0, 12, 0.0037, 1.85, 3.1, None, 40.0, 0.0),
    CostLine("key", "k1", 40, 50_000, 30_000, 8_000, 0.7, 17.5, 4.7, 0.3, 70.0, 0.13),
    CostLine("key", "k2 [red]掲示板", 7, 11_204, 720, 412, 0.1737, 24.81, 5.1, 0.33, 75.0, 0.007),
    CostLine("model", "SmolLM2-135M-Instruct", 47, 61_204, 30_720, 8_412, 0.8737, 18.59, 4.81, 0.31, 71.2, 0.137),
    CostLine("profile", "quick [b]", 47, 61_204, 30_720, 8_412, 0.8737, 18.59, 4.81, 0.31, 71.2, 0.137),
    CostLine("hour", f"{NOON - 3_600:.0f}", 30, 40_000, 20_000, 5_000, 0.5, 16.67, 4.8, 0.31, 71.0, 0.09),
    CostLine("hour", f"{NOON:.0f}", 17, 21_204, 10_720, 3_412, 0.3737, 21.98, 4.83, 0.31, 71.5, 0.047),
)
TELEMETRY = Telemetry(
    NOON,
    LATENCIES,
    PARTS,
    LENGTHS,
    STEPS,
    ROOFLINE,
    BILL,
    COSTS,
    (H200, NEIGHBOUR, CPU),
    Reading("sampler, of a core", "fraction", 0.0021, "thread_time of the sampler"),
    LedgerStatus("/state/ledger.db", 1_204, 3, 0),
)

_UNKNOWN_PHASE = PhaseRoofline("prefill", None, None, None, None, "unknown", "no steps in the window")
NOTHING_KNOWN = Telemetry(
    NOON,
    (LatencyLine("all", "", tuple(WindowLatency(w.window, None, None, None) for w in windows(1.0, 1.0))),),
    (),
    (LengthBucket(0, None, None),),
    StepFigures(10.0, 0, None, None, None, None, None, 0, 1.0, None, None),
    Roofline(
        10.0,
        _UNKNOWN_PHASE,
        msgspec.structs.replace(_UNKNOWN_PHASE, phase="decode"),
        Reading("peak FLOP/s", "flop/s", None, "none", "not in the table: set peaks.flops"),
        Reading("peak memory bandwidth", "bytes/s", None, "none", "not in the table: set peaks.bandwidth"),
    ),
    Bill(
        NOON, 0, 0.0, dict.fromkeys(BILL_PARTS, 0.0), None, "no price: set cost.usd_per_hour", False, None, None, None
    ),
    (),
    (),
    Reading("sampler, of a core", "fraction", None, "none", "needs two readings"),
)
"""A host that has just started on a machine without anything."""

FINDINGS = (
    Finding(
        "kv-pool-full",
        "problem",
        "The KV pool is full and requests are preempted",
        ("3 preemptions in the last 60 s", "512 of 512 pages were in use at step 1180"),
        "Raise engine.kv_cache_memory, or lower scheduler.max_active below [16].",
        NOON - 42,
        1_180,
        "chatcmpl-7f3a91c0",
    ),
    Finding(
        "long-prompt",
        "warning",
        "A long prompt stalls [decode",
        ("step 1120 took 412 ms, 14 times the median of 29 ms", "it computed 2 048 prompt tokens of cmpl-44e1b7d2"),
        "Lower scheduler.token_budget to 512.",
        NOON - 101,
        1_120,
        "cmpl-44e1b7d2",
    ),
    Finding("pcie", "warning", "The PCIe link is degraded", ("gen 3 ×8 of gen 5 ×16",), "Reseat the card.", NOON - 700),
)
