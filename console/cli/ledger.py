"""`llmconsole ledger …`: what requests used, cost and waited, from the ledger; also while a host writes it."""

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from console.cli.output import error, say, table

if TYPE_CHECKING:
    from engine_host.ledger.query import GroupLine

app = typer.Typer(help="Ask and export the ledger.", rich_markup_mode=None, no_args_is_help=True)


class By(StrEnum):
    """What requests are grouped by."""

    TIER = "tier"
    KEY = "key"
    MODEL = "model"
    PROFILE = "profile"
    HOUR = "hour"
    DAY = "day"


class FileFormat(StrEnum):
    """What a table is exported as."""

    CSV = "csv"
    JSONL = "jsonl"
    PARQUET = "parquet"


class WhichTable(StrEnum):
    """The ledger's tables."""

    REQUESTS = "requests"
    MINUTES = "minutes"
    EVENTS = "events"


WHEN = "24h|DATE"
Since = Annotated[
    str | None,
    typer.Option(metavar=WHEN, help="From then on: 30m, 24h, 7d ago, or 2026-12-31, 2026-12-31T18:00 (UTC)."),
]
Until = Annotated[str | None, typer.Option(metavar=WHEN, help="Before then. [default: now]")]
LedgerPath = Annotated[
    Path | None, typer.Option("--file", metavar="PATH", help="Another ledger. [default: this machine's]")
]


@app.command()
def query(
    since: Since = "24h",
    until: Until = None,
    tier: Annotated[str | None, typer.Option(metavar="NAME", help="Only of this tier.")] = None,
    key: Annotated[str | None, typer.Option(metavar="ID", help="Only with the key of this id.")] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="Only for this model.")] = None,
    profile: Annotated[str | None, typer.Option(metavar="NAME", help="Only under this profile.")] = None,
    finish: Annotated[
        str | None,
        typer.Option(metavar="REASON", help="Only those that ended so: stop, length, abort, error, refused."),
    ] = None,
    min_cost: Annotated[float | None, typer.Option(metavar="USD", help="Only those that cost at least this.")] = None,
    id_: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Only of this id: the engine's, or that of X-Request-Id.")
    ] = None,
    by: Annotated[By | None, typer.Option(help="Sums by group. [default: the requests themselves]")] = None,
    limit: Annotated[int, typer.Option(metavar="N", min=1, help="Most lines shown.")] = 50,
    as_json: Annotated[bool, typer.Option("--json", help="One JSON array instead of a table.")] = False,
    file: LedgerPath = None,
) -> None:
    """The latest requests, or sums over groups of them: tokens, cost, waiting times."""
    from engine_host.ledger.query import Filters, groups, reading, requests

    start, end = moments(since, until)
    filters = Filters(start, end, tier, key, model, profile, finish, min_cost, id_)
    with sentences(), reading(file or default_file()) as connection:
        if by is None:
            rows = requests(connection, filters, limit)
            _print_json(rows) if as_json else _print_requests(rows)
        else:
            lines = groups(connection, by.value, filters)
            kept = lines[-limit:] if by in (By.HOUR, By.DAY) else lines[:limit]
            _print_json(kept) if as_json else _print_groups(kept, by, len(lines) - len(kept))


@app.command()
def export(
    target: Annotated[Path, typer.Argument(metavar="FILE", help="Where to; - is standard output (csv, jsonl).")],
    form: Annotated[FileFormat | None, typer.Option("--format", help="[default: by the file's ending]")] = None,
    which: Annotated[WhichTable, typer.Option("--table", help="Which table.")] = WhichTable.REQUESTS,
    since: Since = None,
    until: Until = None,
    file: LedgerPath = None,
) -> None:
    """Write a table to a file; docs/ledger.md says what each column is. Prompts and replies only if kept."""
    from engine_host.ledger.columns import TABLES
    from engine_host.ledger.export import export as write
    from engine_host.ledger.export import export_text
    from engine_host.ledger.query import reading

    chosen = form or _by_ending(target)
    start, end = moments(since, until)
    span = (start or 0.0, end if until is not None else float("inf"))
    ledger, source = file or default_file(), TABLES[which.value]
    if target.resolve() == ledger.resolve():
        raise typer.BadParameter("That is the ledger itself.", param_hint="FILE")
    if str(target) == "-":
        if chosen is FileFormat.PARQUET:
            raise typer.BadParameter("Parquet needs a file: standard output takes csv and jsonl.", param_hint="FILE")
        with sentences(), reading(ledger) as connection:
            export_text(connection, source, "csv" if chosen is FileFormat.CSV else "jsonl", sys.stdout.buffer, *span)
            sys.stdout.buffer.flush()
        return
    with sentences(), reading(ledger) as connection:
        rows = write(connection, source, chosen.value, target, *span)
    say(f"{rows:,} rows of {which.value} are in {target}.")


def default_file() -> Path:
    """Where the host keeps its ledger."""
    from engine_host.ledger.file import LEDGER_FILE
    from engine_host.options import HostOptions

    return HostOptions().data_dir / LEDGER_FILE


