"""Questions to the ledger and its exports, on rows whose right answers are known by hand."""

import base64
import csv
import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet
from typer.testing import CliRunner, Result

from console.cli.app import app
from engine_host.api.figures import BILL_PARTS
from engine_host.api.records import RequestCost
from engine_host.ledger.columns import REQUESTS, TABLES
from engine_host.ledger.file import LEDGER_FILE
from engine_host.ledger.past import minutes
from engine_host.ledger.query import Filters, GroupLine, groups, moment, reading, requests
from engine_host.ledger.writer import AnyRecord, Writer
from engine_host.telemetry.sketch import Sketch
from tests.ledger.rows import NOON, event, minute, request

CHEAP = RequestCost(0.1, 0.2, 0.1, 0.001, 0.002, 0.001, 0.0005)
DEAR = RequestCost(0.1, 0.2, 0.1, 0.01, 0.02, 0.01, 0.0)
NO_PRICE = RequestCost(0.1, 0.2, 0.1)


@pytest.fixture
def keep(tmp_path: Path) -> Iterator[Callable[..., Path]]:
    """Rows of a ledger that a host still has open."""
    writer = Writer(tmp_path / LEDGER_FILE)

    def write(*records: AnyRecord) -> Path:
        writer.write(records)
        return tmp_path / LEDGER_FILE

    yield write
    writer.close()


def by(path: Path, group: Any, **filters: Any) -> dict[str, GroupLine]:
    with reading(path) as connection:
        return {line.group: line for line in groups(connection, group, Filters(**filters))}


def ids(path: Path, **filters: Any) -> list[Any]:
    with reading(path) as connection:
        return [row["id"] for row in requests(connection, Filters(**filters), 10)]


def samples(*seconds: float) -> bytes:
    sketch = Sketch()
    for each in seconds:
        sketch.add(each)
    return sketch.to_bytes()


def test_the_sums_of_a_group(keep: Callable[..., Path]) -> None:
    path = keep(
        request(tier="gold", output_tokens=30, cost=CHEAP, cached_tokens=None),
        request(tier="gold", output_tokens=10, cost=DEAR, finish_reason="abort"),
        request(tier="gold", output_tokens=500, cost=NO_PRICE, finish_reason="error"),
        request(
            tier="gold",
            prompt_tokens=7,
            cached_tokens=None,
            output_tokens=0,
            cost=None,
            ttft_s=None,
            finish_reason="refused",
        ),
        request(tier="none", cost=NO_PRICE),
    )
    lines = by(path, "tier")
    assert list(lines) == ["gold", "none"]
    gold = lines["gold"]
    assert (gold.requests, gold.aborted, gold.failed, gold.refused) == (4, 1, 1, 1)
    # Computed: 100 of the first, whose cached ones aren't known, and 60 of the others; none of what was refused.
    assert (gold.input_tokens, gold.cached_tokens, gold.output_tokens) == (220, 80, 540)
    assert gold.usd == pytest.approx(0.044)
    assert gold.saved_usd == pytest.approx(0.0005)
    assert gold.unpriced == 1
    # Over the two that have a price.
    assert gold.usd_per_thousand_requests == pytest.approx(22.0)
    # Memory: 0.001 USD over 100 + 30 tokens of the one, 0.01 over 60 + 40 + 10 of the other.
    assert gold.usd_per_million_input == pytest.approx((0.011 + 0.1 / 130 + 0.6 / 110) / 160 * 1e6)
    assert gold.usd_per_million_cached == pytest.approx(0.4 / 110 / 40 * 1e6)
    assert gold.usd_per_million_output == pytest.approx((0.022 + 0.03 / 130 + 0.1 / 110) / 40 * 1e6)
    none = lines["none"]
    assert (none.usd, none.usd_per_thousand_requests, none.usd_per_million_output, none.unpriced) == (
        None,
        None,
        None,
        1,
    )


