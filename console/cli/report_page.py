"""A report as blocks, and the blocks as one HTML page or as Markdown. Everything that came from outside is escaped."""

import html
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from console.cli.output import plain
from console.cli.report_charts import Chart
from widgets.units import THIN_SPACE

CSS = """
body{font:15px/1.5 system-ui,sans-serif;color:#222;max-width:60rem;margin:2rem auto;padding:0 1rem}
h1{font-size:1.5rem}h2{font-size:1.15rem;margin-top:2.2rem;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-variant-numeric:tabular-nums}div{overflow-x:auto}
th,td{padding:.2rem .8rem .2rem 0;text-align:left;vertical-align:top}th{border-bottom:1px solid #888}
.n{text-align:right;white-space:nowrap}figure{margin:1rem 0}figcaption{color:#555}svg{max-width:100%;height:auto}
"""


@dataclass(frozen=True)
class Heading:
    """The heading of a section; of level 1 that of the report."""

    text: str
    level: int = 2


@dataclass(frozen=True)
class Words:
    """A paragraph."""

    text: str


@dataclass(frozen=True)
class Grid:
    """A table; the columns named in `right` are numbers."""

    headings: Sequence[str]
    rows: Sequence[Sequence[str]]
    right: Sequence[str] = ()


Block = Heading | Words | Grid | Chart


def as_html(title: str, blocks: Sequence[Block]) -> str:
    """One page that needs nothing beside it: no scripts, no files, no network."""
    head = (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        "<meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'\">\n"
        f"<title>{_html(title)}</title>\n<style>{CSS}</style>\n</head>\n<body>\n"
    )
    return head + "\n".join(map(_html_of, blocks)) + "\n</body>\n</html>\n"


def as_markdown(blocks: Sequence[Block], place: Callable[[Chart], str]) -> str:
    """Markdown (CommonMark with tables); `place` tells the relative path of a chart's picture."""
    return "\n\n".join(_markdown_of(block, place) for block in blocks) + "\n"


def _html_of(block: Block) -> str:
    if isinstance(block, Heading):
        return f"<h{block.level}>{_html(block.text)}</h{block.level}>"
    if isinstance(block, Words):
        return f"<p>{_html(block.text)}</p>"
    if isinstance(block, Grid):
        classes = [' class="n"' if heading in block.right else "" for heading in block.headings]
        head = "".join(f"<th{kind}>{_html(text)}</th>" for kind, text in zip(classes, block.headings, strict=True))
        rows = "".join(
            "<tr>"
            + "".join(f"<td{kind}>{_html(cell)}</td>" for kind, cell in zip(classes, row, strict=True))
            + "</tr>\n"
            for row in block.rows
        )
        return f"<div><table>\n<tr>{head}</tr>\n{rows}</table></div>"
    title = _html(block.title)
    return f"<figure>\n<figcaption>{title}</figcaption>\n{block.svg()}\n</figure>"


def _markdown_of(block: Block, place: Callable[[Chart], str]) -> str:
    if isinstance(block, Heading):
        return f"{'#' * block.level} {_markdown(block.text)}"
    if isinstance(block, Words):
        return _markdown(block.text)
    if isinstance(block, Grid):
        rule = ["---:" if heading in block.right else "---" for heading in block.headings]
        rows = [[_markdown(cell) for cell in row] for row in (block.headings, *block.rows)]
        return "\n".join(f"| {' | '.join(row)} |" for row in (rows[0], rule, *rows[1:]))
    return f"{_markdown(block.title)}\n\n![{_markdown(block.title)}]({place(block)})"


def _plain(text: str) -> str:
    return plain(text.replace(THIN_SPACE, " "))


def _html(text: str) -> str:
    return html.escape(_plain(text))


def _markdown(text: str) -> str:
    """Text that Markdown shows as it is; the dollar begins mathematics for some readers."""
    return re.sub(r"([\\`*_\[\]|~$<>&])", r"\\\1", _plain(text))