@contextmanager
def sentences() -> Iterator[None]:
    """What is wrong with a file is said on standard error, and ends the command with 1."""
    from engine_host.ledger.file import LedgerError

    try:
        yield
    except BrokenPipeError:
        # Who reads has enough, as in `| head`. What Python flushes at its end must go somewhere.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        raise typer.Exit(1) from None
    except LedgerError as problem:
        error(str(problem))
        raise typer.Exit(1) from None
    except OSError as problem:
        error(f"{problem.filename or 'The file'} can't be written: {problem.strerror or problem}.")
        raise typer.Exit(1) from None


def moments(since: str | None, until: str | None) -> tuple[float | None, float]:
    """The Unix times meant; the end is now unless something else is said."""
    now = datetime.now(UTC).timestamp()
    end = _moment(until, now, "--until") if until is not None else now
    return (_moment(since, now, "--since") if since is not None else None), end


def _moment(text: str, now: float, option: str) -> float:
    from engine_host.ledger.query import moment

    try:
        return moment(text, now)
    except (ValueError, OverflowError):
        raise typer.BadParameter(
            f'"{text}" is neither a time such as 24h or 7d nor a date such as 2026-12-31 or 2026-12-31T18:00.',
            param_hint=f"'{option}'",
        ) from None


def _by_ending(target: Path) -> FileFormat:
    try:
        return FileFormat(target.suffix.removeprefix("."))
    except ValueError:
        raise typer.BadParameter("Say csv, jsonl or parquet.", param_hint="'--format'") from None


def _print_json(rows: Any) -> None:
    import msgspec

    sys.stdout.write(msgspec.json.encode(rows).decode() + "\n")


def _print_requests(rows: list[dict[str, Any]]) -> None:
    from widgets.units import count, duration, milliseconds, usd

    if not rows:
        say("No request has ended in that time, or none that is like this.")
        return
    columns: dict[str, Callable[[dict[str, Any]], str]] = {
        "Time (UTC)": lambda row: f"{datetime.fromtimestamp(row['time'], UTC):%Y-%m-%d %H:%M:%S}",
        "Id": lambda row: row["id"],
        "Tier": lambda row: row["tier"] or "–",
        "Key": lambda row: row["key"] or "–",
        "Profile": lambda row: row["profile"],
        "Prompt": lambda row: count(row["prompt_tokens"]),
        "Cached": lambda row: count(row["cached_tokens"]),
        "Output": lambda row: count(row["output_tokens"]),
        "TTFT": lambda row: milliseconds(row["ttft_s"]),
        "TTL p99": lambda row: milliseconds(row["ttl_p99_s"]),
        "Total": lambda row: duration(row["total_s"]),
        "Cost": lambda row: usd(row["usd"]),
        "End": lambda row: row["finish_reason"],
    }
    right = ("Prompt", "Cached", "Output", "TTFT", "TTL p99", "Total", "Cost")
    _table(columns, rows, right)


def _table(columns: dict[str, Callable[[Any], str]], items: Sequence[Any], right: Sequence[str]) -> None:
    from widgets.units import THIN_SPACE

    # What takes terminal codes out of names takes the thin space for one.
    cells = [[text(item).replace(THIN_SPACE, " ") for text in columns.values()] for item in items]
    table(tuple(columns), cells, right)


def _print_groups(lines: "list[GroupLine]", by: By, left_out: int) -> None:
    from widgets.units import count, milliseconds, usd

    if not lines:
        say("No request has ended in that time, or none that is like this.")
        return
    columns: dict[str, Callable[[GroupLine], str]] = {
        by.value.capitalize(): lambda line: line.group or "–",
        "Requests": lambda line: count(line.requests),
        "Failed": lambda line: count(line.failed),
        "Refused": lambda line: count(line.refused),
        "Input": lambda line: count(line.input_tokens),
        "Cached": lambda line: count(line.cached_tokens),
        "Output": lambda line: count(line.output_tokens),
        "Cost": spent,
        "$/1k requests": lambda line: usd(line.usd_per_thousand_requests),
        "$/1M output": lambda line: usd(line.usd_per_million_output),
        "TTFT p99": lambda line: milliseconds(line.ttft_p99_s),
        "TTL p99": lambda line: milliseconds(line.ttl_p99_s),
        "Requests' TTL p99": lambda line: milliseconds(line.request_ttl_p99_s),
    }
    _table(columns, lines, tuple(columns)[1:])
    if left_out:
        say(f"{left_out:,} more lines; --limit shows them.")
    if unpriced := sum(line.unpriced for line in lines):
        say(f"{unpriced:,} of the requests have no price, and are in no cost: where it says ≥, it is more.")


def spent(line: "GroupLine") -> str:
    """What a group cost; at least that, where some of its requests have no price."""
    from widgets.units import usd

    return f"≥ {usd(line.usd)}" if line.usd is not None and line.unpriced else usd(line.usd)
