"""Rows of the ledger: the columns of each record, and the way there and back. All of it follows from the structs."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

import msgspec
from msgspec import inspect

from engine_host.api.figures import BILL_PARTS
from engine_host.api.records import EventRecord, MinuteRecord, RequestRecord

Cell = int | float | str | bytes | None
Kind = Literal["INTEGER", "REAL", "TEXT", "BLOB"]
TableName = Literal["requests", "minutes", "events"]

LARGEST = 2**63
"""SQLite's integers have 64 bits (sqlite.org/datatype3.html)."""

Record = TypeVar("Record", bound=msgspec.Struct)


@dataclass(frozen=True)
class Column:
    """One column: its name, SQLite's type for it, and whether it may be NULL. `part` is the name of the value inside
    the field `field`, where that holds several; `boolean` values are 0 and 1."""

    name: str
    kind: Kind
    nullable: bool
    field: str
    part: str | None = None
    boolean: bool = False


class Table(Generic[Record]):
    """A table with a column for each field of `record`, in their order.

    A field that is itself a record, or a bill by part, has one for each value in it: `cost.prefill_s` is
    `cost_prefill_s`. Where such a field is `None`, all of them are NULL.
    """

    def __init__(self, name: TableName, record: type[Record], indexes: tuple[str, ...]) -> None:
        self.name = name
        self.type = record
        self.indexes = indexes
        self.columns = tuple(_columns(record))
        self.names = tuple(column.name for column in self.columns)

    def row(self, record: Record) -> tuple[Cell, ...]:
        """The cells of `record`, by column. Raises `TypeError` or `ValueError` where a value has no place in them."""
        return tuple(_cell(record, column) for column in self.columns)

    def record(self, row: Mapping[str, Cell]) -> Record:
        """The record of a row; columns that it doesn't have, as one of an older release, get the struct's default.

        Raises `msgspec.ValidationError` where the row is none of ours.
        """
        fields: dict[str, object] = {}
        for column in self.columns:
            value = row.get(column.name)
            if value is None and column.part is None and (not column.nullable or column.name not in row):
                continue
            if column.part is None:
                fields[column.field] = bool(value) if column.boolean and value is not None else value
            elif value is not None:
                inner = fields.get(column.field) or {}
                assert isinstance(inner, dict)
                fields[column.field] = {**inner, column.part: value}
            else:
                fields.setdefault(column.field, None if column.nullable else {})
        return msgspec.convert(fields, self.type)


def _cell(record: msgspec.Struct, column: Column) -> Cell:
    value = getattr(record, column.field)
    if column.part is None or value is None:
        return _storable(value)
    if not isinstance(value, dict):
        return _storable(getattr(value, column.part))
    if not value.keys() <= set(BILL_PARTS):
        raise ValueError(f"a bill has the unknown parts {', '.join(value.keys() - set(BILL_PARTS))}")
    return _storable(value.get(column.part))


def _storable(value: object) -> Cell:
    """Half a character, which JSON can carry and UTF-8 can't, becomes a question mark."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, int) and not -LARGEST <= value < LARGEST:
        raise ValueError(f"{value} has no place in 64 bits")
    if value is None or isinstance(value, int | float | bytes):
        return value
    raise TypeError(f"{type(value).__name__} has no place in a cell")


def _columns(record: type[msgspec.Struct]) -> Iterator[Column]:
    described = inspect.type_info(record)
    assert isinstance(described, inspect.StructType)
    for field in described.fields:
        kind, nullable = _options(field.type)
        if isinstance(kind, inspect.StructType):
            for inner in kind.fields:
                inner_kind, optional = _options(inner.type)
                name = f"{field.name}_{inner.name}"
                yield Column(name, _kind(inner_kind), nullable or optional, field.name, inner.name)
        elif isinstance(kind, inspect.DictType):
            for part in BILL_PARTS:
                yield Column(f"{field.name}_{part}", _kind(kind.value_type), nullable, field.name, part)
        else:
            yield Column(field.name, _kind(kind), nullable, field.name, boolean=isinstance(kind, inspect.BoolType))


def _options(kind: inspect.Type) -> tuple[inspect.Type, bool]:
    """What a type is beside `None`, and whether it may be that."""
    if not isinstance(kind, inspect.UnionType):
        return kind, False
    others = [each for each in kind.types if not isinstance(each, inspect.NoneType)]
    assert len(others) == 1, "a field of a record has one type, or one and None"
    return others[0], len(others) < len(kind.types)


def _kind(kind: inspect.Type) -> Kind:
    kinds: dict[type[inspect.Type], Kind] = {
        inspect.IntType: "INTEGER",
        inspect.BoolType: "INTEGER",
        inspect.FloatType: "REAL",
        inspect.StrType: "TEXT",
        inspect.LiteralType: "TEXT",
        inspect.BytesType: "BLOB",
    }
    return kinds[type(kind)]


REQUESTS = Table("requests", RequestRecord, ("time", "key, time", "tier, time"))
MINUTES = Table("minutes", MinuteRecord, ("time",))
EVENTS = Table("events", EventRecord, ("time",))

Tables = Table[RequestRecord] | Table[MinuteRecord] | Table[EventRecord]
TABLES: Mapping[TableName, Tables] = {"requests": REQUESTS, "minutes": MINUTES, "events": EVENTS}

TEXT_COLUMNS = ("prompt", "reply")
"""What people wrote and got: NULL unless the operator has turned on that it is kept."""
