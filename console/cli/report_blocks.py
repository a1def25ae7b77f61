"""What a report says: the blocks of its page. What isn't known is n/a; what is estimated says est."""

from collections.abc import Callable, Iterator, Sequence
from datetime import UTC, datetime
from typing import Any

from console.cli import report_charts as charts
from console.cli.ledger import spent
from console.cli.report_page import Block, Grid, Heading, Words
from engine_host.api.figures import BILL_PARTS
from engine_host.ledger.query import GroupLine
from engine_host.ledger.summary import HOUR_S, Summary, Sums
from widgets.units import NOT_AVAILABLE, count, duration, milliseconds, percent, usd

Quantiles = tuple[float, ...] | None

MOST_BARS = 10
J_PER_KWH = 3.6e6

PART_WORDS = {
    "prefill": "prefill: computing prompts",
    "decode": "decode: producing tokens",
    "memory": "memory: pages held",
    "scheduling": "scheduling: choosing steps and taking them in",
    "io": "I/O: between two steps though requests are there",
    "idle": "idle: nothing to do",
    "down": "down: no engine",
}


def blocks(summary: Summary, made: str) -> list[Block]:
    """The whole report, in its order; `made` says when it was made."""
    return [
        Heading("llmconsole report", 1),
        Words(f"{_time(summary.since)} to {_time(summary.until)} UTC. Made {made}. {_coverage(summary)}"),
        *_key_figures(summary),
        *_cost(summary),
        *_latency(summary),
        *_device(summary),
        *_dearest(summary),
        *_trouble(summary),
    ]


def _coverage(summary: Summary) -> str:
    minutes = round((summary.until - summary.since) / 60)
    return (
        f"The ledger has {count(summary.whole.minutes)} of {count(max(minutes, summary.whole.minutes))} minutes of it."
    )


def _key_figures(summary: Summary) -> Iterator[Block]:
    total, whole = summary.total, summary.whole
    est = "est. " if whole.estimated else ""
    hit_ratio = whole.cached_tokens / whole.queried_tokens if whole.queried_tokens else None
    rows: list[tuple[str, str]] = [
        ("Requests ended", count(total.requests if total else 0)),
        (
            "of them aborted / failed / refused",
            f"{total.aborted} / {total.failed} / {total.refused}" if total else "0 / 0 / 0",
        ),
        ("Prompt tokens computed", count(total.input_tokens if total else None)),
        ("Prompt tokens found in the prefix cache", count(total.cached_tokens if total else None)),
        ("Output tokens", count(total.output_tokens if total else None)),
        ("Devices cost", _money(whole.total_usd, est)),
        ("of it charged to requests", _money(whole.charged_usd, est)),
        ("What idle time cost", _money((whole.usd or {}).get("idle"), est)),
        ("What it cost to be down", _money((whole.usd or {}).get("down"), est)),
        ("Price of a device-hour", _money(_price(whole), est)),
        ("Per 1M output tokens, idle time and all", _money(whole.usd_per_million_output, est)),
        ("Per 1M output tokens, as charged to requests", _money(total.usd_per_million_output if total else None, est)),
        ("Per 1 000 requests, as charged", _money(total.usd_per_thousand_requests if total else None, est)),
        ("Prefix cache: tokens found of those looked up", percent(hit_ratio)),
        ("What the prefix cache saved", _money(total.saved_usd if total else None, "est. ")),
        ("TTFT p50 / p99", _pair(whole.ttft.quantiles((0.5, 0.99)))),
        ("TTL p50 / p99", _pair(whole.ttl.quantiles((0.5, 0.99)))),
        ("Energy", _energy(whole)),
    ]
    yield Heading("Key figures")
    yield Grid(("Figure", "Value"), rows, ("Value",))
    if total and total.unpriced:
        yield Words(f"{count(total.unpriced)} of the requests have no price, and are in no cost.")
    if whole.unpriced_s:
        yield Words(f"{duration(whole.unpriced_s)} of device time have no price, and are in no cost.")


