"""Records and rows of the ledger: what goes in comes out."""

import re
import sqlite3
from pathlib import Path
from typing import Any, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as some

from engine_host.api.figures import BILL_PARTS
from engine_host.api.records import EventRecord, MinuteRecord, RequestCost, RequestRecord
from engine_host.ledger.columns import EVENTS, MINUTES, REQUESTS, Tables
from tests.ledger.rows import minute, request

numbers = some.floats(allow_nan=False)
counts = some.integers(-(2**63), 2**63 - 1)
texts = some.text(some.characters(exclude_categories=["Cs"]))
bills = some.dictionaries(some.sampled_from(BILL_PARTS), numbers)

PLAIN: dict[object, some.SearchStrategy[Any]] = {
    float: numbers,
    int: counts,
    bool: some.booleans(),
    str: texts,
    bytes: some.binary(max_size=64),
    float | None: some.none() | numbers,
    int | None: some.none() | counts,
    str | None: some.none() | texts,
}


def any_of(record: type, **fields: Any) -> Any:
    """Records of a kind with any values; the fields that aren't plain are given."""
    plain = {name: PLAIN.get(kind, some.from_type(kind)) for name, kind in get_type_hints(record).items()}
    return some.builds(record, **{**plain, **fields})


requests = any_of(RequestRecord, cost=some.none() | any_of(RequestCost))
minutes = any_of(MinuteRecord, seconds=bills, usd=some.none() | bills.filter(bool))
events = any_of(EventRecord)


def through(table: Tables, record: Any) -> Any:
    """`record` as SQLite gives it back."""
    with sqlite3.connect(":memory:") as connection:
        connection.row_factory = sqlite3.Row
        connection.execute(f"CREATE TABLE t ({', '.join(f'{each.name} {each.kind}' for each in table.columns)})")
        connection.execute(f"INSERT INTO t VALUES ({', '.join('?' * len(table.columns))})", table.row(record))
        row = connection.execute("SELECT * FROM t").fetchone()
    return table.record(dict(zip(row.keys(), row, strict=True)))


@given(requests)
@settings(max_examples=60)
def test_a_request_comes_back_as_it_was(record: RequestRecord) -> None:
    assert through(REQUESTS, record) == record


@given(minutes)
@settings(max_examples=60)
def test_a_minute_comes_back_as_it_was(record: MinuteRecord) -> None:
    assert through(MINUTES, record) == record


@given(events)
@settings(max_examples=30)
def test_an_event_comes_back_as_it_was(record: EventRecord) -> None:
    assert through(EVENTS, record) == record


def test_what_a_record_holds_inside_has_columns_of_its_own() -> None:
    assert {"cost_prefill_s", "cost_memory_usd", "cost_saved_usd"} < set(REQUESTS.names)
    assert {f"seconds_{part}" for part in BILL_PARTS} | {f"usd_{part}" for part in BILL_PARTS} < set(MINUTES.names)


def test_columns_that_a_row_lacks_are_what_the_struct_says() -> None:
    row = dict(zip(REQUESTS.names, REQUESTS.row(request()), strict=True))
    del row["held_s"], row["prompt"]
    row["engine_id"] = None  # As in a column that was added to an older file.
    assert REQUESTS.record(row) == request(held_s=0.0, prompt=None)


def test_half_a_character_is_stored_as_a_question_mark() -> None:
    assert through(REQUESTS, request(reply="\ud83d half")).reply == "? half"


@pytest.mark.parametrize(
    "record",
    [request(steps=2**63), request(tier=object()), minute(seconds={"coffee": 1.0})],
    ids=["too large", "no value", "unknown part"],
)
def test_what_has_no_place_is_an_error_not_a_wrong_row(record: Any) -> None:
    with pytest.raises((TypeError, ValueError)):
        (REQUESTS if isinstance(record, RequestRecord) else MINUTES).row(record)


def test_every_column_has_its_line_in_the_documentation() -> None:
    text = (Path(__file__).resolve().parents[2] / "docs" / "ledger.md").read_text()
    for table in (REQUESTS, MINUTES, EVENTS):
        lines = text.partition(f"### {table.name}\n")[2].partition("\n#")[0].splitlines()
        told = [name for line in lines if line.startswith("|") for name in re.findall(r"`(\w+)`", line.split("|")[1])]
        assert told == list(table.names)
