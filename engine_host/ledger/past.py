"""The ledger's minutes as points of a plot."""

import sqlite3
from collections.abc import Iterable
from contextlib import closing
from pathlib import Path

from engine_host.api.figures import BILL_PARTS
from engine_host.api.types import HistoryPoint
from engine_host.ledger.file import LedgerError, mapping, open_to_read, why
from engine_host.telemetry.accounts import REQUEST_PARTS

MINUTE_S = 60.0

MOST_POINTS = 4000
"""Points of one answer at most: no screen has more columns to draw them in; some 66 hours."""


def _sum(bill: str, parts: Iterable[str]) -> str:
    return f"({' + '.join(f'coalesce({bill}_{part}, 0.0)' for part in parts)})"


def _of_bill(parts: Iterable[str]) -> tuple[str, str]:
    return _sum("usd", parts), _sum("seconds", parts)


USD, SECONDS = _of_bill(BILL_PARTS)
CHARGED_USD, CHARGED_SECONDS = _of_bill(REQUEST_PARTS)
PRICED = f"coalesce({', '.join(f'usd_{part}' for part in BILL_PARTS)}) IS NOT NULL"

# Computed by SQLite, outside of the interpreter's lock: a record a row would hold the event loop up.
POINT = {
    "time": "time",
    "ttft_p50": "ttft_p50",
    "ttft_p99": "ttft_p99",
    "ttl_p50": "ttl_p50",
    "ttl_p99": "ttl_p99",
    "prefill_tps": f"prefill_tokens / {MINUTE_S}",
    "decode_tps": f"decode_tokens / {MINUTE_S}",
    "running": "CAST(round(running) AS INTEGER)",
    "waiting": "CAST(round(waiting) AS INTEGER)",
    "kv_used": "kv_used",
    "utilization": "utilization",
    "span_s": str(MINUTE_S),
    "power": "power_w",
    "memory_used": "memory_used",
    "fill_rate": "fill_rate",
    "usd_per_hour": f"CASE WHEN {PRICED} THEN {USD} * {3600 / MINUTE_S} END",
    # Where nothing was paid, time tells the share.
    "attributed": f"CASE WHEN {USD} > 0 THEN {CHARGED_USD} / {USD} ELSE {CHARGED_SECONDS} / {SECONDS} END",
}
"""The fields of a `HistoryPoint` from the columns of a minute: tokens per second over it, USD per hour at its pace, the
share of the bill that requests were charged; NULL, and so `None`, where nothing was billed."""

STATEMENT = (
    f"SELECT {', '.join(f'{of} AS {name}' for name, of in POINT.items())} FROM minutes "
    "WHERE minutes.time >= ? AND minutes.time < ? ORDER BY minutes.time DESC LIMIT ?"
)


def minutes(path: Path, since: float, until: float, limit: int = MOST_POINTS) -> list[HistoryPoint]:
    """The latest `limit` minutes that began from `since` on and before `until` (Unix times), oldest first.

    Raises `LedgerError` where the file can't be read.
    """
    with closing(open_to_read(path)) as connection:
        try:
            rows = connection.execute(STATEMENT, (since, until, limit)).fetchall()
        except sqlite3.Error as problem:
            raise LedgerError(f"The ledger can't be read: {why(path, problem)}.") from problem
    return [HistoryPoint(**mapping(row)) for row in reversed(rows)]  # type: ignore[arg-type]
