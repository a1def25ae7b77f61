"""Writes rows to the ledger's file, and removes old ones: used by one thread."""

import sqlite3
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

from engine_host.api.records import EventRecord, MinuteRecord, RequestRecord
from engine_host.ledger.columns import EVENTS, MINUTES, REQUESTS, TABLES, Cell
from engine_host.ledger.file import open_to_write

PRUNE_ROWS = 1000
"""Rows of a table that one transaction removes; it takes some milliseconds, so that new rows don't wait long."""

FREE_PAGES = 1000
"""Pages of the file given back to the disk after it, at most."""

AnyRecord = RequestRecord | MinuteRecord | EventRecord


class Written(NamedTuple):
    """How many rows are in the file, and what was wrong with those that aren't."""

    rows: int
    refused: list[str]


class Writer:
    """The connection to the file at `path`, opened when it is first used and after `close`.

    Every method raises `sqlite3.Error`, `OSError` or `LedgerError` where the file can't be written; nothing of the rows
    is in it then.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._connection: sqlite3.Connection | None = None
        self._file: tuple[int, int] | None = None

    def open(self) -> sqlite3.Connection:
        """The connection, to the file that lies at the path now: somebody may have moved the old one away."""
        if self._connection is not None and self._file != _identity(self._path):
            self.close()
        if self._connection is None:
            self._connection = open_to_write(self._path)
            self._file = _identity(self._path)
        return self._connection

    def write(self, records: Sequence[AnyRecord]) -> Written:
        """Write records in one transaction, synced to the disk. One that has no place in the columns is left out."""
        rows: dict[str, list[tuple[Cell, ...]]] = {}
        refused = []
        for record in records:
            try:
                statement, row = _statement(record)
            except (TypeError, ValueError, AttributeError) as problem:
                refused.append(str(problem))
            else:
                rows.setdefault(statement, []).append(row)
        with self._transaction() as connection:
            for statement, cells in rows.items():
                connection.executemany(statement, cells)
        return Written(len(records) - len(refused), refused)

    def prune(self, before: float) -> bool:
        """Remove rows of before that Unix time, `PRUNE_ROWS` of each table at most; tells whether there may be more."""
        removed = []
        with self._transaction() as connection:
            for name in TABLES:
                old = f"SELECT rowid FROM {name} WHERE time < ? LIMIT {PRUNE_ROWS}"
                removed.append(connection.execute(f"DELETE FROM {name} WHERE rowid IN ({old})", (before,)).rowcount)
        if any(removed):
            # The pragma frees a page each time it is stepped, and only a script is stepped to its end.
            connection.executescript(f"PRAGMA incremental_vacuum({FREE_PAGES})")
        return max(removed) >= PRUNE_ROWS

    def close(self) -> None:
        """Close the file; the next use opens it again."""
        connection, self._connection = self._connection, None
        if connection is not None:
            connection.close()

    @contextmanager
    def _transaction(self) -> Iterator[sqlite3.Connection]:
        connection = self.open()
        connection.execute("BEGIN IMMEDIATE")
        try:
            yield connection
            connection.execute("COMMIT")
        except BaseException:
            # A full disk has ended the transaction already.
            if connection.in_transaction:
                connection.execute("ROLLBACK")
            raise


def _statement(record: AnyRecord) -> tuple[str, tuple[Cell, ...]]:
    if isinstance(record, RequestRecord):
        return INSERTS["requests"], REQUESTS.row(record)
    if isinstance(record, MinuteRecord):
        return INSERTS["minutes"], MINUTES.row(record)
    return INSERTS["events"], EVENTS.row(record)


def _identity(path: Path) -> tuple[int, int] | None:
    try:
        status = path.stat()
    except OSError:
        return None
    return status.st_dev, status.st_ino


INSERTS = {
    table.name: f"INSERT INTO {table.name} ({', '.join(table.names)}) VALUES ({', '.join('?' * len(table.names))})"
    for table in TABLES.values()
}
