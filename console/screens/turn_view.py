"""One turn of a chat on screen: the question, the reply as it comes, and why it has to wait."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.message import Message
from textual.widgets import Static

from console.chat_session import Turn
from widgets.chat_message import AssistantMessage, Reason, ReplyStats, UserMessage
from widgets.text import literal


class TurnView(Vertical, can_focus=True):
    """Shows a turn and, as its `ReplyView`, what comes for it."""

    BINDINGS = [
        Binding("e", "edit", "Edit", id="turn.edit", tooltip="Ask this question again in other words"),
        Binding("y", "copy", "Copy", id="turn.copy", tooltip="Copy the reply"),
    ]
    DEFAULT_CSS = """
    TurnView { height: auto; }
    TurnView:focus { background: $surface; }
    TurnView .notice { display: none; height: auto; color: $text-warning; padding: 0 1 1 2; }
    TurnView .notice.-shown { display: block; }
    """

    class EditAsked(Message):
        """The user wants to ask this question in other words."""

        def __init__(self, turn: Turn) -> None:
            super().__init__()
            self.turn = turn

    def __init__(self, turn: Turn) -> None:
        super().__init__()
        self.turn = turn
        self._reply = AssistantMessage()
        self._waits = False

    def compose(self) -> ComposeResult:
        """Question, notice, reply."""
        yield UserMessage(self.turn.question)
        yield Static("", classes="notice", markup=False)
        yield self._reply

    def waiting(self, sentence: str) -> None:
        """Say why the reply doesn't come yet."""
        self._notice(f"◐ {literal(sentence)} Waiting; Esc stops.")

    def append(self, text: str) -> None:
        """Show more of the reply."""
        if self._waits:
            self._notice("")
        self._reply.append(text)

    async def finish(self) -> None:
        """Show the whole reply, its figures, and why it ended."""
        self._notice("")
        turn, figures = self.turn, self.turn.figures
        reason: Reason = "stop"
        if turn.state == "failed":
            reason = "failed"
        elif turn.state == "stopped":
            reason = "stopped"
        elif turn.cut_off:
            reason = "length"
        stats = ReplyStats(figures.ttft, figures.ttl, figures.tokens_per_second, figures.tokens)
        await self._reply.finish(stats, reason, turn.error)

    async def collapse(self) -> None:
        """Make the finished reply cheap to keep."""
        await self._reply.collapse()

    def action_edit(self) -> None:
        """Ask for an edit."""
        self.post_message(self.EditAsked(self.turn))

    def action_copy(self) -> None:
        """Copy the reply to the terminal's clipboard."""
        self.app.copy_to_clipboard(self.turn.answer)
        self.app.notify("The reply is copied.", markup=False)

    def _notice(self, text: str) -> None:
        self._waits = bool(text)
        notice = self.query_one(".notice", Static)
        notice.set_class(bool(text), "-shown")
        notice.update(Content(text))
