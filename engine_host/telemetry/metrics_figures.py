"""Where the time and the money went, as Prometheus counters and gauges: the figures of `engine_host.api.figures`."""

from collections.abc import Iterator, Mapping
from typing import get_args

from prometheus_client.core import Metric

from engine_host.api.figures import Bill, BillPart, CostLine, LedgerStatus, Roofline, StepFigures, Telemetry, Verdict
from engine_host.telemetry.metrics_families import Families, Values


def figure_metrics(telemetry: Telemetry, families: Families) -> Iterator[Metric]:
    """Bill, cost by tier, steps, roofline, what sampling costs, and the ledger if there is one."""
    yield from _bill(telemetry.bill, families)
    yield from _costs(telemetry.costs, families)
    yield from _steps(telemetry.steps, families)
    yield from _roofline(telemetry.roofline, families)
    yield families.gauge("sampler_cpu_ratio", "What reading the devices costs, as a share of one core.", None,
                         {"": telemetry.sampler_cost.value})  # fmt: skip
    if telemetry.ledger is not None:
        yield from _ledger(telemetry.ledger, families)


def _bill(bill: Bill, families: Families) -> Iterator[Metric]:
    yield families.counter("device_seconds", "Device-seconds, by what they went to; every one is in one part.", "part",
                           _by_name(bill.seconds))  # fmt: skip
    yield families.counter("cost_usd", "USD, by what they went to; nothing without a price.", "part",
                           _by_name(bill.usd or {}))  # fmt: skip
    yield families.counter("energy_cost_usd", "USD of these that are for energy.", None, {"": bill.energy_usd})
    price = bill.usd_per_device_hour
    rows = [] if price is None else [("true" if bill.estimated else "false", price)]
    yield families.gauges(
        "price_usd_per_device_hour", "The price; estimated where it is a list price by the device's name.",
        ("estimated",), rows,
    )  # fmt: skip


def _by_name(parts: Mapping[BillPart, float]) -> Values:
    return {str(part): value for part, value in parts.items()}


def _costs(costs: tuple[CostLine, ...], families: Families) -> Iterator[Metric]:
    tiers = {line.name: line for line in costs if line.kind == "tier"}
    yield families.counter("tier_cost_usd", "USD that ended requests have cost, by tier (est.).", "tier",
                           {name: line.usd for name, line in tiers.items()})  # fmt: skip
    yield families.counter(
        "tier_prefix_cache_saved_usd", "USD that computing the cached tokens would have cost, by tier (est.).", "tier",
        {name: line.saved_usd for name, line in tiers.items()},
    )  # fmt: skip
    for what in ("input", "cached", "output"):
        yield families.counter(f"tier_{what}_tokens", f"Tokens ({what}) of ended requests, by tier.", "tier",
                               {name: getattr(line, f"{what}_tokens") for name, line in tiers.items()})  # fmt: skip


def _steps(steps: StepFigures, families: Families) -> Iterator[Metric]:
    yield families.gauge("batch_fill_ratio", "Tokens of the last steps over their token budgets.", None,
                         {"": steps.fill_rate})  # fmt: skip
    shares = {"prefill": steps.prefill_share, "decode": steps.decode_share}
    yield families.gauge("step_time_ratio", "Share of the time of the last steps, by phase.", "phase", shares)
    percentiles = {"p50": steps.step_p50_s, "p99": steps.step_p99_s}
    yield families.gauge("step_seconds", "Durations of the last steps, by percentile.", "percentile", percentiles)
    utilization = {"start": steps.effective_utilization, "now": steps.effective_window}
    yield families.gauge(
        "effective_utilization_ratio",
        "Share of the time in which steps produced tokens: since the host started, and of late.",
        "since",
        utilization,
    )


def _roofline(roofline: Roofline, families: Families) -> Iterator[Metric]:
    phases = {phase.phase: phase for phase in (roofline.prefill, roofline.decode)}
    for name, field, text in (
        ("flops_per_second", "flops_per_s", "FLOP/s computed, by phase (est.)."),
        ("memory_traffic_bytes_per_second", "bytes_per_s", "Bytes/s of device memory traffic, by phase (est.)."),
        ("flops_utilization_ratio", "flops_utilization", "The same over the device's peak, by phase (est.)."),
        ("bandwidth_utilization_ratio", "bandwidth_utilization", "The same over the device's peak, by phase (est.)."),
    ):
        yield families.gauge(name, text, "phase", {phase: getattr(line, field) for phase, line in phases.items()})
    yield families.gauges(
        "bound", "1 for what bounds the phase (est.).", ("phase", "verdict"),
        [(name, each, line.verdict == each) for name, line in phases.items() for each in get_args(Verdict)],
    )  # fmt: skip
    for name, peak, text in (
        ("peak_flops_per_second", roofline.peak_flops, "The device's peak FLOP/s."),
        ("peak_bytes_per_second", roofline.peak_bandwidth, "The device's peak of memory bandwidth."),
    ):
        rows = [] if peak.value is None else [(peak.source, peak.value)]
        yield families.gauges(name, text, ("source",), rows)


def _ledger(ledger: LedgerStatus, families: Families) -> Iterator[Metric]:
    yield families.counter("ledger_rows_written", "Rows of the ledger written.", None, {"": ledger.written})
    yield families.counter("ledger_rows_lost", "Rows of the ledger that could not be written.", None,
                           {"": ledger.lost})  # fmt: skip
    yield families.gauge("ledger_rows_waiting", "Rows that wait to be written.", None, {"": ledger.waiting})
    yield families.gauge("ledger_problem", "1 while the ledger can't be written.", None,
                         {"": int(ledger.problem is not None)})  # fmt: skip
