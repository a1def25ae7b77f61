"""What a report says, and that it shows names as they are and prompts never."""

import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest
from typer.testing import CliRunner

from console.cli.app import app
from engine_host.api.figures import BILL_PARTS
from engine_host.api.records import RequestCost
from engine_host.ledger.file import LEDGER_FILE
from engine_host.ledger.query import reading
from engine_host.ledger.summary import Summary, summarize
from engine_host.ledger.writer import AnyRecord, Writer
from engine_host.telemetry.sketch import Sketch
from tests.ledger.rows import NOON, event, minute, request

SINCE, UNTIL = "2026-09-21T12:00", "2026-09-21T15:00"
ODD = "<script>alert('$x$')</script>|`[a](b)`\x1b[31m\x00"


def samples(*seconds: float) -> bytes:
    sketch = Sketch()
    for each in seconds:
        sketch.add(each)
    return sketch.to_bytes()


ROWS: tuple[AnyRecord, ...] = (
    minute(time=NOON, ttft=samples(0.1), ttl=samples(*[0.01] * 99), price_estimated=True),
    minute(time=NOON + 60, ttft=samples(0.1), ttl=samples(0.5), energy_j=None, kv_used=None, utilization=0.25),
    minute(time=NOON + 3600, ttft=b"", ttl=b"", usd=None, utilization_label=ODD),
    minute(time=NOON + 4 * 3600),
    request(time=NOON + 1, id="dear", tier=ODD, key=ODD, cost=RequestCost(0.1, 0.1, 0.1, 0.5, 0.25, 0.25, 0.125)),
    *(request(time=NOON + 2, id=f"cheap-{n}") for n in range(12)),
    request(time=NOON + 3, finish_reason="refused", error=ODD, cost=None),
    event(time=NOON + 90, new=ODD),
)


