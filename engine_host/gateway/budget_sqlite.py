"""Budgets in a SQLite file: the embedded store. Exact also with several processes on one file."""

import time
from collections.abc import Callable, Sequence
from functools import cache
from pathlib import Path

from engine_host.gateway.budget_limits import Counter, Counts
from engine_host.gateway.budget_store import SqliteFile
from engine_host.gateway.budget_windows import WindowBudgets

SCHEMA = """
CREATE TABLE IF NOT EXISTS counts (
  scope TEXT NOT NULL, seconds INTEGER NOT NULL, start INTEGER NOT NULL,
  requests INTEGER NOT NULL, tokens INTEGER NOT NULL, nano_usd INTEGER NOT NULL,
  PRIMARY KEY (scope, seconds, start)
) WITHOUT ROWID;
"""

TAKE = """
WITH ask (scope, seconds, start, most_requests, most_tokens, most_nano_usd, tokens, nano_usd) AS (VALUES {rows})
INSERT INTO counts SELECT scope, seconds, start, 1, tokens, nano_usd FROM ask
WHERE NOT EXISTS (
  SELECT 1 FROM ask LEFT JOIN counts USING (scope, seconds, start)
  WHERE coalesce(counts.requests, 0) + 1 > ask.most_requests
     OR coalesce(counts.tokens, 0) + ask.tokens > ask.most_tokens
     OR coalesce(counts.nano_usd, 0) + ask.nano_usd > ask.most_nano_usd)
ON CONFLICT DO UPDATE SET requests = requests + excluded.requests, tokens = tokens + excluded.tokens,
  nano_usd = nano_usd + excluded.nano_usd
RETURNING scope, seconds, start, requests, tokens, nano_usd
"""
"""All windows or none, in one statement. A most of NULL compares as unknown, and so stands in nobody's way."""

ADJUST = """
UPDATE counts SET requests = max(0, requests + ?), tokens = max(0, tokens + ?), nano_usd = max(0, nano_usd + ?)
WHERE (scope, seconds, start) IN (VALUES {rows})
"""

READ = """
SELECT scope, seconds, start, requests, tokens, nano_usd FROM counts WHERE (scope, seconds, start) IN (VALUES {rows})
"""

PRUNE = "DELETE FROM counts WHERE start + 2 * seconds <= ?"
"""A window is kept for as long again as it lasted, for requests that end after it."""


class SqliteBudgets(WindowBudgets):
    """Budgets in the file at `path`, made at the first request that has a limit; `clock` is Unix time in seconds."""

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._file = SqliteFile(path, SCHEMA)
        self._pruned = 0

    async def _take(self, windows: Sequence[Counter], tokens: int, nano: int) -> list[Counts] | None:
        newest = max(window.start for window in windows)
        if newest > self._pruned:
            self._pruned = newest
            await self._file.run(PRUNE, [newest])
        rows = await self._file.run(*_take(windows, tokens, nano))
        return _in_order(windows, rows) if rows else None

    def _take_at_once(self, windows: Sequence[Counter], tokens: int, nano: int) -> list[Counts] | None:
        if max(window.start for window in windows) > self._pruned:
            return None
        rows = self._file.at_once(*_take(windows, tokens, nano))
        return _in_order(windows, rows) if rows else None

    async def _adjust(self, windows: Sequence[Counter], requests: int, tokens: int, nano: int) -> None:
        await self._file.run(*_adjust(windows, requests, tokens, nano))

    def _adjust_at_once(self, windows: Sequence[Counter], requests: int, tokens: int, nano: int) -> bool:
        return self._file.at_once(*_adjust(windows, requests, tokens, nano)) is not None

    async def _read(self, windows: Sequence[Counter]) -> list[Counts]:
        return _in_order(windows, await self._file.run(_sql(READ, 3, len(windows)), _names(windows)))

    async def _close(self) -> None:
        await self._file.close()


def _take(windows: Sequence[Counter], tokens: int, nano: int) -> tuple[str, list[str | int | None]]:
    values = [value for window in windows for value in (*window, tokens, nano)]
    return _sql(TAKE, 8, len(windows)), values


def _adjust(windows: Sequence[Counter], requests: int, tokens: int, nano: int) -> tuple[str, list[str | int]]:
    return _sql(ADJUST, 3, len(windows)), [requests, tokens, nano, *_names(windows)]


@cache
def _sql(template: str, columns: int, rows: int) -> str:
    return template.format(rows=", ".join(["(" + ", ".join("?" * columns) + ")"] * rows))


def _names(windows: Sequence[Counter]) -> list[str | int]:
    return [name for window in windows for name in (window.scope, window.seconds, window.start)]


def _in_order(windows: Sequence[Counter], rows: Sequence[tuple[str | int, ...]]) -> list[Counts]:
    found = {row[:3]: Counts(*(int(count) for count in row[3:])) for row in rows}
    return [found.get((window.scope, window.seconds, window.start), Counts()) for window in windows]
