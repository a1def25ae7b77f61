"""The question before a profile is applied."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from engine_host.api.types import ProfileChange
from widgets import marks
from widgets.text import one_line

LIVE = "Live: in force at the next step. No request is touched."
REBUILD = (
    "The engine is rebuilt. Requests are kept: running ones go on after it or are drained first, "
    "waiting and new ones are held meanwhile."
)


class ApplyScreen(ModalScreen[str | None]):
    """Dismissed with the reason (which may be empty), or `None` when nothing is to be applied."""

    BINDINGS = [Binding("escape", "leave", "Leave", id="apply.leave", tooltip="Change nothing")]

    def __init__(self, change: ProfileChange, why: str = "") -> None:
        """`why` is a reason to start from."""
        super().__init__()
        self._change = change
        self._why = why

    def compose(self) -> ComposeResult:
        """What will happen, and a line for the reason."""
        change = self._change
        kind: marks.EventKind = "rebuild" if change.rebuild else "live"
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Apply a profile"
            dialog.border_subtitle = "enter applies · esc leaves"
            names = f" {one_line(change.old)} → {one_line(change.new)}"
            yield Static(Content.assemble((marks.GLYPHS[kind], marks.COLORS[kind]), (names, "bold")))
            yield Static(REBUILD if change.rebuild else LIVE, classes="muted", markup=False)
            yield Input(
                self._why, placeholder="why, in a line (may be left empty)", id="why", max_length=200, compact=True
            )

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter applies."""
        self.dismiss(event.value.strip())

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)
