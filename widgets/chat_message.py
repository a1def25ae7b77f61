"""Messages of a chat: what the user wrote, and the model's reply as it streams."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

from markdown_it import MarkdownIt
from rich.markdown import Markdown as StaticMarkdown
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Markdown, Static

from widgets import units
from widgets.open_block import OpenBlock
from widgets.text import literal

Reason = Literal["stop", "length", "stopped", "failed"]

FLUSH_SECONDS = 0.125
"""The shortest time between two updates of a streaming reply."""
FLUSH_COST = 3
"""No update sooner than this many times the last one's duration, so that drawing never takes over the loop."""
LONG_BLOCK = 4_000
"""Characters from which on an open block is shown as plain text until it closes: it would be parsed whole each time."""
TAIL_PART = 2_000

_ENDS: dict[Reason, tuple[str, str]] = {
    "stop": ("", ""),
    "length": ("✂ cut off: length limit", "bold $text-warning"),
    "stopped": ("■ stopped", "bold $text-warning"),
    "failed": ("✖ ", "bold $text-error"),
}


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """Figures of one reply: seconds, tokens per second, tokens; `None` is unknown."""

    ttft: float | None = None
    ttl: float | None = None
    tokens_per_second: float | None = None
    tokens: int | None = None

    def __str__(self) -> str:
        """The line under a reply."""
        return (
            f"TTFT {units.milliseconds(self.ttft)} · TTL {units.milliseconds(self.ttl)}"
            f" · {units.rate(self.tokens_per_second, 'tok')} · {units.count(self.tokens)} tokens"
        )


def _parser() -> MarkdownIt:
    """Markdown without HTML: a tag in a reply is text to be seen, not dropped."""
    return MarkdownIt("gfm-like", {"html": False, "linkify": False})


def _lines(text: str) -> str:
    return literal(text.replace("\r\n", "\n"))


