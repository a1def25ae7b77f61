"""What Prometheus reads, parsed by its own parser."""

import msgspec
import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_host.api.figures import (
    Bill,
    CostLine,
    LatencyLine,
    LedgerStatus,
    PhaseRoofline,
    Roofline,
    StepFigures,
    Telemetry,
)
from engine_host.api.types import (
    BreakerLine,
    Cost,
    Device,
    DeviceEvent,
    EngineState,
    GatewayStatus,
    KvCache,
    LaneLine,
    ModelInfo,
    PortInfo,
    Reading,
    Snapshot,
    TierLine,
)
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import EngineStats, TelemetryHub
from engine_host.telemetry.metrics import Metrics, render

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families(render(metrics.collect()).decode())
    return {
        (sample.name.removeprefix("llmconsole_"), tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


class Bench:
    """A hub, a CPU's sampler and a host that is ready with ten pages."""

    def __init__(self) -> None:
        self.now = 0.0
        self.hub = TelemetryHub(clock=lambda: self.now, wall=lambda: 1e6)
        self.sampler = DeviceSampler(kind="cpu", clock=lambda: self.now)
        self.kv: KvCache | None = KvCache(10, 5, 3, 2, 16, None, None, 60.0)
        self.metrics = Metrics(self.hub, self.sampler, self.snapshot)

    def snapshot(self) -> Snapshot:
        return Snapshot(
            sequence=1,
            time=1e6,
            uptime_s=0.0,
            state=EngineState("ready", 0.0),
            model=ModelInfo("m", "/m"),
            profile="balanced",
            port=PortInfo("127.0.0.1", 8000, True),
            kv=self.kv,
            latency=self.hub.latency(),
            load=self.hub.load(),
            device=self.sampler.reading(),
            cost=Cost(None, "none", None, 60.0),
            requests=(),
            flight=(),
        )


@pytest.fixture
def bench() -> Bench:
    return Bench()


def of(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return name, tuple(sorted({"engine": "0", **labels}.items()))


def test_a_request_is_counted_with_its_latencies(bench: Bench) -> None:
    bench.hub.arrived("a", prompt_tokens=4, max_tokens=9, at=0.0)
    bench.hub.tokens("a", 1, 0.2)
    bench.hub.tokens("a", 3, 0.35)
    bench.hub.finished("a", "stop", 0.4)
    bench.hub.steps(prefill=4, decode=3, at=0.4)
    seen = scrape(bench.metrics)
    assert seen[of("time_to_first_token_seconds_count")] == 1
    assert seen[of("time_to_first_token_seconds_sum")] == pytest.approx(0.2)
    assert seen[of("time_to_first_token_seconds_bucket", le="0.1")] == 0
    assert seen[of("time_to_first_token_seconds_bucket", le="0.25")] == 1
    assert seen[of("token_latency_seconds_count")] == 3
    assert seen[of("token_latency_seconds_sum")] == pytest.approx(0.15)
    assert seen[of("request_duration_seconds_sum")] == pytest.approx(0.4)
    assert seen[of("requests_finished_total", reason="stop")] == 1
    assert seen[of("requests_finished_total", reason="abort")] == 0
    assert seen[of("tokens_total", phase="prefill")] == 4
    assert seen[of("tokens_total", phase="decode")] == 3
    assert seen[of("output_tokens_total")] == 4


def test_where_the_time_to_first_token_went_is_a_histogram_each(bench: Bench) -> None:
    bench.hub.ttft_parts((0.001, 0.02, 0.03, 0.004, 0.0005), 1.0)
    bench.hub.prefilled(500, 0.034, 1.0)
    bench.hub.prefilled(40_000, 2.0, 1.0)
    seen = scrape(bench.metrics)
    assert seen[of("queue_seconds_sum")] == pytest.approx(0.02)
    assert seen[of("delivery_seconds_sum")] == pytest.approx(0.0005)
    assert seen[of("prefill_latency_seconds_sum", prompt_up_to="512")] == pytest.approx(0.034)
    assert seen[of("prefill_latency_seconds_bucket", prompt_up_to="more", le="2.5")] == 1
    assert seen[of("prefill_latency_seconds_count", prompt_up_to="128")] == 0


def test_gauges_are_those_of_the_moment(bench: Bench) -> None:
    bench.hub.engine_stats(EngineStats(running=2, waiting=7, prefix_queries=8, prefix_hits=2))
    seen = scrape(bench.metrics)
    assert (seen[of("requests", state="running")], seen[of("requests", state="waiting")]) == (2, 7)
    assert [seen[of("kv_pages", state=state)] for state in ("used", "cached", "free")] == [5, 3, 2]
    assert (seen[of("engine_state", state="ready")], seen[of("engine_state", state="failed")]) == (1, 0)
    assert seen[of("prefix_cache_queried_tokens_total")] == 8
    assert seen[of("prefix_cache_hit_tokens_total")] == 2
    assert [value for (name, _), value in seen.items() if name == "build_info"] == [1]


def test_what_is_unknown_or_old_is_not_exported(bench: Bench) -> None:
    def device() -> set[str]:
        found = {name for name, _ in scrape(bench.metrics) if name.startswith(("device_", "resident_"))}
        return found - {"device_problem", "device_clock_cpu_hertz"}  # Not every machine tells its clock.

    bench.kv = None
    assert device() == set()
    assert not [name for name, _ in scrape(bench.metrics) if name == "kv_pages"]
    bench.sampler.sample()
    bench.sampler.sample()
    memory = {"device_memory_used_bytes", "device_memory_bytes", "resident_memory_bytes"}
    assert device() == {"device_utilization_ratio", "device_load"} | memory
    bench.now = 30.0
    assert device() == set()


def test_a_device_gauge_names_what_was_measured_and_how(bench: Bench) -> None:
    bench.sampler.sample()
    bench.sampler.sample()
    (labels,) = (dict(labels) for name, labels in scrape(bench.metrics) if name == "device_utilization_ratio")
    assert labels["measure"] == "CPU busy"
    assert labels["source"].startswith("psutil.cpu_percent")
    assert labels["gpu"] == ""


GPU = Device(
    kind="gpu",
    name="H200",
    utilization=Reading("SM active", "fraction", 0.8, "gpm"),
    memory_used=Reading("memory", "bytes", 30e9, "nvml"),
    memory_total=Reading("memory", "bytes", 100e9, "nvml"),
    power=Reading("power", "watts", None, "nvml", "not supported"),
    temperature=Reading("temperature", "celsius", 60.0, "nvml", stale=True),
    more={
        "energy": Reading("energy", "joules", 5e6, "nvml"),
        "pcie_rx": Reading("PCIe received", "bytes/s", 1e9, "nvml"),
        "sm_occupancy": Reading("SM occupancy", "fraction", 0.4, "gpm"),
        "throttle": Reading("throttling", "words", 1.0, "nvml", text="heat"),
        "ecc_uncorrected": Reading("ECC", "count", None, "nvml", "not supported"),
    },
    uuid="GPU-a",
    events=(DeviceEvent(5.0, "Xid 13"), DeviceEvent(9.0, "Xid 48")),
)

TELEMETRY = Telemetry(
    time=1e6,
    latencies=(LatencyLine("key", "secret-key-id", ()),),
    parts=(),
    prefill_by_length=(),
    steps=StepFigures(60.0, 9, 0.5, 0.25, 0.75, 0.01, None, 0, 100.0, 0.2, None),
    roofline=Roofline(
        60.0,
        PhaseRoofline("prefill", 5e14, 1e12, 0.5, 0.2, "compute-bound", ""),
        PhaseRoofline("decode", None, 2e12, None, 0.4, "bandwidth-bound", ""),
        Reading("BF16 dense", "flop/s", 1e15, "data sheet"),
        Reading("HBM", "bytes/s", None, "none"),
    ),
    bill=Bill(
        0.0,
        2,
        10.0,
        {"decode": 6.0, "idle": 4.0},
        3.6,
        "list price",
        True,
        {"decode": 0.006, "idle": 0.004},
        None,
        0.01,
    ),
    costs=(
        CostLine("tier", "premium", 3, 100, 50, 20, 0.004, None, None, None, None, 0.001),
        CostLine("key", "secret-key-id", 3, 100, 50, 20, 0.004, None, None, None, None, 0.001),
    ),
    devices=(GPU, msgspec.structs.replace(GPU, index=1, uuid="GPU-b", problem="It fell off the bus.", events=())),
    sampler_cost=Reading("sampler", "fraction", 0.002, "thread_time"),
    ledger=LedgerStatus("/l", 7, 1, 2, "The disk is full."),
)


@pytest.fixture
def told(bench: Bench) -> Samples:
    """What is exported of the figures above."""
    return scrape(Metrics(bench.hub, bench.sampler, bench.snapshot, lambda: TELEMETRY))


def gpu(name: str, **labels: str) -> tuple[str, tuple[tuple[str, str], ...]]:
    return f"device_{name}", tuple(sorted({"device": "H200", "gpu": "0", "uuid": "GPU-a", **labels}.items()))


def test_every_reading_of_every_gpu_is_exported_by_its_unit(told: Samples) -> None:
    assert told[gpu("utilization_ratio", measure="SM active", source="gpm")] == 0.8
    assert told[gpu("utilization_ratio", measure="SM active", source="gpm", gpu="1", uuid="GPU-b")] == 0.8
    assert told[gpu("energy_joules_total", measure="energy", source="nvml")] == 5e6
    assert told[gpu("pcie_rx_bytes_per_second", measure="PCIe received", source="nvml")] == 1e9
    assert told[gpu("sm_occupancy_ratio", measure="SM occupancy", source="gpm")] == 0.4
    assert told[gpu("throttle_degraded", measure="throttling", source="nvml", reason="heat")] == 1
    assert (told[gpu("problem")], told[gpu("problem", gpu="1", uuid="GPU-b")]) == (0, 1)
    assert told[gpu("last_event_timestamp_seconds")] == 9.0
    names = {name for name, _ in told}
    assert not names & {"device_power_watts", "device_temperature_celsius", "device_ecc_uncorrected"}


def test_the_bill_and_the_cost_by_tier_are_exported(told: Samples) -> None:
    assert told[of("device_seconds_total", part="decode")] == 6.0
    assert told[of("cost_usd_total", part="idle")] == 0.004
    assert told[of("price_usd_per_device_hour", estimated="true")] == 3.6
    assert told[of("tier_cost_usd_total", tier="premium")] == 0.004
    assert told[of("tier_cached_tokens_total", tier="premium")] == 50
    assert not [name for name, _ in told if name.startswith("energy_cost")]


def test_steps_roofline_and_ledger_are_exported(told: Samples) -> None:
    assert told[of("batch_fill_ratio")] == 0.5
    assert told[of("step_time_ratio", phase="decode")] == 0.75
    assert of("step_seconds", percentile="p99") not in told
    assert told[of("flops_utilization_ratio", phase="prefill")] == 0.5
    assert of("flops_utilization_ratio", phase="decode") not in told
    assert told[of("bound", phase="decode", verdict="bandwidth-bound")] == 1
    assert told[of("bound", phase="decode", verdict="starved")] == 0
    assert told[of("peak_flops_per_second", source="data sheet")] == 1e15
    assert told[of("sampler_cpu_ratio")] == 0.002
    assert (told[of("ledger_rows_written_total")], told[of("ledger_rows_lost_total")]) == (7, 2)
    assert told[of("ledger_problem")] == 1


def test_no_label_names_a_key(told: Samples) -> None:
    assert "secret-key-id" not in str(told.keys())


def test_targets_are_beside_what_is_measured(bench: Bench) -> None:
    tier = TierLine("premium", 2, 1, 0, 5, 1, 0, 0.9, None, 0.5, 0.05, True)
    gateway = GatewayStatus((LaneLine("short", 4, 2.5, 100),), (tier,), BreakerLine("open", 0.0), None)
    told = scrape(Metrics(bench.hub, bench.sampler, lambda: msgspec.structs.replace(bench.snapshot(), gateway=gateway)))
    assert told[of("tier_latency_p99_seconds", tier="premium", latency="ttft")] == 0.9
    assert of("tier_latency_p99_seconds", tier="premium", latency="ttl") not in told
    assert told[of("tier_latency_target_seconds", tier="premium", latency="ttl")] == 0.05
    assert told[of("queue_oldest_seconds", lane="short")] == 2.5
    assert told[of("breaker_state", state="open")] == told[of("tier_shed", tier="premium")] == 1


def test_the_number_of_series_does_not_follow_the_number_of_requests(bench: Bench) -> None:
    before = set(scrape(bench.metrics))
    for number in range(500):
        bench.hub.arrived(str(number), prompt_tokens=1, max_tokens=None, at=0.0)
        bench.hub.finished(str(number), f"reason {number}", 1.0)
    assert set(scrape(bench.metrics)) == before
