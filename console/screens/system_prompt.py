"""The editor of a chat's system prompt."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Static, TextArea


class SystemPromptScreen(ModalScreen[str | None]):
    """Dismissed with the new system prompt, or `None` when it was left as it was."""

    BINDINGS = [
        Binding("ctrl+s", "save", "Save", id="system.save", priority=True, tooltip="Use it from now on"),
        Binding("escape", "leave", "Leave", id="system.leave", priority=True, tooltip="Keep the old system prompt"),
    ]
    DEFAULT_CSS = """
    SystemPromptScreen TextArea { height: 10; }
    """

    def __init__(self, prompt: str) -> None:
        super().__init__()
        self._prompt = prompt

    def compose(self) -> ComposeResult:
        """A text area and what the keys do."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "System prompt"
            dialog.border_subtitle = "^s saves · esc leaves"
            yield Static("Sent before every chat; empty for none.", classes="muted")
            yield TextArea(self._prompt)

    def action_save(self) -> None:
        """Close with the text."""
        self.dismiss(self.query_one(TextArea).text)

    def action_leave(self) -> None:
        """Close without it."""
        self.dismiss(None)
