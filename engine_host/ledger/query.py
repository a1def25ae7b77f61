"""Questions to the ledger: which requests, and what groups of them used, cost and waited."""

import re
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

import msgspec

from engine_host.ledger.columns import REQUESTS, TEXT_COLUMNS, Cell
from engine_host.ledger.file import LedgerError, mapping, open_to_read, why
from engine_host.telemetry.sketch import Sketch

GroupBy = Literal["all", "tier", "key", "model", "profile", "hour", "day"]
GROUPS: tuple[GroupBy, ...] = get_args(GroupBy)

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}
SPANS_S: dict[str, int] = {"hour": 3600, "day": 86_400}

USD = "(cost_prefill_usd + cost_decode_usd + cost_memory_usd)"
"""What a request cost; NULL without a price."""

CACHED = "coalesce(cached_tokens, 0)"
INPUT = f"CASE WHEN ttft_s IS NULL THEN 0 ELSE max(0, prompt_tokens - {CACHED}) END"
"""Prompt tokens that were computed; none where the request ended before its first token."""

MEMORY_USD = f"coalesce(cost_memory_usd / nullif({INPUT} + {CACHED} + output_tokens, 0), 0)"
"""What each token of a request pays for the memory it held."""

P99_RANK = "(99 * n + 99) / 100"
"""Nearest rank: the smallest value that at least 99 % of the n values don't exceed, in whole numbers."""


@dataclass(frozen=True)
class Filters:
    """Which requests: from `since` on and before `until` (Unix times), of these names, that cost at least `min_usd`.
    `id` is the engine's or the client's."""

    since: float | None = None
    until: float | None = None
    tier: str | None = None
    key: str | None = None
    model: str | None = None
    profile: str | None = None
    finish: str | None = None
    min_usd: float | None = None
    id: str | None = None

    @property
    def of_requests_only(self) -> bool:
        """Whether minutes, which are of all requests, can't tell what is asked for."""
        return any(each is not None for each in (self.tier, self.key, self.finish, self.min_usd, self.id))

    def where(self) -> tuple[str, list[Cell]]:
        """The condition of a statement, and its values."""
        conditions: dict[str, Cell] = {
            "time >= ?": self.since,
            "time < ?": self.until,
            "tier = ?": self.tier,
            "key = ?": self.key,
            "model = ?": self.model,
            "profile = ?": self.profile,
            "finish_reason = ?": self.finish,
            f"{USD} >= ?": self.min_usd,
            "? IN (id, request_id)": self.id,
        }
        given = {condition: value for condition, value in conditions.items() if value is not None}
        return " AND ".join(given) or "1", list(given.values())


class GroupLine(msgspec.Struct, frozen=True):
    """What the requests of a group used, cost and waited. `group` is a name, or an hour's or day's beginning in UTC.

    `input_tokens` are those computed for prompts, `cached_tokens` those found in the prefix cache. `usd` is the sum
    over the requests that have a price, and `unpriced` counts the others, refused ones aside; what is per request or
    token is over the priced ones alone, split over tokens as in `CostLine`: prefill to input, decode to output, memory
    to all three kinds alike. `saved_usd` is estimated. `ttft_p99_s` is over the requests; `ttl_p99_s` over the tokens,
    from the minutes' sketches: `None` where a group is no sum of minutes (tier, key); `request_ttl_p99_s` is what the
    TTL p99 of 99 % of the requests doesn't exceed.
    """

    group: str
    requests: int
    aborted: int
    failed: int
    refused: int
    input_tokens: int
    cached_tokens: int
    output_tokens: int
    usd: float | None
    unpriced: int
    saved_usd: float | None
    usd_per_thousand_requests: float | None
    usd_per_million_input: float | None
    usd_per_million_cached: float | None
    usd_per_million_output: float | None
    ttft_p99_s: float | None
    ttl_p99_s: float | None
    request_ttl_p99_s: float | None


def groups(connection: sqlite3.Connection, by: GroupBy, filters: Filters) -> list[GroupLine]:
    """One line a group: hours and days in their order, others the dearest first."""
    where, values = filters.where()
    rows = connection.execute(
        f"""
        WITH each AS (
          SELECT {_group(by)} AS group_, finish_reason, cost_saved_usd, {USD} AS usd, output_tokens AS output,
            {INPUT} AS input, {CACHED} AS cached, cost_prefill_usd AS prefill, cost_decode_usd AS decode,
            {MEMORY_USD} AS memory
          FROM requests WHERE {where}
        )
        SELECT group_, count(*) AS requests, sum(finish_reason = 'abort') AS aborted,
          sum(finish_reason = 'error') AS failed, sum(finish_reason = 'refused') AS refused,
          sum(input) AS input_tokens, sum(cached) AS cached_tokens, sum(output) AS output_tokens,
          sum(usd) AS usd, sum(finish_reason != 'refused' AND usd IS NULL) AS unpriced,
          sum(cost_saved_usd) AS saved_usd,
          sum(usd) * 1e3 / count(usd) AS usd_per_thousand_requests,
          {_per_million("prefill + memory * input", "input")} AS usd_per_million_input,
          {_per_million("memory * cached", "cached")} AS usd_per_million_cached,
          {_per_million("decode + memory * output", "output")} AS usd_per_million_output
        FROM each GROUP BY group_
        ORDER BY {"group_" if by in SPANS_S else "usd DESC NULLS LAST, requests DESC, group_"}
        """,
        values,
    ).fetchall()
    ttft, request_ttl = (_p99(connection, column, by, filters) for column in ("ttft_s", "ttl_p99_s"))
    ttl = {} if by in ("tier", "key") or filters.of_requests_only else _token_p99(connection, by, filters)
    lines = []
    for row in map(mapping, rows):
        name = row["group_"]
        waited = {"ttft_p99_s": ttft.get(name), "ttl_p99_s": ttl.get(name), "request_ttl_p99_s": request_ttl.get(name)}
        lines.append(msgspec.convert({**row, "group": _name(name, by), **waited}, GroupLine))
    return lines


