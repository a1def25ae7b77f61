"""Messages of a chat: what the user wrote, and the model's reply as it streams."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from textual.widget import Widget

Reason = Literal["stop", "length", "stopped", "failed"]


@dataclass(frozen=True, slots=True)
class ReplyStats:
    """Figures of one reply: seconds, tokens per second, tokens; `None` is unknown."""

    ttft: float | None = None
    ttl: float | None = None
    tokens_per_second: float | None = None
    tokens: int | None = None


class ChatMessage(Widget):
    """One message; `text` is its whole source text."""

    def __init__(self, role: str, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self.role = role
        self.text = text


class UserMessage(ChatMessage):
    """What the user (or the system prompt) said, shown as it was typed."""

    def __init__(self, text: str, *, role: str = "user", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(role, text, id=id, classes=classes)


class AssistantMessage(ChatMessage):
    """The model's reply: streaming Markdown, then its figures."""

    def __init__(self, text: str = "", *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__("assistant", text, id=id, classes=classes)

    def append(self, text: str) -> None:
        """Add streamed text; shown at most 10 times a second. Never blocks."""

    async def finish(self, stats: ReplyStats, reason: Reason = "stop", error: str = "") -> None:
        """End the reply: every token is shown, then the figures, and why it ended unless it was the model's own end.
        `error` is the sentence to show when `reason` is "failed"."""

    async def collapse(self) -> None:
        """Turn a finished message into one static widget, so that a long history stays cheap."""
