"""The data behind the screens, as CSV (RFC 4180): a header with units, an empty cell for what isn't known."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime

from engine_host.api.types import HistoryPoint, RequestRow

HISTORY_COLUMNS = {
    "time": "time_unix_s",
    "span_s": "span_s",
    "ttft_p50": "ttft_p50_s",
    "ttft_p99": "ttft_p99_s",
    "ttl_p50": "ttl_p50_s",
    "ttl_p99": "ttl_p99_s",
    "prefill_tps": "prefill_tokens_per_s",
    "decode_tps": "decode_tokens_per_s",
    "running": "running_requests",
    "waiting": "waiting_requests",
    "kv_used": "kv_pages_used_fraction",
    "utilization": "device_utilization_fraction",
    "power": "device_power_w",
    "memory_used": "device_memory_used_bytes",
    "fill_rate": "batch_fill_fraction",
    "usd_per_hour": "paid_usd_per_hour",
    "attributed": "charged_to_requests_fraction",
}
"""Header of each field of a `HistoryPoint`, with its unit."""
REQUEST_COLUMNS = {
    "id": "id",
    "state": "state",
    "tier": "tier",
    "key": "key",
    "lane": "lane",
    "prompt_tokens": "prompt_tokens",
    "cached_tokens": "cached_tokens",
    "output_tokens": "output_tokens",
    "max_tokens": "max_tokens",
    "age_s": "age_s",
    "waited_s": "waited_s",
    "ttft_s": "ttft_s",
    "ttl_p99_s": "ttl_p99_s",
    "pages": "pages",
    "cost_usd": "cost_est_usd",
}
"""Header of each field of a `RequestRow`, with its unit."""


def history_csv(points: Sequence[HistoryPoint]) -> str:
    """One line a point, oldest first, with its time also in ISO 8601 (UTC)."""
    rows = ([_iso(point.time), *_cells(point, HISTORY_COLUMNS)] for point in points)
    return _csv(["time_iso", *HISTORY_COLUMNS.values()], rows)


def requests_csv(rows: Sequence[RequestRow]) -> str:
    """One line a request, in the order given."""
    return _csv(list(REQUEST_COLUMNS.values()), (_cells(row, REQUEST_COLUMNS) for row in rows))


def _cells(row: object, columns: Mapping[str, str]) -> list[object]:
    return [getattr(row, field) for field in columns]  # the writer leaves None empty


def _csv(header: list[str], rows: Iterable[list[object]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out)
    writer.writerow(header)
    writer.writerows(rows)
    return out.getvalue()


def _iso(unix: float) -> str:
    return datetime.fromtimestamp(unix, UTC).isoformat().replace("+00:00", "Z")
