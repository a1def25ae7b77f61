"""What Prometheus reads, parsed by its own parser."""

import pytest
from prometheus_client.parser import text_string_to_metric_families

from engine_host.api.types import Cost, EngineState, KvCache, ModelInfo, PortInfo, Snapshot
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import EngineStats, TelemetryHub
from engine_host.telemetry.metrics import Metrics

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def scrape(metrics: Metrics) -> Samples:
    families = text_string_to_metric_families(metrics.render().decode())
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
        return {name for name, _ in scrape(bench.metrics) if name.startswith(("device_", "resident_"))}

    bench.kv = None
    assert device() == set()
    assert not [name for name, _ in scrape(bench.metrics) if name == "kv_pages"]
    bench.sampler.sample()
    bench.sampler.sample()
    memory = {"device_memory_used_bytes", "device_memory_bytes", "resident_memory_bytes"}
    assert device() == {"device_utilization_ratio"} | memory
    bench.now = 30.0
    assert device() == set()


def test_a_device_gauge_names_what_was_measured_and_how(bench: Bench) -> None:
    bench.sampler.sample()
    bench.sampler.sample()
    (labels,) = (dict(labels) for name, labels in scrape(bench.metrics) if name == "device_utilization_ratio")
    assert (labels["measure"], labels["source"]) == ("CPU busy", "psutil.cpu_percent")


def test_the_number_of_series_does_not_follow_the_number_of_requests(bench: Bench) -> None:
    before = set(scrape(bench.metrics))
    for number in range(500):
        bench.hub.arrived(str(number), prompt_tokens=1, max_tokens=None, at=0.0)
        bench.hub.finished(str(number), f"reason {number}", 1.0)
    assert set(scrape(bench.metrics)) == before