def _cost(summary: Summary) -> Iterator[Block]:
    yield Heading("Cost")
    whole, hours = summary.whole, summary.hours
    est = " (est.)" if whole.estimated else ""
    if hours and whole.usd is not None:
        yield charts.stack(
            "cost-by-hour",
            "What the devices cost by hour, split into the parts of the bill",
            f"USD{est}",
            [hour.time for hour in hours],
            {part: [(hour.usd or {}).get(part, 0.0) for hour in hours] for part in BILL_PARTS},
            HOUR_S,
        )
    elif hours:
        yield Words("Cost n/a: no price is known for this time. Device time stands in its place.")
        yield charts.stack(
            "time-by-hour",
            "Device time by hour, split into the parts of the bill",
            "device-seconds",
            [hour.time for hour in hours],
            {part: [hour.seconds[part] for hour in hours] for part in BILL_PARTS},
            HOUR_S,
        )
    spent = sum(whole.seconds.values())
    yield Grid(
        ("Part", "Device time", "Share", f"Cost{est}"),
        [
            (
                PART_WORDS[part],
                duration(seconds),
                percent(seconds / spent if spent else None),
                usd((whole.usd or {}).get(part)),
            )
            for part, seconds in whole.seconds.items()
        ],
        ("Device time", "Share", f"Cost{est}"),
    )
    for name, lines in (("tier", summary.tiers), ("key", summary.keys)):
        yield from _group(name, lines, est)
    if any(hour.usd_per_million_output is not None for hour in hours):
        yield charts.lines(
            "cost-of-output",
            "USD per 1M output tokens by hour, idle time and all",
            f"USD{est}",
            {"all": [(hour.time, hour.usd_per_million_output) for hour in hours]},
            HOUR_S,
        )


def _group(name: str, lines: Sequence[GroupLine], est: str) -> Iterator[Block]:
    priced = {line.group or "–": line.usd for line in lines[:MOST_BARS] if line.usd is not None}
    if priced:
        yield charts.bars(f"cost-by-{name}", f"What requests were charged, by {name}", f"USD{est}", priced)
    if lines:
        yield _table(
            lines[:MOST_BARS],
            {
                name.capitalize(): lambda line: line.group or "–",
                "Requests": lambda line: count(line.requests),
                "Output tokens": lambda line: count(line.output_tokens),
                f"Cost{est}": spent,
                f"Per 1 000 requests{est}": lambda line: usd(line.usd_per_thousand_requests),
                f"Per 1M output{est}": lambda line: usd(line.usd_per_million_output),
                "TTFT p99": lambda line: milliseconds(line.ttft_p99_s),
            },
            1,
        )
    if len(lines) > MOST_BARS:
        yield Words(f"{len(lines) - MOST_BARS} more are not shown: llmconsole ledger query --by {name}")


def _latency(summary: Summary) -> Iterator[Block]:
    yield Heading("Latency")
    marks = [(event.time, f"{event.kind}: {event.new}"[:40]) for event in summary.events]
    kinds: dict[str, tuple[str, Callable[[Sums], Quantiles]]] = {
        "ttft": ("Time to first token", lambda bucket: bucket.ttft.quantiles((0.5, 0.99))),
        "ttl": ("Token-to-token latency, per token", lambda bucket: bucket.ttl.quantiles((0.5, 0.99))),
    }
    for name, (title, quantiles) in kinds.items():
        found = [(bucket.time, quantiles(bucket)) for bucket in summary.buckets]
        if not any(values for _, values in found):
            yield Words(f"{title}: n/a, no token was produced in that time.")
            continue
        yield charts.lines(
            name,
            f"{title}, p50 and p99 of each {duration(summary.span_s)}; changes of the engine are marked",
            "ms",
            {
                label: [(time, values[rank] * 1e3 if values else None) for time, values in found]
                for rank, label in enumerate(("p50", "p99"))
            },
            summary.span_s,
            marks,
        )
    if summary.events:
        yield _table(
            summary.events,
            {
                "Time (UTC)": lambda event: _time(event.time),
                "Change": lambda event: event.kind,
                "From": lambda event: event.old,
                "To": lambda event: event.new,
                "Why": lambda event: event.why,
                "Outcome": lambda event: event.outcome,
                "Without tokens for": lambda event: duration(event.stalled_s),
            },
            6,
        )


