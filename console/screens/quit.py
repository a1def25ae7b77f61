"""The question before a quit that would end requests."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, Static


def _requests(count: int) -> str:
    return f"{count} request" if count == 1 else f"{count} requests"


class QuitScreen(ModalScreen[bool]):
    """Asks; dismissed with whether to quit."""

    BINDINGS = [
        Binding("y", "answer(True)", "Quit", id="quit.yes", tooltip="End the requests and quit"),
        Binding("n,escape", "answer(False)", "Stay", id="quit.no", tooltip="Back to the console"),
    ]

    def __init__(self, running: int, waiting: int) -> None:
        super().__init__()
        self._requests_running = running
        self._requests_waiting = waiting

    def compose(self) -> ComposeResult:
        """The question and its two answers."""
        waiting = f" and {self._requests_waiting} waiting" if self._requests_waiting else ""
        question = f"{_requests(self._requests_running)} running{waiting}. Quitting ends them and stops the engine."
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Quit"
            yield Static(Content(question))
            with Horizontal(classes="buttons"):
                yield Button("Stay (n)", id="stay", compact=True)
                yield Button("Quit (y)", id="quit", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button is an answer too."""
        self.action_answer(event.button.id == "quit")

    def action_answer(self, leave: bool) -> None:
        """Close with the answer."""
        self.dismiss(leave)
