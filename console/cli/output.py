"""What commands print: sentences, tables and progress. Names and messages are never markup or terminal codes."""

import json
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from engine_host.models.importer import ImportProgress


def plain(text: str) -> str:
    """`text` on one line, with control characters shown as escapes instead of acted on by the terminal."""
    return "".join(c if c.isprintable() else c.encode("unicode_escape", "backslashreplace").decode() for c in text)


def error(sentence: str) -> None:
    """Print one sentence on standard error."""
    sys.stderr.write(f"{plain(sentence)}\n")


def say(sentence: str) -> None:
    """Print one sentence on standard output."""
    sys.stdout.write(f"{plain(sentence)}\n")


def table(headings: Sequence[str], rows: Sequence[Sequence[str]], right: Sequence[str] = ()) -> None:
    """Print rows under headings; the columns named in `right` are aligned to the right. Piped, nothing is cut."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    grid = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for heading in headings:
        grid.add_column(heading, justify="right" if heading in right else "left", overflow="fold")
    for row in rows:
        grid.add_row(*(Text(plain(cell)) for cell in row))
    out = Console(markup=False, highlight=False)
    if not out.is_terminal:
        out.width = 10_000
    out.print(grid)


@contextmanager
def import_progress(title: str, as_json: bool = False) -> Iterator[Callable[["ImportProgress"], None]]:
    """A progress bar on standard error while the block runs; without a terminal a line for each phase.

    `as_json` writes that line as the JSON log lines of `llmconsole serve` are written.
    """
    if as_json or not sys.stderr.isatty():
        yield _phase_lines(title, as_json)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)

        def show(step: "ImportProgress") -> None:
            # Just below the total: at it the bar would count as finished, and its clock would stop.
            done = min(step.fraction or 0.0, 0.999)
            total = 1.0 if step.fraction is not None else None
            bar.update(task, description=f"{title}: {step.phase}", total=total, completed=done)

        yield show


def _phase_lines(title: str, as_json: bool) -> Callable[["ImportProgress"], None]:
    last = ""

    def show(step: "ImportProgress") -> None:
        nonlocal last
        if step.phase == last:
            return
        last = step.phase
        event = f"{title}: {step.phase}"
        if as_json:
            now = datetime.now(UTC).isoformat(timespec="milliseconds")
            event = json.dumps({"time": now, "level": "info", "source": "host", "event": event}, ensure_ascii=False)
        sys.stderr.write(f"{event}\n")
        sys.stderr.flush()

    return show
