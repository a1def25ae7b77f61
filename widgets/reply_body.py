"""The text of a reply as it streams: Markdown in sections, so that neither a token nor the end costs the whole text."""

from __future__ import annotations

from markdown_it import MarkdownIt
from rich.markdown import Markdown as StaticMarkdown
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Markdown, Static

from widgets.open_block import OpenBlock

LONG_BLOCK = 3_000
"""Characters from which on an open block is plain text: it would be parsed and laid out whole with each piece."""
LONGEST_MARKDOWN = 8_000
"""Characters from which on a block stays plain text when it has ended: drawing it would hold up the screen."""
LONG_SECTION = 6_000
"""Characters from which on the next block begins a new section."""
LIVE_SECTIONS = 1
"""Ended sections that stay live Markdown while the reply goes on."""
PLAIN_PART = 2_000
"""Characters from which on plain text goes on in a new widget: the last one is laid out with each piece."""


class ReplyBody(Vertical):
    """Sections under each other: Markdown, and very long blocks as plain text.

    A section ends where a block does. It is then drawn once more from its source, so that nothing of a half-open block
    stays. Text must be free of control characters (`widgets.text.literal`).
    """

    DEFAULT_CSS = """
    ReplyBody { height: auto; width: 1fr; }
    ReplyBody Static.reply--plain, ReplyBody Static.reply--old { padding: 0 2; height: auto; width: 1fr; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._text = ""
        self._block = OpenBlock()
        self._start = 0  # of the section that grows
        self._shown = 0  # characters of the text that are on the screen
        self._markdown: Markdown | None = None
        self._plain: list[Static] = []
        self._plain_start = 0  # of the last plain part

    async def draw(self, piece: str) -> None:
        """Show the next piece of the text."""
        for at in range(0, len(piece), PLAIN_PART):
            await self._draw(piece[at : at + PLAIN_PART])

    async def _draw(self, piece: str) -> None:
        self._text += piece
        self._block.feed(piece)
        block = self._block.start
        long = len(self._text) - block > LONG_BLOCK
        ended = block > self._start if self._plain else long or block - self._start > LONG_SECTION
        if ended:
            await self._end_section(block)
        if long:
            await self._draw_plain()
        else:
            await self._draw_markdown()

    async def finish(self) -> None:
        """Show all of it, drawn from its source."""
        await self._end_section(len(self._text))

    async def collapse(self) -> None:
        """Turn each Markdown section of a finished text into one static widget."""
        await self._collapse_sections(list(self.query(Markdown)))

    async def _collapse_sections(self, sections: list[Markdown]) -> None:
        for live in sections:
            old = StaticMarkdown("", hyperlinks=False, code_theme="ansi_dark")
            old.markup = live.source
            old.parsed = parser().parse(live.source)
            await self.mount(Static(old, classes="reply--old"), before=live)
            await live.remove()

    async def _draw_markdown(self) -> None:
        new, self._shown = self._text[self._shown :], len(self._text)
        if new:
            await (self._markdown or await self._add_markdown()).append(new)

    async def _add_markdown(self) -> Markdown:
        self._markdown = Markdown(parser_factory=parser, open_links=False)
        await self.mount(self._markdown)
        return self._markdown

    async def _draw_plain(self) -> None:
        part = self._plain[-1] if self._plain else await self._add_plain(self._start)
        text = self._text[self._plain_start :]
        if len(text) > PLAIN_PART and (cut := text.rfind("\n")) >= 0:
            part.update(Content(text[:cut]))
            part = await self._add_plain(self._plain_start + cut + 1)
            text = text[cut + 1 :]
        part.update(Content(text))
        self._shown = len(self._text)

    async def _add_plain(self, start: int) -> Static:
        part = Static(markup=False, classes="reply--plain")
        self._plain.append(part)
        self._plain_start = start
        await self.mount(part)
        return part

    async def _end_section(self, end: int) -> None:
        """Draw the section once more as far as `end`; what comes after belongs to the next one."""
        text = self._text[self._start : end]
        if self._plain and len(text) > LONGEST_MARKDOWN:
            self._plain[-1].update(Content(self._text[self._plain_start : end].rstrip("\n")))
        elif text:
            await (self._markdown or await self._add_markdown()).update(text)
            await self.remove_children(self._plain)
        elif self._markdown is not None:
            await self._markdown.remove()
        self._markdown, self._plain = None, []
        self._start = self._shown = end
        # Each piece lays all live widgets of the reply out again, and a section is hundreds of them.
        await self._collapse_sections(list(self.query(Markdown))[:-LIVE_SECTIONS])


def parser() -> MarkdownIt:
    """Markdown without HTML: a tag in a reply is text to be seen, not dropped."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})
