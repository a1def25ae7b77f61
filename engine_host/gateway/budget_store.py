"""What the stores of budgets and of conversations share: opening, and failing within a bounded time."""

import asyncio
import contextlib
import logging
import os
import sqlite3
from collections.abc import Awaitable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    import aiosqlite

log = logging.getLogger(__name__)

T = TypeVar("T")

PATIENCE_S = 2.0
"""Longest that a request waits for a store, in seconds: what takes longer than a first token is as good as broken."""

BUSY_S = 1.0
"""Longest wait for another process that writes the same file, in seconds; a write takes well under a millisecond."""

MOVE_AFTER = 500
"""Statements after which the write-ahead log is moved into the file: some 4 MB of it."""

REDIS_PREFIX = "llmconsole:"
"""What every key in a shared Redis begins with."""

REDIS_CONNECTIONS = 16
"""Connections of one host to Redis; a script takes microseconds there: more would only wait in Redis instead."""


class StoreError(Exception):
    """A store can't be used; `str()` says which and why, without secrets."""


class Watch:
    """Bounds every use of a store in time, and says once that it broke and once that it works again."""

    def __init__(self, what: str, consequence: str) -> None:
        self._what = what
        self._consequence = consequence
        self._broken = False

    async def bounded(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises `StoreError` where it fails or takes longer than `PATIENCE_S`."""
        try:
            async with asyncio.timeout(PATIENCE_S):
                result = await work
        except TimeoutError:
            raise self._failed(StoreError(f"no answer within {PATIENCE_S:g} s")) from None
        except StoreError as error:
            raise self._failed(error) from None
        if self._broken:
            self._broken = False
            log.info("the store of %s works again", self._what)
        return result

    def _failed(self, error: StoreError) -> StoreError:
        if not self._broken:
            self._broken = True
            log.error("the store of %s can't be used (%s): %s", self._what, error, self._consequence)
        return error


class SqliteFile:
    """One SQLite file, opened when it is first used; readable by its owner alone.

    `run` works in a thread. `at_once` does without: a small statement takes some 50 µs, the way to a thread and back
    ten times that. It never waits for another process, and leaves what touches the disk (moving the log into the file)
    to the thread. Each statement is its own transaction. SQLite takes the write lock before a writing statement reads
    anything, so that a statement that checks and changes is exact among processes too.
    """

    def __init__(self, path: Path, schema: str) -> None:
        self.path = path
        self._schema = schema
        self._connection: aiosqlite.Connection | None = None
        self._direct: sqlite3.Connection | None = None
        self._written = 0
        self._moving: asyncio.Task[None] | None = None
        self._opening = asyncio.Lock()

    async def run(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """All rows that the statement returns. Raises `StoreError`."""
        try:
            connection = self._connection or await self._open()
            return [tuple(row) for row in await connection.execute_fetchall(sql, parameters)]
        except (sqlite3.Error, OSError, ValueError) as error:
            raise StoreError(f"{self.path}: {error}") from error

    def at_once(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]] | None:
        """As `run`, without waiting; `None` where that would take a wait: the file is not open yet, or in use."""
        if self._connection is None:
            return None
        try:
            if self._direct is None:
                self._direct = sqlite3.connect(self.path, timeout=0, isolation_level=None)
                self._direct.execute("PRAGMA synchronous=NORMAL")
                self._direct.execute("PRAGMA wal_autocheckpoint=0")
            rows = self._direct.execute(sql, parameters).fetchall()
        except sqlite3.OperationalError as error:
            if error.sqlite_errorcode & 0xFF in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
                return None
            raise StoreError(f"{self.path}: {error}") from error
        except sqlite3.Error as error:
            raise StoreError(f"{self.path}: {error}") from error
        self._written += 1
        if self._written >= MOVE_AFTER and (self._moving is None or self._moving.done()):
            self._written = 0
            self._moving = asyncio.get_running_loop().create_task(self._move_log())
        return rows

    async def _move_log(self) -> None:
        with contextlib.suppress(StoreError):  # The next use says what is wrong.
            await self.run("PRAGMA wal_checkpoint(PASSIVE)")

    async def close(self) -> None:
        """Let go of the file; using it again opens it again."""
        if self._moving is not None:
            await asyncio.wait({self._moving})
        if self._direct is not None:
            with contextlib.suppress(sqlite3.Error):
                self._direct.close()
            self._direct = None
        async with self._opening:
            connection, self._connection = self._connection, None
            if connection is not None:
                with contextlib.suppress(sqlite3.Error, OSError, ValueError):
                    await connection.close()

    async def _open(self) -> "aiosqlite.Connection":
        import aiosqlite

        async with self._opening:
            if self._connection is None:
                self._connection = await aiosqlite.Connection(self._connect, iter_chunk_size=64)
            return self._connection

    def _connect(self) -> sqlite3.Connection:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        with contextlib.suppress(FileExistsError):
            os.close(os.open(self.path, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        connection = sqlite3.connect(self.path, timeout=BUSY_S, isolation_level=None)
        try:
            connection.execute("PRAGMA journal_mode=WAL")
            connection.execute("PRAGMA synchronous=NORMAL")
            # What is deleted is overwritten: conversations lie in these files.
            connection.execute("PRAGMA secure_delete=ON")
            connection.executescript(self._schema)
        except BaseException:
            connection.close()
            raise
        return connection


class RedisServer:
    """A Redis server, connected to when first used. A command is never sent twice, so that nothing counts twice."""

    def __init__(self, url: str) -> None:
        from redis.asyncio import BlockingConnectionPool, Redis
        from redis.asyncio.retry import Retry
        from redis.backoff import NoBackoff

        pool = BlockingConnectionPool.from_url(
            url,
            max_connections=REDIS_CONNECTIONS,
            timeout=PATIENCE_S,
            socket_timeout=PATIENCE_S,
            socket_connect_timeout=PATIENCE_S,
            retry=Retry(NoBackoff(), 0),
        )
        self.client = Redis.from_pool(pool)

    async def run(self, script: Any, keys: Sequence[str], arguments: Sequence[str | bytes | int | float]) -> Any:
        """What a script registered with `client` returns. Raises `StoreError`."""
        from redis.exceptions import RedisError

        try:
            return await script(keys=keys, args=arguments)
        except (RedisError, OSError) as error:
            raise StoreError(f"Redis: {error}") from error

    async def close(self) -> None:
        """Close all connections."""
        from redis.exceptions import RedisError

        with contextlib.suppress(RedisError, OSError):
            await self.client.aclose()