class ChatMessage(Widget):
    """One message; `text` is its whole source text."""

    DEFAULT_CSS = """
    ChatMessage { height: auto; width: 1fr; margin: 0 0 1 0; padding: 0 1; border-left: thick $panel; }
    ChatMessage Static { height: auto; width: 1fr; }
    ChatMessage .message--role { color: $foreground-muted; text-style: bold; }
    ChatMessage .message--tail { padding: 0 2; height: auto; }
    ChatMessage .message--old { padding: 0 2; }
    """

    def __init__(self, role: str, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.role = role
        self._pieces = [text]

    @property
    def text(self) -> str:
        """The whole source text so far."""
        if len(self._pieces) > 1:
            self._pieces = ["".join(self._pieces)]
        return self._pieces[0]

    def compose(self) -> ComposeResult:
        """Who speaks, and the text as it stands."""
        yield Static(Content(literal(self.role)), classes="message--role")
        yield Static(Content(_lines(self.text)))


class UserMessage(ChatMessage):
    """What the user (or the system prompt) said, shown as it was typed."""

    DEFAULT_CSS = """
    UserMessage { border-left: thick $primary; }
    """

    def __init__(self, text: str, *, role: str = "user", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(role, text, id=id, classes=classes)


class AssistantMessage(ChatMessage):
    """The model's reply: streaming Markdown, then its figures.

    While it streams, closed blocks are Markdown and a very long open one continues as plain text. The end of the reply
    draws all of it once more from its source, so that nothing of a half-open block stays and no token is missing.
    """

    DEFAULT_CSS = """
    AssistantMessage { border-left: thick $secondary; }
    AssistantMessage .message--stats { color: $foreground-muted; }
    """

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("assistant", text, id=id, classes=classes)
        self._new: list[str] = [text]
        self._block = OpenBlock()
        self._drawn = ""  # the text in visible characters, as far as it was drawn
        self._shown = 0  # of it, how many characters were given to the Markdown widget
        self._tail_start = 0  # where the last part of the plain tail begins
        self._timer: Timer | None = None
        self._last_cost = 0.0
        self._last_end = 0.0
        self._lock = asyncio.Lock()
        self._finished = False

    def compose(self) -> ComposeResult:
        """Who speaks, the reply, what of it is still plain, and its figures."""
        yield Static(Content(self.role), classes="message--role")
        yield Markdown(parser_factory=_parser, open_links=False)
        yield Vertical(classes="message--tail")
        yield Static("", classes="message--stats", markup=False)

    def on_mount(self) -> None:
        """Draw what came before there was a place for it."""
        self.query_one(".message--tail").display = False
        self.query_one(".message--stats").display = False
        self._schedule()

    def append(self, text: str) -> None:
        """Add streamed text; shown at most 8 times a second. Never blocks."""
        if text and not self._finished:
            self._pieces.append(text)
            self._new.append(text)
            self._schedule()

    async def finish(self, stats: ReplyStats, reason: Reason = "stop", error: str = "") -> None:
        """End the reply: every token is shown, then the figures, and why it ended unless it was the model's own end.

        `error` is the sentence to show when `reason` is "failed". Call it once the message is mounted.
        """
        self._finished = True
        async with self._lock:
            self._stop_timer()
            await self.query_one(Markdown).update(_lines(self.text))
            tail = self.query_one(".message--tail")
            tail.display = False
            await tail.remove_children()
        mark, style = _ENDS[reason]
        line = Content.assemble(
            (mark + (literal(error) if reason == "failed" else ""), style), "\n" if mark else "", str(stats)
        )
        figures = self.query_one(".message--stats", Static)
        figures.update(line)
        figures.display = True

    async def collapse(self) -> None:
        """Turn a finished message into one static widget, so that a long history stays cheap."""
        async with self._lock:
            live = self.query(Markdown)
            if not self._finished or not live:
                return
            old = StaticMarkdown("", hyperlinks=False, code_theme="ansi_dark")
            old.markup = _lines(self.text)
            old.parsed = _parser().parse(old.markup)
            await self.mount(Static(old, classes="message--old"), before=self.query_one(".message--tail"))
            await live.remove()

    def _schedule(self) -> None:
        if self._timer is None and self.is_mounted and not self._finished and any(self._new):
            pause = max(FLUSH_SECONDS, FLUSH_COST * self._last_cost)
            delay = max(0.001, self._last_end + pause - time.monotonic())
            self._timer = self.set_timer(delay, self._flush)

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.stop()
            self._timer = None

    async def _flush(self) -> None:
        async with self._lock:
            if self._finished:
                return
            started = time.monotonic()
            piece = "".join(self._new)
            # A carriage return may be the first half of a line end.
            self._new = ["\r"] if piece.endswith("\r") else []
            await self._draw(_lines(piece.removesuffix("\r")))
            self._last_end = time.monotonic()
            self._last_cost = self._last_end - started
            self._timer = None
        if any(text != "\r" for text in self._new):
            self._schedule()

    async def _draw(self, piece: str) -> None:
        """Show the next piece of visible text: as Markdown, or in the plain tail of a long open block."""
        self._block.feed(piece)
        self._drawn += piece
        tail = self.query_one(".message--tail")
        if len(self._drawn) - self._block.start <= LONG_BLOCK:
            new, self._shown = self._drawn[self._shown :], len(self._drawn)
            await self.query_one(Markdown).append(new)
            if tail.display:
                tail.display = False
                await tail.remove_children()
            return
        if self._block.start > self._shown:
            new, self._shown = self._drawn[self._shown : self._block.start], self._block.start
            await self.query_one(Markdown).append(new)
            await tail.remove_children()
        await self._draw_tail(tail)

    async def _draw_tail(self, tail: Widget) -> None:
        """Show the rest as plain text, in parts of which only the last is laid out again as it grows."""
        tail.display = True
        if not tail.children:
            self._tail_start = self._shown
            await tail.mount(Static(markup=False))
        text = self._drawn[self._tail_start :]
        last = tail.query(Static).last()
        if len(text) > TAIL_PART and (cut := text.rfind("\n")) >= 0:
            last.update(Content(text[:cut]))
            self._tail_start += cut + 1
            last, text = Static(markup=False), text[cut + 1 :]
            await tail.mount(last)
        last.update(Content(text))


if __name__ == "__main__":
    from widgets.demo import Demo

    source = "# A reply\n\nWith **bold**, `code` and [brackets]:\n\n- one\n- two\n\n```python\nprint('hello')\n```\n\n"
    message = AssistantMessage()
    words = iter((source * 20).split(" "))

    def tick(_: float) -> None:
        """Stream three words."""
        message.append("".join(f"{word} " for word in (next(words, "") for _ in range(3))))

    Demo(UserMessage("Show me [b]Markdown[/b]."), message, tick=tick).run()
