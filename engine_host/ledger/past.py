"""The ledger's minutes as points of a plot."""

import sqlite3
from contextlib import closing
from pathlib import Path

from engine_host.api.records import MinuteRecord
from engine_host.api.types import HistoryPoint
from engine_host.ledger.columns import MINUTES
from engine_host.ledger.file import LedgerError, columns_in, mapping, open_to_read, why
from engine_host.telemetry.accounts import REQUEST_PARTS

MINUTE_S = 60.0

MOST_POINTS = 4000
"""Points of one answer at most: no screen has more columns to draw them in; some 66 hours."""


def minutes(path: Path, since: float, until: float, limit: int = MOST_POINTS) -> list[HistoryPoint]:
    """The latest `limit` minutes that began from `since` on and before `until` (Unix times), oldest first.

    Raises `LedgerError` where the file can't be read.
    """
    with closing(open_to_read(path)) as connection:
        try:
            # The sketches are most of a row, and no plot needs them.
            names = [name for name in columns_in(connection, MINUTES) if name not in ("ttft", "ttl")]
            rows = connection.execute(
                f"SELECT {', '.join(names)}, x'' AS ttft, x'' AS ttl FROM minutes WHERE time >= ? AND time < ? "
                "ORDER BY time DESC LIMIT ?",
                (since, until, limit),
            ).fetchall()
        except sqlite3.Error as problem:
            raise LedgerError(f"The ledger can't be read: {why(path, problem)}.") from problem
    return [point(MINUTES.record(mapping(row))) for row in reversed(rows)]


def point(minute: MinuteRecord) -> HistoryPoint:
    """A minute for a plot: tokens per second over it, USD per hour at its pace, and the share charged to requests."""
    bill = minute.usd if minute.usd is not None and sum(minute.usd.values()) > 0 else minute.seconds
    whole = sum(bill.values())
    return HistoryPoint(
        time=minute.time,
        ttft_p50=minute.ttft_p50,
        ttft_p99=minute.ttft_p99,
        ttl_p50=minute.ttl_p50,
        ttl_p99=minute.ttl_p99,
        prefill_tps=minute.prefill_tokens / MINUTE_S,
        decode_tps=minute.decode_tokens / MINUTE_S,
        running=round(minute.running),
        waiting=round(minute.waiting),
        kv_used=minute.kv_used,
        utilization=minute.utilization,
        span_s=MINUTE_S,
        power=minute.power_w,
        memory_used=minute.memory_used,
        fill_rate=minute.fill_rate,
        usd_per_hour=sum(minute.usd.values()) / MINUTE_S * 3600 if minute.usd is not None else None,
        attributed=sum(bill.get(part, 0.0) for part in REQUEST_PARTS) / whole if whole > 0 else None,
    )