def test_percentiles_are_of_all_values_by_nearest_rank(keep: Callable[..., Path]) -> None:
    path = keep(
        *(request(tier="t", ttft_s=float(n), ttl_p99_s=n / 10) for n in range(200, 0, -1)),
        request(tier="t", ttft_s=None, ttl_p99_s=None),
        request(tier="u", ttft_s=None, ttl_p99_s=0.5),
    )
    lines = by(path, "tier")
    assert (lines["t"].ttft_p99_s, lines["t"].request_ttl_p99_s) == (198.0, 19.8)
    assert (lines["u"].ttft_p99_s, lines["u"].request_ttl_p99_s) == (None, 0.5)


def test_the_tokens_percentile_is_merged_from_the_minutes(keep: Callable[..., Path]) -> None:
    path = keep(
        request(),
        request(tier="gold"),
        minute(ttl=samples(*[0.01] * 98)),
        minute(time=NOON + 60, ttl=samples(0.3, 0.3)),
        minute(time=NOON + 120, ttl=b""),
        minute(time=NOON + 180, model="other", ttl=samples(9.0)),
    )
    # Of 100 tokens the 99th is one of the two slow ones; the mean of the minutes' percentiles would be 0.155.
    assert by(path, "model")["model"].ttl_p99_s == pytest.approx(0.3, rel=0.01)
    assert by(path, "all", model="model")[""].ttl_p99_s == pytest.approx(0.3, rel=0.01)
    # Minutes are of all tiers together: they say nothing of one.
    assert by(path, "tier")["gold"].ttl_p99_s is None
    assert by(path, "model", tier="gold")["model"].ttl_p99_s is None


def test_hours_and_days_are_in_their_order_whatever_they_cost(keep: Callable[..., Path]) -> None:
    path = keep(
        request(time=NOON + 3600, cost=CHEAP),
        request(time=NOON + 3599.9, cost=DEAR),
        request(time=NOON - 43_200, cost=CHEAP),
        request(time=NOON - 43_200.1, cost=DEAR),
    )
    assert [name[11:] for name in by(path, "hour")] == ["23:00Z", "00:00Z", "12:00Z", "13:00Z"]
    assert [line.requests for line in by(path, "day").values()] == [1, 3]


@pytest.mark.parametrize(
    ("filters", "found"),
    [
        ({}, ["d", "c", "b", "a"]),
        ({"since": NOON + 1, "until": NOON + 3}, ["c", "b"]),
        ({"tier": "gold"}, ["b"]),
        ({"key": "k1"}, ["c"]),
        ({"model": "other"}, ["a"]),
        ({"profile": "throughput"}, ["d"]),
        ({"finish": "length"}, ["b"]),
        ({"min_usd": 0.004}, ["d", "b", "a"]),
        ({"min_usd": 0.04, "since": NOON + 1}, ["b"]),
        ({"tier": "' OR 1 --"}, []),
        ({"id": "b"}, ["b"]),
        ({"id": "theirs"}, ["c"]),
    ],
)
def test_filters(keep: Callable[..., Path], filters: dict[str, Any], found: list[str]) -> None:
    path = keep(
        request(id="a", time=NOON, model="other", cost=CHEAP),
        request(id="b", time=NOON + 1, tier="gold", finish_reason="length", cost=DEAR),
        request(id="c", request_id="theirs", time=NOON + 2, key="k1", cost=NO_PRICE),
        request(id="d", time=NOON + 3, profile="throughput", cost=CHEAP),
    )
    assert ids(path, **filters) == found


def test_moments() -> None:
    assert moment("24h", NOON) == NOON - 86_400
    assert moment("7d", NOON) == NOON - 7 * 86_400
    assert moment("2026-12-31", NOON) == 1_798_675_200.0
    assert moment("2026-12-31T01:00+01:00", NOON) == 1_798_675_200.0
    for text in ("yesterday", "", "-3h", "3 h"):
        with pytest.raises(ValueError, match=r".*"):
            moment(text, NOON)


def test_a_minute_as_a_point_of_a_plot(keep: Callable[..., Path]) -> None:
    (point,) = minutes(keep(minute()), NOON, NOON + 60)
    assert (point.time, point.span_s, point.prefill_tps, point.decode_tps) == (NOON, 60.0, 10.0, 20.0)
    assert (point.running, point.waiting, point.power, point.fill_rate) == (2, 0, 300.0, 0.25)
    assert point.usd_per_hour == pytest.approx(3.6)
    assert point.attributed == pytest.approx(36 / 60)