def _device(summary: Summary) -> Iterator[Block]:
    yield Heading("Device")
    label = " / ".join(summary.utilization_labels) or "utilization"
    for name, title in (("kv_used", "KV cache in use"), ("utilization", f"Device utilization ({label})")):
        points = [
            (bucket.time, None if (share := bucket.mean(name)) is None else share * 100) for bucket in summary.buckets
        ]
        if any(value is not None for _, value in points):
            yield charts.lines(
                name,
                f"{title}, mean of each {duration(summary.span_s)}",
                "%",
                {title: points},
                summary.span_s,
                most=100,
            )
        else:
            yield Words(f"{title}: n/a")
    powers = [(bucket.time, bucket.mean("power_w")) for bucket in summary.buckets]
    if any(value is not None for _, value in powers):
        yield charts.lines(
            "power", f"Power, mean of each {duration(summary.span_s)}", "W", {"power": powers}, summary.span_s
        )
    else:
        yield Words("Power: n/a")


def _dearest(summary: Summary) -> Iterator[Block]:
    yield Heading(f"The {len(summary.dearest)} dearest requests" if summary.dearest else "The dearest requests")
    if not summary.dearest:
        yield Words("No request ended in that time.")
        return
    yield _table(
        summary.dearest,
        {
            "Time (UTC)": lambda row: _time(row["time"]),
            "Id": lambda row: row["id"],
            "Tier": lambda row: row["tier"] or "–",
            "Key": lambda row: row["key"] or "–",
            "End": lambda row: row["finish_reason"],
            "Prompt": lambda row: count(row["prompt_tokens"]),
            "Cached": lambda row: count(row["cached_tokens"]),
            "Output": lambda row: count(row["output_tokens"]),
            "TTFT": lambda row: milliseconds(row["ttft_s"]),
            "Total": lambda row: duration(row["total_s"]),
            f"Cost{' (est.)' if summary.whole.estimated else ''}": lambda row: usd(row["usd"]),
        },
        5,
    )


def _trouble(summary: Summary) -> Iterator[Block]:
    yield Heading("Errors and refusals")
    if not summary.errors:
        yield Words("None.")
        return
    yield Grid(
        ("What clients were told", "Times"), [(text, count(times)) for text, times in summary.errors], ("Times",)
    )


def _table(items: Sequence[Any], columns: dict[str, Callable[[Any], str]], first_number: int) -> Grid:
    """A table of things; the columns from `first_number` on are numbers."""
    headings = tuple(columns)
    return Grid(headings, [[text(item) for text in columns.values()] for item in items], headings[first_number:])


def _price(whole: Sums) -> float | None:
    """Mean price of a device-hour, of the time that has one."""
    hours = (sum(whole.seconds.values()) - whole.unpriced_s) / HOUR_S
    return whole.total_usd / hours if whole.total_usd is not None and hours > 0 else None


def _money(amount: float | None, est: str) -> str:
    return NOT_AVAILABLE if amount is None else f"{est}{usd(amount)}"


def _pair(values: Sequence[float] | None) -> str:
    return " / ".join(map(milliseconds, values)) if values else NOT_AVAILABLE


def _energy(whole: Sums) -> str:
    if whole.energy_j is None:
        return NOT_AVAILABLE
    known = "" if whole.energy_minutes == whole.minutes else f" (known for {count(whole.energy_minutes)} minutes)"
    return f"{whole.energy_j / J_PER_KWH:.3g} kWh{known}"


def _time(moment: float) -> str:
    return f"{datetime.fromtimestamp(moment, UTC):%Y-%m-%d %H:%M}"
