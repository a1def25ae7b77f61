"""Writes a table of the ledger to a file, in chunks: memory doesn't grow with the rows."""

import base64
import csv
import sqlite3
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import msgspec

from engine_host.ledger.columns import Cell, Tables
from engine_host.ledger.file import columns_in
from profiles.files import beside

TextFormat = Literal["csv", "jsonl"]
Format = TextFormat | Literal["parquet"]

CHUNK = 2000
"""Rows that are read, and written, at once."""

Chunks = Iterator[Sequence[tuple[Cell, ...]]]


def export(connection: sqlite3.Connection, table: Tables, form: Format, path: Path, since: float, until: float) -> int:
    """Write the rows of `table` whose time is from `since` on and before `until` to `path`; returns how many.

    The file is for its owner alone, and appears under its name once it is whole. Raises `OSError` where
    it can't be written.
    """
    with beside(path, 0o600) as new:
        if form == "parquet":
            return _parquet(new, table, _chunks(connection, table, since, until))
        with new.open("wb") as out:
            return export_text(connection, table, form, out, since, until)


def export_text(
    connection: sqlite3.Connection,
    table: Tables,
    form: TextFormat,
    out: IO[bytes],
    since: float,
    until: float,
) -> int:
    """The same to a stream. Numbers are written so that reading them gives the same number, bytes as base64."""
    write = _csv if form == "csv" else _jsonl
    return write(out, table, _chunks(connection, table, since, until))


def _chunks(connection: sqlite3.Connection, table: Tables, since: float, until: float) -> Chunks:
    """Rows in the order they were written. A chunk is a read of its own: none keeps the writer waiting."""
    there = columns_in(connection, table)
    columns = ", ".join(name if name in there else f"NULL AS {name}" for name in table.names)
    condition = "rowid > ? AND time >= ? AND time < ?"
    statement = f"SELECT rowid, {columns} FROM {table.name} WHERE {condition} ORDER BY rowid LIMIT {CHUNK}"
    last = -1
    while rows := connection.execute(statement, (last, since, until)).fetchall():
        last = rows[-1][0]
        yield [tuple(row)[1:] for row in rows]


def _csv(out: IO[bytes], table: Tables, chunks: Chunks) -> int:
    lines = _Lines(out)
    writer = csv.writer(lines, lineterminator="\n")
    writer.writerow(table.names)
    count = 0
    for rows in chunks:
        writer.writerows([_as_text(cell) for cell in row] for row in rows)
        count += len(rows)
    return count


def _jsonl(out: IO[bytes], table: Tables, chunks: Chunks) -> int:
    encoder, count = msgspec.json.Encoder(), 0
    for rows in chunks:
        out.write(encoder.encode_lines(dict(zip(table.names, row, strict=True)) for row in rows))
        count += len(rows)
    return count


def _parquet(path: Path, table: Tables, chunks: Chunks) -> int:
    import pyarrow  # type: ignore[import-untyped]
    from pyarrow import parquet

    kinds: Mapping[str, Any] = {
        "INTEGER": pyarrow.int64(),
        "REAL": pyarrow.float64(),
        "TEXT": pyarrow.string(),
        "BLOB": pyarrow.binary(),
    }
    schema = pyarrow.schema([pyarrow.field(each.name, kinds[each.kind]) for each in table.columns])
    count = 0
    with parquet.ParquetWriter(path, schema) as writer:
        for rows in chunks:
            columns = dict(zip(table.names, zip(*rows, strict=True), strict=True))
            writer.write_table(pyarrow.table(columns, schema=schema))
            count += len(rows)
    return count


class _Lines:
    """Where the csv module writes: text in, UTF-8 out."""

    def __init__(self, out: IO[bytes]) -> None:
        self.write: Callable[[str], int] = lambda text: out.write(text.encode())


def _as_text(cell: Cell) -> Cell:
    return base64.b64encode(cell).decode() if isinstance(cell, bytes) else cell
