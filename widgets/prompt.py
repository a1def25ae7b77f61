"""The input of a chat."""

from __future__ import annotations

from rich.text import Text
from textual import events
from textual.binding import Binding
from textual.content import Content
from textual.message import Message
from textual.widgets import TextArea

from widgets.text import literal

HISTORY_LENGTH = 200


class PromptArea(TextArea):
    """Multi-line input: Enter sends, Shift+Enter or Ctrl+J breaks the line, up and down at the edges recall history.

    A paste is inserted and never sent, however many lines it has.
    """

    BINDINGS = [
        Binding("enter", "send", "Send", id="prompt.send", tooltip="Send the message"),
        Binding(
            "shift+enter,ctrl+j", "line_break", "New line", id="prompt.line-break", tooltip="Break the line", show=False
        ),
    ]

    DEFAULT_CSS = """
    PromptArea { height: auto; min-height: 3; max-height: 8; }
    """

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

    def __init__(self, *, placeholder: str = "", id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes, placeholder=Content(placeholder), show_line_numbers=False)
        self._history: list[str] = []
        self._recalled: int | None = None
        self._draft = ""

    def get_line(self, line_index: int) -> Text:
        """The line as it's drawn: control characters visible, positions unchanged."""
        return Text(literal(self.document.get_line(line_index)), end="", no_wrap=True)

    async def _on_key(self, event: events.Key) -> None:
        # Taken in turn with the characters before it: a priority binding would overtake what was typed fast.
        if event.key == "enter":
            event.stop()
            event.prevent_default()
            self.action_send()
        else:
            await super()._on_key(event)

    def action_send(self) -> None:
        """Send the text unless it's blank, remember it, and clear the input."""
        text = self.text
        if not text.strip():
            return
        if self._history[-1:] != [text]:
            self._history = [*self._history, text][-HISTORY_LENGTH:]
        self._recalled = None
        self.clear()
        self.post_message(self.Submitted(self, text))

    def action_line_break(self) -> None:
        """Insert a line break at the cursor."""
        self.replace("\n", *self.selection)

    def action_cursor_up(self, select: bool = False) -> None:
        """Move up; from the first row on, go back in the history."""
        if select or self._cursor_row() > 0 or not self._recall(-1):
            super().action_cursor_up(select)

    def action_cursor_down(self, select: bool = False) -> None:
        """Move down; from the last row on, go forward in the history."""
        last = self._cursor_row() >= self.wrapped_document.height - 1
        if select or not last or not self._recall(1):
            super().action_cursor_down(select)

    def on_paste(self, event: events.Paste) -> None:
        """Terminals paste line ends as carriage returns; make them line breaks."""
        event.text = event.text.replace("\r\n", "\n").replace("\r", "\n")

    def _cursor_row(self) -> int:
        return self.wrapped_document.location_to_offset(self.cursor_location).y

    def _recall(self, step: int) -> bool:
        """Show the entry `step` away in the history; the draft stands after the newest. False when there is none."""
        at = len(self._history) if self._recalled is None else self._recalled
        to = at + step
        if not 0 <= to <= len(self._history) or at == to:
            return False
        if self._recalled is None:
            self._draft = self.text
        newest = to == len(self._history)
        self._recalled = None if newest else to
        self.load_text(self._draft if newest else self._history[to])
        self.move_cursor(self.document.end)
        return True


if __name__ == "__main__":
    from widgets.demo import Demo

    Demo(PromptArea(placeholder="Ask something")).run()
