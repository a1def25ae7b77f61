"""The gateway's queue, tiers and breaker as Prometheus gauges and counters."""

from collections.abc import Callable, Iterator

from prometheus_client.core import Metric

from engine_host.api.types import GatewayStatus, TierLine
from engine_host.telemetry.metrics_families import Families

_GAUGES: tuple[tuple[str, str, Callable[[TierLine], float]], ...] = (
    ("tier_requests", "Requests in the engine, by tier.", lambda tier: tier.active),
    ("tier_requests_waiting", "Requests that wait in front of the engine, by tier.", lambda tier: tier.waiting),
    ("tier_shed", "1 while the circuit breaker turns the tier away.", lambda tier: int(tier.shed)),
)

_COUNTERS: tuple[tuple[str, str, Callable[[TierLine], float]], ...] = (
    ("tier_requests_finished", "Requests that ended by themselves, by tier.", lambda tier: tier.finished),
    ("tier_requests_refused", "Requests refused or ended by a rule, by tier.", lambda tier: tier.refused),
    ("tier_requests_set_aside", "Requests set aside for a higher tier, by tier.", lambda tier: tier.checkpointed),
)


def gateway_metrics(gateway: GatewayStatus, families: Families) -> Iterator[Metric]:
    """Lanes, tiers and the breaker."""
    lanes = {lane.name: lane.waiting for lane in gateway.lanes}
    yield families.gauge("queue_requests", "Requests waiting in front of the engine.", "lane", lanes)
    oldest = {lane.name: lane.oldest_s for lane in gateway.lanes}
    yield families.gauge("queue_oldest_seconds", "The longest of the present waits, by lane.", "lane", oldest)
    for name, text, read in _GAUGES:
        yield families.gauge(name, text, "tier", {tier.name: read(tier) for tier in gateway.tiers})
    for name, text, read in _COUNTERS:
        yield families.counter(name, text, "tier", {tier.name: read(tier) for tier in gateway.tiers})
    yield families.gauges(
        "tier_latency_p99_seconds",
        "p99 of TTFT and of TTL over the last minute, by tier.",
        ("tier", "latency"),
        _latencies(gateway, lambda tier: (tier.ttft_p99_s, tier.ttl_p99_s)),
    )
    yield families.gauges(
        "tier_latency_target_seconds",
        "What the profile wants these to be at most.",
        ("tier", "latency"),
        _latencies(gateway, lambda tier: (tier.ttft_target_s, tier.ttl_target_s)),
    )
    states = {name: int(name == gateway.breaker.state) for name in ("closed", "open", "half-open")}
    yield families.gauge("breaker_state", "1 for the state the circuit breaker is in.", "state", states)


def _latencies(
    gateway: GatewayStatus, read: Callable[[TierLine], tuple[float | None, float | None]]
) -> Iterator[tuple[str | float, ...]]:
    for tier in gateway.tiers:
        for latency, seconds in zip(("ttft", "ttl"), read(tier), strict=True):
            if seconds is not None:
                yield tier.name, latency, seconds