def requests(
    connection: sqlite3.Connection, filters: Filters, limit: int, dearest: bool = False
) -> list[dict[str, Cell]]:
    """The latest requests first, or the dearest; their columns without what people wrote, and `usd`, what they cost."""
    where, values = filters.where()
    columns = ", ".join(name for name in REQUESTS.names if name not in TEXT_COLUMNS)
    order = "usd DESC NULLS LAST, time DESC" if dearest else "time DESC, rowid DESC"
    statement = f"SELECT {columns}, {USD} AS usd FROM requests WHERE {where} ORDER BY {order} LIMIT ?"
    return [mapping(row) for row in connection.execute(statement, [*values, limit])]


@contextmanager
def reading(path: Path) -> Iterator[sqlite3.Connection]:
    """The ledger at `path` to ask; whatever is wrong with it is a `LedgerError`."""
    connection = open_to_read(path)
    try:
        yield connection
    except sqlite3.Error as problem:
        raise LedgerError(f"The ledger can't be read: {why(path, problem)}.") from problem
    finally:
        connection.close()


def moment(text: str, now: float) -> float:
    """The Unix time meant by `24h` or `7d` (that long before `now`) or by `2026-12-31`, `2026-12-31T18:00`; UTC unless
    an offset is given. Raises `ValueError` for anything else."""
    if match := re.fullmatch(r"(\d{1,6})([smhdw])", text):
        return now - int(match[1]) * UNITS_S[match[2]]
    given = datetime.fromisoformat(text)
    return (given if given.tzinfo else given.replace(tzinfo=UTC)).timestamp()


def _group(by: GroupBy) -> str:
    if by == "all":
        return "''"
    return f"CAST(time / {SPANS_S[by]} AS INTEGER) * {SPANS_S[by]}" if by in SPANS_S else by


def _per_million(usd: str, tokens: str) -> str:
    """USD per million tokens of the requests that have a price; NULL without such tokens."""
    return f"sum({usd}) FILTER (WHERE usd IS NOT NULL) * 1e6 / nullif(sum({tokens}) FILTER (WHERE usd IS NOT NULL), 0)"


def _name(value: Cell, by: GroupBy) -> str:
    if by not in SPANS_S:
        return str(value)
    return datetime.fromtimestamp(float(value or 0), UTC).strftime("%Y-%m-%d" if by == "day" else "%Y-%m-%dT%H:%MZ")


def _p99(connection: sqlite3.Connection, column: str, by: GroupBy, filters: Filters) -> dict[Cell, float]:
    """The 99th percentile of a column by group: exact."""
    where, values = filters.where()
    ranked = f"""
        SELECT {_group(by)} AS group_, {column} AS value, count(*) OVER (PARTITION BY {_group(by)}) AS n,
          row_number() OVER (PARTITION BY {_group(by)} ORDER BY {column}) AS rank_
        FROM requests WHERE {where} AND {column} IS NOT NULL
    """
    return dict(connection.execute(f"SELECT group_, value FROM ({ranked}) WHERE rank_ = {P99_RANK}", values).fetchall())


def _token_p99(connection: sqlite3.Connection, by: GroupBy, filters: Filters) -> dict[Cell, float]:
    """The 99th percentile of the tokens' TTL by group, from the minutes."""
    where, values = filters.where()
    merged: dict[Cell, Sketch] = {}
    for name, raw in connection.execute(f"SELECT {_group(by)}, ttl FROM minutes WHERE {where}", values):
        merged.setdefault(name, Sketch()).merge(sketch_of(raw))
    return {name: found[0] for name, sketch in merged.items() if (found := sketch.quantiles([0.99]))}


def sketch_of(raw: bytes) -> Sketch:
    """A minute's sketch; empty where it has none. Raises `LedgerError` for bytes that are no sketch."""
    try:
        return Sketch.from_bytes(raw) if raw else Sketch()
    except ValueError as problem:
        raise LedgerError(f"A minute of the ledger can't be read. {problem}") from problem
