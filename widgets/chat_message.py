"""Messages of a chat: what the user wrote, and the model's reply as it streams."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass
from typing import Literal

from textual.app import ComposeResult
from textual.content import Content
from textual.timer import Timer
from textual.widget import Widget
from textual.widgets import Static

from widgets import units
from widgets.reply_body import ReplyBody
from widgets.text import literal

Reason = Literal["stop", "length", "stopped", "failed"]

FLUSH_SECONDS = 0.125
"""The shortest time between two updates of a streaming reply."""
FLUSH_COST = 3
"""No update sooner than this many times the last one's duration, so that drawing never takes over the loop."""
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


def _lines(text: str) -> str:
    return literal(text.replace("\r\n", "\n"))


class ChatMessage(Widget):
    """One message; `text` is its whole source text."""

    DEFAULT_CSS = """
    ChatMessage { height: auto; width: 1fr; margin: 0 0 1 0; padding: 0 1; border-left: thick $panel; }
    ChatMessage Static { height: auto; width: 1fr; }
    ChatMessage .message--role { color: $foreground-muted; text-style: bold; }
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
    """The model's reply: streaming Markdown (see `ReplyBody`), then its figures."""

    DEFAULT_CSS = """
    AssistantMessage { border-left: thick $secondary; }
    AssistantMessage .message--stats { color: $foreground-muted; }
    """

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("assistant", text, id=id, classes=classes)
        self._new: list[str] = [text]
        self._body = ReplyBody()
        self._timer: Timer | None = None
        self._last_cost = 0.0
        self._last_end = 0.0
        self._lock = asyncio.Lock()
        self._finished = False

    def compose(self) -> ComposeResult:
        """Who speaks, the reply, and its figures."""
        yield Static(Content(self.role), classes="message--role")
        yield self._body
        yield Static("", classes="message--stats", markup=False)

    def on_mount(self) -> None:
        """Draw what came before there was a place for it."""
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
            await self._body.draw(_lines("".join(self._new)))
            self._new.clear()
            await self._body.finish()
        mark, style = _ENDS[reason]
        line = Content.assemble(
            (mark + (literal(error) if reason == "failed" else ""), style), "\n" if mark else "", str(stats)
        )
        figures = self.query_one(".message--stats", Static)
        figures.update(line)
        figures.display = True

    async def collapse(self) -> None:
        """Turn a finished message into few static widgets, so that a long history stays cheap."""
        async with self._lock:
            if self._finished:
                await self._body.collapse()

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
            await self._body.draw(_lines(piece.removesuffix("\r")))
            self._last_end = time.monotonic()
            self._last_cost = self._last_end - started
            self._timer = None
        if any(text != "\r" for text in self._new):
            self._schedule()


if __name__ == "__main__":
    from widgets.demo import Demo

    source = "# A reply\n\nWith **bold**, `code` and [brackets]:\n\n- one\n- two\n\n```python\nprint('hello')\n```\n\n"
    message = AssistantMessage()
    words = iter((source * 20).split(" "))

    def tick(_: float) -> None:
        """Stream three words."""
        message.append("".join(f"{word} " for word in (next(words, "") for _ in range(3))))

    Demo(UserMessage("Show me [b]Markdown[/b]."), message, tick=tick).run()