def test_without_a_price_the_time_tells_the_share_and_nothing_the_money(keep: Callable[..., Path]) -> None:
    unpriced, unpaid, timeless, nothing = minutes(
        keep(
            minute(usd=None),
            minute(time=NOON + 1, usd=dict.fromkeys(BILL_PARTS, 0.0)),
            minute(time=NOON + 2, seconds={}),
            minute(time=NOON + 3, seconds={}, usd=None),
        ),
        0,
        NOON * 2,
    )
    assert (unpriced.usd_per_hour, unpriced.attributed) == (None, pytest.approx(36 / 60))
    assert (unpaid.usd_per_hour, unpaid.attributed) == (0.0, pytest.approx(36 / 60))
    assert (timeless.usd_per_hour, timeless.attributed) == (pytest.approx(3.6), pytest.approx(36 / 60))
    assert (nothing.usd_per_hour, nothing.attributed) == (None, None)


def test_the_latest_minutes_are_kept_of_too_many(keep: Callable[..., Path]) -> None:
    path = keep(*(minute(time=NOON + 60 * n) for n in range(5)))
    assert [point.time - NOON for point in minutes(path, NOON, NOON + 240, limit=2)] == [120, 180]


@pytest.fixture
def ledger(keep: Callable[..., Path], monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr("engine_host.ledger.export.CHUNK", 2)
    return keep(
        request(id="a", time=0.1 + 0.2, prompt=None, reply=None),
        request(id='comma, "quote"\nline', error="ünï\x00", cost=RequestCost(0.1, 0.2, 1 / 3, 1e-17, 2 / 3, 0.0, None)),
        request(id="c", cost=None, ttft_s=None),
        minute(ttl=samples(0.5)),
        event(message="[/red]"),
    )


def run(*arguments: object) -> Result:
    return CliRunner().invoke(app, ["ledger", *map(str, arguments)])


def exported(ledger: Path, target: Path, table: str = "requests") -> Path:
    ran = run("export", target, "--table", table, "--file", ledger)
    assert ran.exit_code == 0, ran.output
    assert list(target.parent.glob("*.new")) == []
    return target


def stored(ledger: Path, table: Any) -> list[dict[str, Any]]:
    with reading(ledger) as connection:
        rows = connection.execute(f"SELECT * FROM {table} ORDER BY rowid").fetchall()
    return [dict(zip(TABLES[table].names, row, strict=True)) for row in rows]


@pytest.mark.parametrize("table", ["requests", "minutes", "events"])
def test_parquet_read_again_is_the_table(ledger: Path, tmp_path: Path, table: str) -> None:
    assert parquet.read_table(exported(ledger, tmp_path / "out.parquet", table)).to_pylist() == stored(ledger, table)


def test_json_lines_read_again_are_the_table(ledger: Path, tmp_path: Path) -> None:
    lines = exported(ledger, tmp_path / "out.jsonl").read_text().splitlines()
    assert [json.loads(line) for line in lines] == stored(ledger, "requests")
    assert REQUESTS.record(json.loads(lines[2])).cost is None


def test_csv_read_again_is_the_table(ledger: Path, tmp_path: Path) -> None:
    with exported(ledger, tmp_path / "out.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert tuple(rows[0]) == REQUESTS.names
    for row, right in zip(rows, stored(ledger, "requests"), strict=True):
        assert row == {name: "" if value is None else str(value) for name, value in right.items()}
    # A number's text is read as the same number.
    assert float(rows[0]["time"]) == 0.1 + 0.2
    assert float(rows[1]["cost_memory_s"]) == 1 / 3


def test_sketches_are_exported_as_base64(ledger: Path, tmp_path: Path) -> None:
    (row,) = map(json.loads, exported(ledger, tmp_path / "out.jsonl", "minutes").read_text().splitlines())
    assert Sketch.from_bytes(base64.b64decode(row["ttl"])).count == 1


def test_an_export_of_some_time_to_standard_output(ledger: Path) -> None:
    ran = run("export", "-", "--format", "csv", "--until", "1970-01-02", "--file", ledger)
    assert [row["id"] for row in csv.DictReader(ran.stdout.splitlines())] == ["a"]


def test_a_reader_that_has_enough_is_no_error_to_tell(ledger: Path) -> None:
    command = [sys.executable, "-m", "console", "ledger", "export", "-", "--format", "csv", "--file", str(ledger)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as ran:
        assert ran.stdout is not None
        assert ran.stderr is not None
        ran.stdout.close()
        assert ran.stderr.read() == ""


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("query", "--file", "nowhere.db"), "There is no ledger at nowhere.db"),
        (("export", "out.csv", "--file", "nowhere.db"), "There is no ledger at nowhere.db"),
        (("export", "/nowhere/out.csv"), "/nowhere/.out.csv"),
    ],
)
def test_errors_are_sentences(ledger: Path, arguments: tuple[str, ...], sentence: str) -> None:
    ran = run(*arguments, *(() if "--file" in arguments else ("--file", ledger)))
    assert ran.exit_code == 1
    assert sentence in ran.stderr
    assert len(ran.stderr.splitlines()) == 1