@pytest.fixture(scope="module")
def ledger(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("ledger") / LEDGER_FILE
    writer = Writer(path)
    writer.write(ROWS)
    yield path
    writer.close()


@pytest.fixture(scope="module")
def summary(ledger: Path) -> Summary:
    with reading(ledger) as connection:
        return summarize(connection, NOON, NOON + 3 * 3600)


def report(ledger: Path, out: Path, *arguments: str) -> str:
    span = ("--since", SINCE, "--until", UNTIL, "--file", str(ledger), "--out", str(out))
    ran = CliRunner().invoke(app, ["report", *span, *arguments])
    assert ran.exit_code == 0, ran.output
    return out.read_text()


@pytest.fixture(scope="module")
def page(ledger: Path, tmp_path_factory: pytest.TempPathFactory) -> str:
    return report(ledger, tmp_path_factory.mktemp("report") / "report.html")


def figures(page: str) -> dict[str, str]:
    """The rows of the tables, by what stands in front."""
    rows = re.findall(r"<tr>(.*?)</tr>", page, re.DOTALL)
    cells = [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in rows]
    return {row[0]: " · ".join(row[1:]) for row in cells if row}


def test_the_bill_is_the_sum_of_the_minutes_that_have_a_price(summary: Summary) -> None:
    whole = summary.whole
    assert whole.minutes == 3
    assert sum(whole.seconds.values()) == pytest.approx(180)
    assert whole.unpriced_s == pytest.approx(60)
    assert whole.total_usd == pytest.approx(0.12)
    assert whole.charged_usd == pytest.approx(0.072)
    assert whole.usd is not None
    assert whole.usd["idle"] == pytest.approx(0.042)
    assert whole.usd_per_million_output == pytest.approx(0.12 / 2406 * 1e6)
    assert [hour.total_usd for hour in summary.hours] == [pytest.approx(0.12), None]
    assert whole.estimated


def test_percentiles_of_a_span_are_merged_not_averaged(summary: Summary) -> None:
    ttl = summary.whole.ttl.quantiles((0.5, 0.99))
    assert ttl == (pytest.approx(0.01, rel=0.01), pytest.approx(0.01, rel=0.01))
    assert summary.buckets[1].ttl.quantiles((0.99,)) == (pytest.approx(0.5, rel=0.01),)


def test_what_a_minute_does_not_know_is_in_no_mean(summary: Summary) -> None:
    assert summary.whole.mean("kv_used") == pytest.approx(0.5)
    assert summary.whole.mean("utilization") == pytest.approx((0.75 + 0.25 + 0.75) / 3)
    assert (summary.whole.energy_j, summary.whole.energy_minutes) == (36_000.0, 2)


def test_a_long_span_has_few_buckets_whose_minutes_add_up(tmp_path: Path) -> None:
    writer = Writer(tmp_path / LEDGER_FILE)
    writer.write([minute(time=NOON + 60 * n) for n in range(700)])
    with reading(tmp_path / LEDGER_FILE) as connection:
        found = summarize(connection, NOON, NOON + 700 * 60)
    writer.close()
    assert found.span_s == 180
    assert [bucket.minutes for bucket in found.buckets] == [3] * 233 + [1]


def test_the_key_figures_of_the_page(page: str) -> None:
    found = figures(page)
    assert found["Requests ended"] == "14"
    assert found["of them aborted / failed / refused"] == "0 / 0 / 1"
    assert found["Devices cost"] == "est. $0.12"
    assert found["What idle time cost"] == "est. $0.042"
    assert found["Price of a device-hour"] == "est. $3.60"
    assert found["What the prefix cache saved"] == "est. $0.13"
    assert found["Energy"] == "0.01 kWh (known for 2 minutes)"
    assert "1 min of device time have no price" in page
    assert "The ledger has 3 of 180 minutes" in page


def test_the_dearest_requests_are_ten_and_in_their_order(page: str) -> None:
    section = page[page.index("The 10 dearest requests") : page.index("Errors and refusals")]
    ids = re.findall(r"<td>(dear|cheap-\d+)</td>", section)
    assert ids[0] == "dear"
    assert len(ids) == 10


def test_a_page_needs_nothing_beside_it(page: str) -> None:
    assert not re.search(r"<script|<link|<img|@import|url\((?!#)|src=", page)
    # The only addresses are the names of the languages that the pictures are written in.
    assert set(re.findall(r"https?://[^\s\"'<]+", page)) <= {
        "http://www.w3.org/2000/svg",
        "http://www.w3.org/1999/xlink",
        "http://purl.org/dc/elements/1.1/",
        "http://creativecommons.org/ns#",
        "http://www.w3.org/1999/02/22-rdf-syntax-ns#",
        "http://purl.org/dc/dcmitype/StillImage",
    }


def test_the_charts_are_pictures_of_their_own(page: str) -> None:
    pictures = re.findall(r"<svg.*?</svg>", page, re.DOTALL)
    texts = ["".join(ElementTree.fromstring(picture).itertext()) for picture in pictures]
    assert len(texts) == 9
    # A dollar begins no mathematics: by tier, by key, and where the engine changed, of TTFT and of TTL.
    assert sum("alert('$x$')" in text for text in texts) == 4


def test_names_are_shown_as_they_are_and_prompts_never(page: str) -> None:
    assert "<script" not in page
    assert "&lt;script&gt;alert(" in page
    assert "\x1b" not in page
    assert "\x00" not in page
    assert r"\x1b[31m\x00" in page
    assert "secret" not in page


def test_markdown_has_its_charts_beside_it(ledger: Path, tmp_path: Path) -> None:
    text = report(ledger, tmp_path / "my report.md", "--format", "md")
    pictures = re.findall(r"\]\(<([^>]+)>\)", text)
    assert len(pictures) == 9
    for picture in pictures:
        assert (tmp_path / picture).read_bytes().startswith(b"\x89PNG")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["my report-charts", "my report.md"]
    assert r"\<script\>alert('\$x\$')\</script\>\|\`\[a\](b)\`" in text
    assert "<script" not in text.replace(r"\<script", "")
    assert "secret" not in text


def one(tmp_path: Path, *rows: Any) -> str:
    writer = Writer(tmp_path / LEDGER_FILE)
    writer.write(rows)
    writer.close()
    return report(tmp_path / LEDGER_FILE, tmp_path / "report.html")


def test_what_is_not_known_is_said_to_be_not_available(tmp_path: Path) -> None:
    unknown = dict.fromkeys(("kv_used", "utilization", "energy_j", "usd"))
    found = figures(page := one(tmp_path, minute(**unknown, output_tokens=0, queried_tokens=0)))
    for name in (
        "Devices cost",
        "What idle time cost",
        "Per 1M output tokens, idle time and all",
        "TTFT p50 / p99",
        "Energy",
    ):
        assert found[name] == "n/a"
    assert "Cost n/a" in page
    assert "KV cache in use: n/a" in page
    assert "est. $" not in page


def test_a_price_of_zero_is_no_unknown_one(tmp_path: Path) -> None:
    found = figures(
        one(tmp_path, minute(usd=dict.fromkeys(BILL_PARTS, 0.0)), request(cost=RequestCost(1, 1, 1, 0, 0, 0, 0)))
    )
    assert found["Devices cost"] == "$0"


def test_nothing_to_report_is_a_sentence_and_no_file(ledger: Path, tmp_path: Path) -> None:
    out = tmp_path / "report.html"
    ran = CliRunner().invoke(app, ["report", "--since", "1h", "--file", str(ledger), "--out", str(out)])
    assert ran.exit_code == 1
    assert "has nothing of that time" in ran.stderr
    assert not out.exists()


def test_help_loads_neither_matplotlib_nor_pyarrow() -> None:
    code = (
        "import sys; sys.argv = ['llmconsole', 'report', '--help']\nfrom console.__main__ import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "assert not {'matplotlib', 'pyarrow', 'numpy', 'msgspec', 'sqlite3'} & set(sys.modules)"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
