"""The input of a chat."""

from __future__ import annotations

from textual.message import Message
from textual.widgets import TextArea


class PromptArea(TextArea):
    """Multi-line input: Enter sends, Shift+Enter or Ctrl+J breaks the line, up and down at the edges recall history."""

    class Submitted(Message):
        """The user sent `text` (never blank)."""

        def __init__(self, prompt: PromptArea, text: str) -> None:
            super().__init__()
            self.prompt = prompt
            self.text = text

        @property
        def control(self) -> PromptArea:
            """The sending input."""
            return self.prompt