@pytest.mark.parametrize(
    "arguments",
    [
        ("query", "--since", "yesterday"),
        ("export", "out.txt"),
        ("export", "-", "--format", "parquet"),
        ("export", "LEDGER", "--format", "csv"),
    ],
)
def test_what_was_typed_wrong_is_said_before_anything_is_done(ledger: Path, arguments: tuple[str, ...]) -> None:
    before = stored(ledger, "requests")
    ran = run(*(str(ledger) if each == "LEDGER" else each for each in arguments), "--file", ledger)
    assert ran.exit_code == 2
    assert stored(ledger, "requests") == before


def test_the_table_of_requests_shows_no_prompts_and_acts_on_no_names(keep: Callable[..., Path]) -> None:
    path = keep(request(id="[/red]\x1b[31m", tier="gold"), request(cost=None, ttft_s=None, finish_reason="refused"))
    ran = run("query", "--since", "2000-01-01", "--file", path)
    assert ran.exit_code == 0, ran.output
    assert r"[/red]\x1b[31m" in ran.stdout
    assert "secret" not in ran.stdout
    assert "$0.003" in ran.stdout
    assert ran.stdout.splitlines()[1].count("n/a") == 2


def test_the_table_of_groups(keep: Callable[..., Path]) -> None:
    path = keep(request(tier="gold"), request(tier="gold"), request(tier="", cost=NO_PRICE))
    ran = run("query", "--since", "2000-01-01", "--by", "tier", "--limit", "1", "--file", path)
    heading, line, more = ran.stdout.splitlines()
    assert heading.split()[:2] == ["Tier", "Requests"]
    assert line.split()[:2] == ["gold", "2"]
    assert "1 more" in more
    ran = run("query", "--since", "2000-01-01", "--by", "tier", "--file", path)
    assert ran.stdout.splitlines()[-1].startswith("1 of the requests have no price")
    ran = run("query", "--since", "2000-01-01", "--by", "day", "--file", path)
    assert "≥ $0.006" in ran.stdout


def test_json_of_groups_and_of_requests(keep: Callable[..., Path]) -> None:
    path = keep(request())
    (group,) = json.loads(run("query", "--since", "2000-01-01", "--by", "day", "--json", "--file", path).stdout)
    assert (group["requests"], group["usd"], group["ttl_p99_s"]) == (1, pytest.approx(0.003), None)
    (row,) = json.loads(run("query", "--since", "2000-01-01", "--json", "--file", path).stdout)
    assert (row["id"], row["usd"], "prompt" in row) == ("req-1", pytest.approx(0.003), False)


def test_nothing_found_is_a_sentence(keep: Callable[..., Path]) -> None:
    assert "No request" in run("query", "--tier", "none", "--file", keep(request())).stdout
