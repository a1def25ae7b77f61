"""Our own metrics in Prometheus' text format, beside vLLM's. Everything is read when it is asked for."""

from collections.abc import Callable, Iterator
from importlib.metadata import PackageNotFoundError, version
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from engine_host.api.types import Device, GatewayStatus, Snapshot, StateName
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.histogram import BoundedHistogram
from engine_host.telemetry.hub import TelemetryHub

_DEVICE_GAUGES = {
    "utilization": ("utilization_ratio", "How busy the device is, 0 to 1; the label measure says what was measured."),
    "memory_used": ("memory_used_bytes", "Memory in use."),
    "memory_total": ("memory_bytes", "Memory there is."),
    "power": ("power_watts", "Power drawn."),
    "temperature": ("temperature_celsius", "Temperature."),
}


class Metrics:
    """Renders the metrics of one engine. Labels take few values: no request id, no client's text."""

    def __init__(
        self, hub: TelemetryHub, sampler: DeviceSampler, snapshot: Callable[[], Snapshot], engine_id: int = 0
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_HostCollector(hub, sampler, snapshot, str(engine_id)))

    def render(self) -> bytes:
        """The metrics now; call it on the event loop, which the hub belongs to."""
        return generate_latest(self._registry)


class _HostCollector(Collector):
    def __init__(
        self, hub: TelemetryHub, sampler: DeviceSampler, snapshot: Callable[[], Snapshot], engine: str
    ) -> None:
        self._hub = hub
        self._sampler = sampler
        self._snapshot = snapshot
        self._engine = engine
        self._version = _own_version()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("llmconsole_build", "The running llmconsole.", {"version": self._version})
        yield from self._requests()
        yield from self._tokens()
        snapshot = self._snapshot()
        yield from self._engine_now(snapshot)
        if snapshot.gateway is not None:
            yield from self._gateway(snapshot.gateway)
        yield from self._device(self._sampler.reading())

    def _requests(self) -> Iterator[Metric]:
        totals = self._hub.totals
        yield self._histogram("time_to_first_token_seconds", "Acceptance to first output token.", totals.ttft)
        yield self._histogram("token_latency_seconds", "Gap before each later output token, by token.", totals.ttl)
        yield self._histogram("request_duration_seconds", "Acceptance to end, of requests that ended by themselves.",
                              totals.e2e)  # fmt: skip
        yield self._counter("requests_finished", "Requests that ended, by reason.", "reason", totals.finished)
        load = self._hub.load()
        states = {"running": load.running, "waiting": load.waiting}
        yield self._gauge(
            "requests", "Requests running in the engine, and waiting there or in front of it.", "state", states
        )

    def _tokens(self) -> Iterator[Metric]:
        totals = self._hub.totals
        phases = {"prefill": totals.prefill, "decode": totals.decode}
        yield self._counter("tokens", "Tokens the engine's steps computed, by phase.", "phase", phases)
        yield self._counter("output_tokens", "Tokens handed to requests.", None, {"": totals.output})
        looked_up = {"": totals.prefix_queries}
        yield self._counter("prefix_cache_queried_tokens", "Tokens looked up in the prefix cache.", None, looked_up)
        yield self._counter("prefix_cache_hit_tokens", "Tokens found there.", None, {"": totals.prefix_hits})

    def _engine_now(self, snapshot: Snapshot) -> Iterator[Metric]:
        states = {name: int(name == snapshot.state.name) for name in get_args(StateName)}
        yield self._gauge("engine_state", "1 for the state the engine is in.", "state", states)
        if (kv := snapshot.kv) is not None:
            pages = {"used": kv.used, "cached": kv.cached, "free": kv.free}
            yield self._gauge("kv_pages", "KV-cache pages by state.", "state", pages)

    def _gateway(self, gateway: GatewayStatus) -> Iterator[Metric]:
        lanes, tiers = gateway.lanes, gateway.tiers
        yield self._gauge("queue_requests", "Requests waiting in front of the engine.", "lane",
                          {lane.name: lane.waiting for lane in lanes})  # fmt: skip
        yield self._gauge("tier_requests", "Requests in the engine, by tier.", "tier",
                          {tier.name: tier.active for tier in tiers})  # fmt: skip
        yield self._counter("tier_requests_finished", "Requests that ended by themselves, by tier.", "tier",
                            {tier.name: tier.finished for tier in tiers})  # fmt: skip
        yield self._counter("tier_requests_refused", "Requests refused or ended by a rule, by tier.", "tier",
                            {tier.name: tier.refused for tier in tiers})  # fmt: skip
        yield self._counter("tier_requests_set_aside", "Requests set aside for a higher tier, by tier.", "tier",
                            {tier.name: tier.checkpointed for tier in tiers})  # fmt: skip
        yield self._gauge("tier_shed", "1 while the circuit breaker turns the tier away.", "tier",
                          {tier.name: int(tier.shed) for tier in tiers})  # fmt: skip
        states = {name: int(name == gateway.breaker.state) for name in ("closed", "open", "half-open")}
        yield self._gauge("breaker_state", "1 for the state the circuit breaker is in.", "state", states)

    def _device(self, device: Device) -> Iterator[Metric]:
        for field, (name, text) in _DEVICE_GAUGES.items():
            reading = getattr(device, field)
            family = GaugeMetricFamily(f"llmconsole_device_{name}", text, labels=["device", "measure", "source"])
            if reading.value is not None and not reading.stale:
                family.add_metric([device.name, reading.label, reading.source], reading.value)
            yield family
        memory = GaugeMetricFamily("llmconsole_resident_memory_bytes", "Resident memory of the host and the engine.")
        if (found := self._sampler.process_memory()) is not None and found.value is not None:
            memory.add_metric([], found.value)
        yield memory

    def _histogram(self, name: str, text: str, histogram: BoundedHistogram) -> Metric:
        family = HistogramMetricFamily(f"llmconsole_{name}", text, labels=["engine"])
        family.add_metric([self._engine], histogram.cumulative(), histogram.total)
        return family

    def _counter(self, name: str, text: str, label: str | None, values: dict[str, int]) -> Metric:
        labels = ["engine"] if label is None else ["engine", label]
        family = CounterMetricFamily(f"llmconsole_{name}", text, labels=labels)
        for key, value in values.items():
            family.add_metric([self._engine, key][: len(labels)], value)
        return family

    def _gauge(self, name: str, text: str, label: str, values: dict[str, int]) -> Metric:
        family = GaugeMetricFamily(f"llmconsole_{name}", text, labels=["engine", label])
        for key, value in values.items():
            family.add_metric([self._engine, key], value)
        return family


def _own_version() -> str:
    try:
        return version("llmconsole")
    except PackageNotFoundError:
        return "not installed"
