"""What a report says of a span of time: the bill, the groups, latencies and device over it, the dearest requests."""

import math
import sqlite3
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from engine_host.api.figures import BILL_PARTS
from engine_host.api.records import EventRecord, MinuteRecord
from engine_host.ledger.columns import EVENTS, MINUTES, Cell
from engine_host.ledger.file import mapping
from engine_host.ledger.past import MINUTE_S
from engine_host.ledger.query import Filters, GroupLine, groups, requests, sketch_of
from engine_host.telemetry.accounts import REQUEST_PARTS
from engine_host.telemetry.sketch import Sketch

HOUR_S = 3600

MOST_BUCKETS = 300
"""Points of a line at most: more can't be told apart in a chart."""

DEAREST = 10
MOST_ERRORS = 10


@dataclass
class Sums:
    """The minutes of a bucket or an hour together; money is of the minutes that have a price, `unpriced_s` the
    device-seconds of the others. Energy in joules, over `energy_minutes`."""

    time: float
    minutes: int = 0
    seconds: dict[str, float] = field(default_factory=lambda: dict.fromkeys(BILL_PARTS, 0.0))
    usd: dict[str, float] | None = None
    priced_output: int = 0
    unpriced_s: float = 0.0
    output_tokens: int = 0
    cached_tokens: int = 0
    queried_tokens: int = 0
    energy_j: float | None = None
    energy_minutes: int = 0
    estimated: bool = False
    ttft: Sketch = field(default_factory=Sketch)
    ttl: Sketch = field(default_factory=Sketch)
    _means: dict[str, list[float]] = field(default_factory=dict)

    def add(self, minute: MinuteRecord) -> None:
        """Take in one more minute."""
        self.minutes += 1
        for part, seconds in minute.seconds.items():
            self.seconds[part] += seconds
        if minute.usd is None:
            self.unpriced_s += sum(minute.seconds.values())
        else:
            paid = self.usd or dict.fromkeys(BILL_PARTS, 0.0)
            self.usd = {part: usd + minute.usd.get(part, 0.0) for part, usd in paid.items()}
            self.priced_output += minute.output_tokens
            self.estimated |= minute.price_estimated
        self.output_tokens += minute.output_tokens
        self.cached_tokens += minute.cached_tokens
        self.queried_tokens += minute.queried_tokens
        if minute.energy_j is not None:
            self.energy_j = (self.energy_j or 0.0) + minute.energy_j
            self.energy_minutes += 1
        self.ttft.merge(sketch_of(minute.ttft))
        self.ttl.merge(sketch_of(minute.ttl))
        for name in ("kv_used", "utilization", "power_w"):
            value = getattr(minute, name)
            if value is not None:
                self._means.setdefault(name, []).append(value)

    def mean(self, name: str) -> float | None:
        """The mean of `kv_used`, `utilization` or `power_w` over the minutes that have it."""
        values = self._means.get(name)
        return sum(values) / len(values) if values else None

    @property
    def total_usd(self) -> float | None:
        """What the priced minutes cost."""
        return None if self.usd is None else sum(self.usd.values())

    @property
    def charged_usd(self) -> float | None:
        """What of it requests were charged."""
        return None if self.usd is None else sum(self.usd[part] for part in REQUEST_PARTS)

    @property
    def usd_per_million_output(self) -> float | None:
        """All that was paid, idle time too, over the tokens produced for it."""
        return self.total_usd / self.priced_output * 1e6 if self.total_usd is not None and self.priced_output else None


@dataclass(frozen=True)
class Summary:
    """From `since` to `until` (Unix times). `whole` are all minutes, `hours` the same by hour, `buckets` by `span_s`
    seconds; `total` is of all requests, `None` if none ended. `errors` are sentences and how often they were told."""

    since: float
    until: float
    total: GroupLine | None
    tiers: Sequence[GroupLine]
    keys: Sequence[GroupLine]
    whole: Sums
    hours: Sequence[Sums]
    buckets: Sequence[Sums]
    span_s: float
    utilization_labels: Sequence[str]
    events: Sequence[EventRecord]
    dearest: Sequence[dict[str, Cell]]
    errors: Sequence[tuple[str, int]]


def summarize(connection: sqlite3.Connection, since: float, until: float) -> Summary:
    """Read what the ledger has of that time. Raises `LedgerError` or `sqlite3.Error` where it can't be read."""
    filters = Filters(since, until)
    span_s = MINUTE_S * max(1, math.ceil((until - since) / MINUTE_S / MOST_BUCKETS))
    whole, hours, buckets = Sums(since), _Row(HOUR_S), _Row(span_s)
    labels: set[str] = set()
    for minute in _minutes(connection, since, until):
        for sums in (whole, hours.of(minute.time), buckets.of(minute.time)):
            sums.add(minute)
        if minute.utilization is not None:
            labels.add(minute.utilization_label)
    total = groups(connection, "all", filters)
    return Summary(
        since,
        until,
        total[0] if total else None,
        groups(connection, "tier", filters),
        groups(connection, "key", filters),
        whole,
        hours.sums,
        buckets.sums,
        span_s,
        sorted(labels),
        _events(connection, since, until),
        requests(connection, filters, DEAREST, dearest=True),
        _errors(connection, since, until),
    )


class _Row:
    """Sums side by side, each of `span_s` seconds, for minutes that come in their order."""

    def __init__(self, span_s: float) -> None:
        self._span_s = span_s
        self.sums: list[Sums] = []

    def of(self, time: float) -> Sums:
        begin = time - time % self._span_s
        if not self.sums or self.sums[-1].time != begin:
            self.sums.append(Sums(begin))
        return self.sums[-1]


def _minutes(connection: sqlite3.Connection, since: float, until: float) -> Iterator[MinuteRecord]:
    rows = connection.execute("SELECT * FROM minutes WHERE time >= ? AND time < ? ORDER BY time", (since, until))
    return (MINUTES.record(mapping(row)) for row in rows)


def _events(connection: sqlite3.Connection, since: float, until: float) -> list[EventRecord]:
    rows = connection.execute("SELECT * FROM events WHERE time >= ? AND time < ? ORDER BY time", (since, until))
    return [EVENTS.record(mapping(row)) for row in rows]


def _errors(connection: sqlite3.Connection, since: float, until: float) -> list[tuple[str, int]]:
    statement = (
        "SELECT error, count(*) FROM requests WHERE time >= ? AND time < ? AND error IS NOT NULL "
        f"GROUP BY error ORDER BY count(*) DESC, error LIMIT {MOST_ERRORS}"
    )
    return [(str(error), int(count)) for error, count in connection.execute(statement, (since, until))]
