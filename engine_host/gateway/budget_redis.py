"""Budgets in Redis: one store for several hosts, whose clocks must agree on the minute."""

import time
from collections.abc import Callable, Sequence

from engine_host.gateway.budget_limits import Counter, Counts
from engine_host.gateway.budget_store import REDIS_PREFIX, RedisServer, StoreError
from engine_host.gateway.budget_windows import WindowBudgets

TAKE = """
-- KEYS: one hash a window. ARGV: tokens, nano_usd, and for each key its seconds to live and three limits or ''.
local fields, add = {'requests', 'tokens', 'nano_usd'}, {'1', ARGV[1], ARGV[2]}
for k, key in ipairs(KEYS) do
  for f, field in ipairs(fields) do
    local most = tonumber(ARGV[k * 4 - 1 + f])
    if most and tonumber(redis.call('HGET', key, field) or 0) + tonumber(add[f]) > most then return {} end
  end
end
local counts = {}
for k, key in ipairs(KEYS) do
  for f, field in ipairs(fields) do table.insert(counts, redis.call('HINCRBY', key, field, add[f])) end
  redis.call('EXPIRE', key, ARGV[k * 4 - 1])
end
return counts
"""

ADJUST = """
-- KEYS: one hash a window. ARGV: what to add to requests, tokens and nano_usd.
for _, key in ipairs(KEYS) do
  if redis.call('EXISTS', key) == 1 then
    for f, field in ipairs({'requests', 'tokens', 'nano_usd'}) do
      if redis.call('HINCRBY', key, field, ARGV[f]) < 0 then redis.call('HSET', key, field, 0) end
    end
  end
end
"""

READ = """
local counts = {}
for _, key in ipairs(KEYS) do
  for _, field in ipairs({'requests', 'tokens', 'nano_usd'}) do
    table.insert(counts, tonumber(redis.call('HGET', key, field) or 0))
  end
end
return counts
"""


class RedisBudgets(WindowBudgets):
    """Budgets in the Redis at `url` (`redis://`, `rediss://` or `unix://`); `clock` is Unix time in seconds.

    A window's key expires when as long again as the window has passed since its last request.
    """

    def __init__(self, url: str, clock: Callable[[], float] = time.time) -> None:
        super().__init__(clock)
        self._server = RedisServer(url)
        self._scripts = {text: self._server.client.register_script(text) for text in (TAKE, ADJUST, READ)}

    async def _take(self, windows: Sequence[Counter], tokens: int, nano: int) -> list[Counts] | None:
        limits = [
            "" if value is None else value
            for window in windows
            for value in (2 * window.seconds, window.most_requests, window.most_tokens, window.most_nano_usd)
        ]
        return _counts(await self._run(TAKE, windows, tokens, nano, *limits)) or None

    async def _adjust(self, windows: Sequence[Counter], requests: int, tokens: int, nano: int) -> None:
        await self._run(ADJUST, windows, requests, tokens, nano)

    async def _read(self, windows: Sequence[Counter]) -> list[Counts]:
        return _counts(await self._run(READ, windows))

    async def _close(self) -> None:
        await self._server.close()

    async def _run(self, script: str, windows: Sequence[Counter], *arguments: str | int) -> list[int]:
        keys = [f"{REDIS_PREFIX}budget:{window.scope}:{window.seconds}:{window.start}" for window in windows]
        result = await self._server.run(self._scripts[script], keys, arguments)
        if result is None:
            return []
        if not isinstance(result, list):
            raise StoreError("Redis: a script returned something unexpected")
        return result


def _counts(values: Sequence[int]) -> list[Counts]:
    return [Counts(*values[at : at + 3]) for at in range(0, len(values), 3)]
