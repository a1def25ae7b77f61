"""The ledger's SQLite file: opening it to write and to read, and what is wrong with it in a sentence."""

import os
import sqlite3
from contextlib import closing
from pathlib import Path

from engine_host.ledger.columns import TABLES, Cell, Tables

LEDGER_FILE = "ledger.db"
"""Its name in the data folder."""

VERSION = 1
"""Of the schema, in `PRAGMA user_version`. A new column makes no new version: it is added to a file without it."""

BUSY_S = 1.0
"""Longest wait for another process that writes the same file, in seconds; a batch takes some milliseconds."""

READ_BUSY_S = 5.0
"""The same for who reads, which a writer only keeps waiting while it opens the file or puts its log away."""


class LedgerError(Exception):
    """The ledger can't be used; `str()` says which file, why, and what to do."""


def open_to_write(path: Path) -> sqlite3.Connection:
    """The file at `path`, made where there is none, readable by its owner alone. Transactions are the caller's.

    Committed is on the disk: the log is synced at each commit. Raises `LedgerError` for a file of a newer version,
    which is not touched, `sqlite3.Error` and `OSError` for all else.
    """
    if path.exists() and path.stat().st_size:
        with closing(open_to_read(path)):
            pass
    path.parent.mkdir(parents=True, exist_ok=True)
    os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
    connection = sqlite3.connect(path, timeout=BUSY_S, isolation_level=None)
    try:
        # Takes effect in a new file only, before its first table.
        connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
        connection.execute("PRAGMA journal_mode = WAL")
        connection.execute("PRAGMA synchronous = FULL")
        _complete(connection)
    except BaseException:
        connection.close()
        raise
    return connection


def open_to_read(path: Path) -> sqlite3.Connection:
    """The file at `path`, read-only, also while a host writes it; rows can be taken by the columns' names.

    Raises `LedgerError` where there is none, or it is of a newer version, or no ledger at all.
    """
    if not path.is_file():
        raise LedgerError(
            f"There is no ledger at {path}: a host makes it when it starts, unless its profile keeps none."
        )
    # Where SQLite can't put its log beside the file, and none lies there, nobody can be writing.
    alone = not os.access(path.parent, os.W_OK) and not path.with_name(f"{path.name}-wal").exists()
    uri = f"{path.absolute().as_uri()}?mode=ro{'&immutable=1' if alone else ''}"
    try:
        connection = sqlite3.connect(uri, uri=True, timeout=READ_BUSY_S, isolation_level=None)
        connection.row_factory = sqlite3.Row
        _no_newer(connection, path)
    except sqlite3.Error as problem:
        raise LedgerError(f"The ledger can't be read: {why(path, problem)}.") from problem
    return connection


def columns_in(connection: sqlite3.Connection, table: Tables) -> tuple[str, ...]:
    """The columns of `table` that the file has: one that an older release wrote may lack some."""
    there = {row[1] for row in connection.execute(f"PRAGMA table_info({table.name})")}
    return tuple(name for name in table.names if name in there)


def why(path: Path, problem: Exception) -> str:
    """What is wrong with the file, and what to do, as half a sentence."""
    name = (
        problem.sqlite_errorname if isinstance(problem, sqlite3.Error) and hasattr(problem, "sqlite_errorname") else ""
    )
    if name == "SQLITE_FULL":
        return f"the disk of {path} is full; make room there"
    if name.startswith(("SQLITE_BUSY", "SQLITE_LOCKED")):
        return f"another process holds {path} locked; find it with: fuser {path}"
    if name.startswith(("SQLITE_READONLY", "SQLITE_CANTOPEN", "SQLITE_PERM", "SQLITE_AUTH")):
        return f"{path} or its folder can't be written; look at their permissions and at how the disk is mounted"
    if name.startswith(("SQLITE_CORRUPT", "SQLITE_NOTADB")):
        return f"{path} is damaged or no SQLite file; move it away, and a new one is made"
    if name.startswith("SQLITE_IOERR"):
        return f"reading or writing {path} failed ({name}); look at the disk, its quota and the file's size limit"
    if isinstance(problem, OSError):
        return f"{path} or its folder can't be opened ({problem.strerror}); look at the permissions and the disk"
    return f"{path}: {problem}"


def _no_newer(connection: sqlite3.Connection, path: Path) -> None:
    (version,) = connection.execute("PRAGMA user_version").fetchone()
    if version > VERSION:
        connection.close()
        raise LedgerError(
            f"{path} comes from a newer release (its version is {version}, this one knows {VERSION}) and is left as it "
            "is; use that release, or move the file away"
        )


def _complete(connection: sqlite3.Connection) -> None:
    """Make the tables, indexes and columns that aren't there yet."""
    connection.execute("BEGIN IMMEDIATE")
    try:
        for table in TABLES.values():
            columns = ", ".join(f"{column.name} {column.kind}" for column in table.columns)
            connection.execute(f"CREATE TABLE IF NOT EXISTS {table.name} ({columns})")
            there = columns_in(connection, table)
            for column in table.columns:
                if column.name not in there:
                    connection.execute(f"ALTER TABLE {table.name} ADD COLUMN {column.name} {column.kind}")
            for each in table.indexes:
                name = f"{table.name}_by_{each.partition(',')[0]}"
                connection.execute(f"CREATE INDEX IF NOT EXISTS {name} ON {table.name} ({each})")
        connection.execute(f"PRAGMA user_version = {VERSION}")
        connection.execute("COMMIT")
    except BaseException:
        # A full disk has ended the transaction already.
        if connection.in_transaction:
            connection.execute("ROLLBACK")
        raise


def mapping(row: sqlite3.Row) -> dict[str, Cell]:
    """A row by the names of its columns."""
    return dict(zip(row.keys(), tuple(row), strict=True))
