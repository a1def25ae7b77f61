"""Our own metrics in Prometheus' text format, beside vLLM's. Everything is read when it is asked for."""

from collections.abc import Callable, Iterator
from typing import get_args

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily, Metric
from prometheus_client.registry import Collector

from engine_host.api.figures import Telemetry
from engine_host.api.types import Snapshot, StateName
from engine_host.telemetry.device import DeviceSampler
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.metrics_devices import device_metrics
from engine_host.telemetry.metrics_families import Families
from engine_host.telemetry.metrics_figures import figure_metrics
from engine_host.telemetry.metrics_gateway import gateway_metrics
from engine_host.version import own_version


class Metrics:
    """Renders the metrics of one engine. Labels take few values: no id of a request or a key, no client's text.

    `telemetry` gives bill, costs, steps, roofline, devices and ledger; without it there are only the sampler's devices.
    """

    def __init__(
        self,
        hub: TelemetryHub,
        sampler: DeviceSampler,
        snapshot: Callable[[], Snapshot],
        telemetry: Callable[[], Telemetry] | None = None,
        engine_id: int = 0,
    ) -> None:
        self._registry = CollectorRegistry()
        self._registry.register(_HostCollector(hub, sampler, snapshot, telemetry, Families(str(engine_id))))

    def collect(self) -> list[Metric]:
        """The metrics now; call it on the event loop, which the hub belongs to."""
        return list(self._registry.collect())


def render(metrics: list[Metric]) -> bytes:
    """Metrics in Prometheus' text format; it takes some milliseconds, so call it in a thread."""

    class Collected(CollectorRegistry):
        def collect(self) -> Iterator[Metric]:
            yield from metrics

    return generate_latest(Collected())


class _HostCollector(Collector):
    def __init__(
        self,
        hub: TelemetryHub,
        sampler: DeviceSampler,
        snapshot: Callable[[], Snapshot],
        telemetry: Callable[[], Telemetry] | None,
        families: Families,
    ) -> None:
        self._hub = hub
        self._sampler = sampler
        self._snapshot = snapshot
        self._telemetry = telemetry
        self._families = families
        self._version = own_version()

    def collect(self) -> Iterator[Metric]:
        yield InfoMetricFamily("llmconsole_build", "The running llmconsole.", {"version": self._version})
        yield from self._requests()
        yield from self._tokens()
        snapshot = self._snapshot()
        yield from self._engine_now(snapshot)
        if snapshot.gateway is not None:
            yield from gateway_metrics(snapshot.gateway, self._families)
        if self._telemetry is None:
            yield from device_metrics(self._sampler.readings())
        else:
            telemetry = self._telemetry()
            yield from device_metrics(telemetry.devices)
            yield from figure_metrics(telemetry, self._families)
        yield self._resident_memory()

    def _requests(self) -> Iterator[Metric]:
        make, totals = self._families, self._hub.totals
        yield make.histogram("time_to_first_token_seconds", "Acceptance to first output token.", totals.ttft)
        yield make.histogram("token_latency_seconds", "Gap before each later output token, by token.", totals.ttl)
        yield make.histogram(
            "time_per_output_token_seconds", "TPOT, of requests that ended by themselves.", totals.tpot
        )
        yield make.histograms(
            "prefill_latency_seconds",
            "Scheduled to first output token, by the most tokens a prompt of this bucket has.",
            "prompt_up_to",
            totals.prefill_by_length,
        )
        yield make.histogram("queue_seconds", "Wait in the host's queue and the engine's.", totals.queue)
        yield make.histogram("delivery_seconds", "First output token to the socket.", totals.delivery)
        yield make.histogram(
            "request_duration_seconds", "Acceptance to end, of requests that ended by themselves.", totals.e2e
        )
        yield make.counter("requests_finished", "Requests that ended, by reason.", "reason", totals.finished)
        load = self._hub.load()
        states = {"running": load.running, "waiting": load.waiting}
        yield make.gauge(
            "requests", "Requests running in the engine, and waiting there or in front of it.", "state", states
        )

    def _tokens(self) -> Iterator[Metric]:
        make, totals = self._families, self._hub.totals
        phases = {"prefill": totals.prefill, "decode": totals.decode}
        yield make.counter("tokens", "Tokens the engine's steps computed, by phase.", "phase", phases)
        yield make.counter("output_tokens", "Tokens handed to requests.", None, {"": totals.output})
        looked_up = {"": totals.prefix_queries}
        yield make.counter("prefix_cache_queried_tokens", "Tokens looked up in the prefix cache.", None, looked_up)
        yield make.counter("prefix_cache_hit_tokens", "Tokens found there.", None, {"": totals.prefix_hits})

    def _engine_now(self, snapshot: Snapshot) -> Iterator[Metric]:
        make = self._families
        yield make.gauge("uptime_seconds", "Since the host started.", None, {"": snapshot.uptime_s})
        states = {name: int(name == snapshot.state.name) for name in get_args(StateName)}
        yield make.gauge("engine_state", "1 for the state the engine is in.", "state", states)
        if (kv := snapshot.kv) is not None:
            pages = {"used": kv.used, "cached": kv.cached, "free": kv.free}
            yield make.gauge("kv_pages", "KV-cache pages by state.", "state", pages)

    def _resident_memory(self) -> Metric:
        memory = GaugeMetricFamily("llmconsole_resident_memory_bytes", "Resident memory of the host and the engine.")
        if (found := self._sampler.process_memory()) is not None and found.value is not None:
            memory.add_metric([], found.value)
        return memory
