"""`llmconsole report`: one page on what a span of time cost, how it felt, and where the money went."""

from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.ledger import LedgerPath, Since, Until, default_file, moments, sentences
from console.cli.output import error, say
from profiles.files import beside

if TYPE_CHECKING:
    from engine_host.ledger.summary import Summary


class ReportFormat(StrEnum):
    """What a report is written as."""

    HTML = "html"
    MARKDOWN = "md"


def report(
    since: Since = "24h",
    until: Until = None,
    form: Annotated[
        ReportFormat, typer.Option("--format", help="HTML is one file; Markdown has its charts beside it.")
    ] = (ReportFormat.HTML),
    out: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Where to. [default: llmconsole-report.html or .md, here]")
    ] = None,
    file: LedgerPath = None,
) -> None:
    """Write a report from the ledger: cost, latency, device, the dearest requests. Prompts are never in it."""
    from engine_host.ledger.query import reading
    from engine_host.ledger.summary import summarize

    start, end = moments(since, until)
    target = out or Path(f"llmconsole-report.{form.value}")
    ledger = file or default_file()
    if target.resolve() == ledger.resolve():
        raise typer.BadParameter("That is the ledger itself.", param_hint="'--out'")
    with sentences():
        with reading(ledger) as connection:
            summary = summarize(connection, start or 0.0, end)
        if summary.total is None and not summary.whole.minutes:
            error(f"{ledger} has nothing of that time, so there is no report; --since reaches further back.")
            raise typer.Exit(1)
        _write(summary, form, target)
    say(f"The report is in {target}.")


def _write(summary: "Summary", form: ReportFormat, target: Path) -> None:
    from console.cli.report_blocks import blocks
    from console.cli.report_charts import Chart
    from console.cli.report_page import as_html, as_markdown

    made = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"
    content = blocks(summary, made)
    if form is ReportFormat.HTML:
        _put(target, as_html("llmconsole report", content).encode())
        return
    folder = target.with_name(f"{target.stem}-charts")
    folder.mkdir(exist_ok=True)

    def place(chart: Chart) -> str:
        _put(folder / f"{chart.name}.png", chart.png())
        # A path in Markdown ends at a space unless it stands in angle brackets.
        return f"<{folder.name}/{chart.name}.png>"

    _put(target, as_markdown(content, place).encode())


def _put(target: Path, content: bytes) -> None:
    with beside(target) as new:
        new.write_bytes(content)
