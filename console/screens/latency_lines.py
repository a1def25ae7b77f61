"""Latencies of groups, the parts of the TTFT, and prefill by prompt length, as lines to show."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from engine_host.api.figures import (
    GroupKind,
    LatencyLine,
    LengthBucket,
    Quantiles,
    TtftParts,
    WindowLatency,
    WindowName,
)
from widgets import palette, units
from widgets.facts import Fact
from widgets.split_bar import SplitPart
from widgets.table import Column, beginning
from widgets.text import one_line

GROUPS: tuple[GroupKind, ...] = ("tier", "key", "profile")
WINDOW_NAMES: dict[WindowName, str] = {"10s": "10 s", "1m": "1 min", "10m": "10 min", "start": "since start"}

_PARTS = (
    ("guard", "g", palette.series(7)),
    ("queue", "q", palette.series(3)),
    ("prefill", "P", palette.series(1)),
    ("first decode", "D", palette.series(0)),
    ("delivery", "d", palette.series(2)),
)
"""In the order they happen, with the letter for a terminal without colours."""


class LatencyRow(NamedTuple):
    """A group in the chosen window."""

    kind: GroupKind
    name: str
    window: WindowLatency | None


def latency_rows(lines: Sequence[LatencyLine], kind: GroupKind, window: WindowName) -> list[LatencyRow]:
    """All requests first, then the groups of one kind in the host's order."""
    wanted = [*(line for line in lines if line.kind == "all"), *(line for line in lines if line.kind == kind)]
    return [
        LatencyRow(line.kind, line.name, next((each for each in line.windows if each.window == window), None))
        for line in wanted
    ]


def _quantile(of: str, which: str) -> Callable[[LatencyRow, int], str]:
    def text(row: LatencyRow, width: int) -> str:
        found: Quantiles | None = getattr(row.window, of, None)
        return units.milliseconds(None if found is None else getattr(found, which), width)

    return text


def _samples(of: str) -> Callable[[LatencyRow, int], str]:
    def text(row: LatencyRow, width: int) -> str:
        found: Quantiles | None = getattr(row.window, of, None)
        return units.count(found.count if found is not None else 0, width)

    return text


def _group(row: LatencyRow, width: int) -> str:
    return "all requests" if row.kind == "all" else beginning(row.name, width) or units.NOT_AVAILABLE


COLUMNS: tuple[Column[LatencyRow], ...] = (
    Column("group", 14, 9, _group, True, widest=32),
    Column("TTFT p50", 8, 7, _quantile("ttft", "p50"), widest=9),
    Column("TTFT p90", 8, 2, _quantile("ttft", "p90"), widest=9),
    Column("TTFT p99", 8, 8, _quantile("ttft", "p99"), widest=9),
    Column("TTL p50", 8, 5, _quantile("ttl", "p50"), widest=9),
    Column("TTL p90", 8, 1, _quantile("ttl", "p90"), widest=9),
    Column("TTL p99", 8, 6, _quantile("ttl", "p99"), widest=9),
    Column("TPOT p50", 8, 4, _quantile("tpot", "p50"), widest=9),
    Column("TPOT p99", 8, 3, _quantile("tpot", "p99"), widest=9),
    Column("requests", 8, 3, _samples("ttft")),
    Column("tokens", 8, 0, _samples("ttl")),
)


def ttft_split(parts: TtftParts | None) -> list[SplitPart]:
    """The parts of the mean TTFT; they add up to it."""
    if parts is None:
        return []
    values = (parts.guard_s, parts.queue_s, parts.prefill_s, parts.first_decode_s, parts.delivery_s)
    return [
        SplitPart(
            name,
            value,
            color,
            letter,
            (units.milliseconds(value), units.percent(value / parts.ttft_s if parts.ttft_s else None)),
        )
        for (name, letter, color), value in zip(_PARTS, values, strict=True)
    ]


def ttft_text(parts: TtftParts | None) -> str:
    """What the bar is the whole of."""
    if parts is None:
        return "n/a: no request with all its parts in this window"
    return f"mean TTFT {units.milliseconds(parts.ttft_s)} over {units.count(parts.count)} requests"


def length_facts(buckets: Sequence[LengthBucket]) -> list[Fact]:
    """p99 of prefill by prompt length; the bars are against the slowest."""
    slowest = max((bucket.prefill.p99 for bucket in buckets if bucket.prefill is not None), default=0.0)
    return [_length(bucket, slowest) for bucket in buckets]


def _length(bucket: LengthBucket, slowest: float) -> Fact:
    above = units.count(bucket.above + 1)
    label = f"{above} and more" if bucket.up_to is None else f"{above}–{units.count(bucket.up_to)}"
    found = bucket.prefill
    if found is None:
        return Fact(one_line(label), units.NOT_AVAILABLE, "no prompt", bar=True, level="unknown")
    note = f"p50 {units.milliseconds(found.p50)} · n {units.count(found.count)}"
    return Fact(label, units.milliseconds(found.p99), note, found.p99 / slowest if slowest else None, True)
