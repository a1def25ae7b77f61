"""Where conversations are kept: a SQLite file, or a Redis that several hosts share."""

import secrets
from pathlib import Path
from typing import NamedTuple, Protocol

from engine_host.gateway.budget_store import REDIS_PREFIX, RedisServer, SqliteFile, StoreError


class Stored(NamedTuple):
    """One conversation's `data`, and a `version` that no other has."""

    version: str
    data: bytes


class SessionStore(Protocol):
    """Conversations by owner and session id. `now` is Unix time, `ttl_s` how long one is kept unused.

    All methods may be called at once from many tasks and hosts, and raise `StoreError`.
    """

    async def load(self, owner: str, session_id: str, now: float, ttl_s: float) -> Stored | None:
        """The conversation, which is used by that; `None` where there is none, or it was unused too long."""
        ...

    async def save(
        self, owner: str, session_id: str, replaces: str, data: bytes, now: float, ttl_s: float, max_sessions: int
    ) -> bool:
        """Keep `data` in the place of the version `replaces`, `""` for none; `False` where that is not what is there.

        Deletes what was unused too long, and beyond `max_sessions` what was unused longest.
        """
        ...

    async def delete(self, owner: str, session_id: str) -> bool:
        """Forget a conversation; whether there was one."""
        ...

    async def sweep(self, now: float, ttl_s: float, max_sessions: int) -> None:
        """Delete what `save` would."""
        ...

    async def close(self) -> None:
        """Let go of the store."""
        ...


SCHEMA = """
CREATE TABLE IF NOT EXISTS sessions (
  owner TEXT NOT NULL, id TEXT NOT NULL, version TEXT NOT NULL, used REAL NOT NULL, data BLOB NOT NULL,
  PRIMARY KEY (owner, id)
);
CREATE INDEX IF NOT EXISTS sessions_by_use ON sessions (used);
"""
LOAD = "UPDATE sessions SET used = ? WHERE owner = ? AND id = ? AND used > ? RETURNING version, data"
CREATE = """
INSERT INTO sessions (owner, id, version, used, data) VALUES (?, ?, ?, ?, ?)
ON CONFLICT DO UPDATE SET version = excluded.version, used = excluded.used, data = excluded.data WHERE used <= ?
RETURNING 1
"""
REPLACE = "UPDATE sessions SET version = ?, used = ?, data = ? WHERE owner = ? AND id = ? AND version = ? RETURNING 1"
DELETE = "DELETE FROM sessions WHERE owner = ? AND id = ? RETURNING 1"
EXPIRE = "DELETE FROM sessions WHERE used <= ?"
EVICT = "DELETE FROM sessions WHERE rowid IN (SELECT rowid FROM sessions ORDER BY used DESC LIMIT -1 OFFSET ?)"


class SqliteSessions(SessionStore):
    """Conversations in the file at `path`, made when the first is loaded or saved."""

    def __init__(self, path: Path) -> None:
        self._file = SqliteFile(path, SCHEMA)

    async def load(self, owner: str, session_id: str, now: float, ttl_s: float) -> Stored | None:
        rows = await self._file.run(LOAD, [now, owner, session_id, now - ttl_s])
        return Stored(*rows[0]) if rows else None

    async def save(
        self, owner: str, session_id: str, replaces: str, data: bytes, now: float, ttl_s: float, max_sessions: int
    ) -> bool:
        version = secrets.token_hex(8)
        if replaces:
            return bool(await self._file.run(REPLACE, [version, now, data, owner, session_id, replaces]))
        created = await self._file.run(CREATE, [owner, session_id, version, now, data, now - ttl_s])
        await self.sweep(now, ttl_s, max_sessions)
        return bool(created)

    async def delete(self, owner: str, session_id: str) -> bool:
        return self._file.path.exists() and bool(await self._file.run(DELETE, [owner, session_id]))

    async def sweep(self, now: float, ttl_s: float, max_sessions: int) -> None:
        if self._file.path.exists():
            await self._file.run(EXPIRE, [now - ttl_s])
            await self._file.run(EVICT, [max_sessions])

    async def close(self) -> None:
        await self._file.close()


REDIS_LOAD = """
-- KEYS: conversation, index by last use. ARGV: member of the index, now, expired, ms to live.
local used = redis.call('ZSCORE', KEYS[2], ARGV[1])
if not used or tonumber(used) <= tonumber(ARGV[3]) or redis.call('EXISTS', KEYS[1]) == 0 then return {} end
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
return redis.call('HMGET', KEYS[1], 'version', 'data')
"""
REDIS_SAVE = """
-- KEYS: as above. ARGV: as above, then version, version replaced, data.
local used = redis.call('ZSCORE', KEYS[2], ARGV[1])
local version = redis.call('HGET', KEYS[1], 'version') or ''
if ARGV[6] == '' and used and tonumber(used) <= tonumber(ARGV[3]) then version = '' end
if version ~= ARGV[6] then return 0 end
redis.call('HSET', KEYS[1], 'version', ARGV[5], 'data', ARGV[7])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('ZADD', KEYS[2], ARGV[2], ARGV[1])
return 1
"""
REDIS_DELETE = """
-- KEYS: conversation, index by last use. ARGV: member of the index.
redis.call('ZREM', KEYS[2], ARGV[1])
return redis.call('DEL', KEYS[1])
"""
REDIS_SWEEP = """
-- KEYS: index by last use. ARGV: expired, most sessions, what the conversations' keys begin with.
local gone = redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)
if #gone == 0 then
  local over = math.min(redis.call('ZCARD', KEYS[1]) - tonumber(ARGV[2]), 1000)
  if over > 0 then gone = redis.call('ZRANGE', KEYS[1], 0, over - 1) end
end
for _, member in ipairs(gone) do
  redis.call('ZREM', KEYS[1], member)
  redis.call('DEL', ARGV[3] .. member)
end
return #gone
"""
"""At most 1000 a call, so that Redis, which does one thing at a time, is not held up."""

INDEX = f"{REDIS_PREFIX}sessions"
CONVERSATION = f"{REDIS_PREFIX}session:"


class RedisSessions(SessionStore):
    """Conversations in the Redis at `url`. They expire there by themselves, also when no host runs."""

    def __init__(self, url: str) -> None:
        self._server = RedisServer(url)
        scripts = (REDIS_LOAD, REDIS_SAVE, REDIS_DELETE, REDIS_SWEEP)
        self._load, self._save, self._delete, self._sweep = map(self._server.client.register_script, scripts)

    async def load(self, owner: str, session_id: str, now: float, ttl_s: float) -> Stored | None:
        member = _member(owner, session_id)
        arguments: list[str | bytes | int] = [member, repr(now), repr(now - ttl_s), _ms(ttl_s)]
        found = await self._server.run(self._load, [CONVERSATION + member, INDEX], arguments)
        if not found:
            return None
        version, data = found
        if not isinstance(version, bytes) or not isinstance(data, bytes):
            raise StoreError("Redis: a session lacks its conversation")
        return Stored(version.decode(), data)

    async def save(
        self, owner: str, session_id: str, replaces: str, data: bytes, now: float, ttl_s: float, max_sessions: int
    ) -> bool:
        member = _member(owner, session_id)
        version = secrets.token_hex(8)
        arguments: list[str | bytes | int] = [member, repr(now), repr(now - ttl_s), _ms(ttl_s), version, replaces, data]
        saved = await self._server.run(self._save, [CONVERSATION + member, INDEX], arguments)
        if not replaces:
            await self.sweep(now, ttl_s, max_sessions)
        return bool(saved)

    async def delete(self, owner: str, session_id: str) -> bool:
        member = _member(owner, session_id)
        return bool(await self._server.run(self._delete, [CONVERSATION + member, INDEX], [member]))

    async def sweep(self, now: float, ttl_s: float, max_sessions: int) -> None:
        while await self._server.run(self._sweep, [INDEX], [repr(now - ttl_s), max_sessions, CONVERSATION]):
            pass

    async def close(self) -> None:
        await self._server.close()


def _member(owner: str, session_id: str) -> str:
    return f"{owner}/{session_id}"  # A session id has no slash, so that no two pairs are alike.


def _ms(seconds: float) -> int:
    return max(1, round(seconds * 1000))
