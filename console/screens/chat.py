"""The chat with the served model."""

from collections.abc import Iterable

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static
from textual.worker import Worker

from console.chat_session import ChatSession, Conversation, Turn
from console.screens.base import HostScreen
from console.screens.system_prompt import SystemPromptScreen
from console.screens.turn_view import TurnView
from engine_host.api.types import Snapshot
from widgets.chat_message import UserMessage
from widgets.prompt import PromptArea
from widgets.text import literal

LIVE_TURNS = 3
"""Turns kept as live Markdown; older ones become one static widget each."""
MOUNTED_TURNS = 100
"""Turns kept on screen; older ones stay part of the chat."""


class ChatScreen(HostScreen):
    """One conversation. Esc means, in this order: stop the reply, leave the edit, go between input and transcript."""

    CSS_PATH = "chat.tcss"
    AUTO_FOCUS = "PromptArea"
    BINDINGS = [
        Binding("escape", "escape", "Stop", id="chat.stop", priority=True, tooltip="Stop the reply; leave the input"),
        Binding(
            "ctrl+r", "regenerate", "Again", id="chat.regenerate", show=False, tooltip="Answer the last question again"
        ),
        Binding("ctrl+n", "new_chat", "New", id="chat.new", tooltip="Forget this chat and begin another"),
        Binding("ctrl+o", "system_prompt", "System", id="chat.system", show=False, tooltip="Edit the system prompt"),
        Binding("k", "turn(-1)", "Previous turn", id="chat.previous", show=False),
        Binding("j", "turn(1)", "Next turn", id="chat.next", show=False),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._session: ChatSession | None = None
        self._editing: Turn | None = None
        self._answering: Worker[None] | None = None

    def compose_body(self) -> ComposeResult:
        """The transcript above the input."""
        with VerticalScroll(id="transcript"):
            yield Static("", id="welcome", markup=False)
            yield Static("", id="earlier", markup=False)
        with Vertical(id="composer", classes="panel"):
            yield PromptArea(placeholder="Ask something", id="prompt")

    def on_mount(self) -> None:
        """Keep the end of the transcript in view."""
        super().on_mount()
        self.query_one("#transcript", VerticalScroll).anchor()
        self.query_one("#earlier").display = False
        self._show_composer()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Greet with the model's name."""
        state = "" if snapshot.state.name == "ready" else " It's not ready yet: a question waits until it is."
        hello = f"You are talking to {literal(snapshot.model.name)}.{state}"
        self.query_one("#welcome", Static).update(Content(hello))

    def commands(self) -> Iterable[SystemCommand]:
        """Everything about a chat, by name."""
        yield SystemCommand("New chat", "Forget this chat and begin another", self.action_new_chat)
        yield SystemCommand("Regenerate", "Answer the last question again", self.action_regenerate)
        yield SystemCommand("System prompt", "Edit the system prompt", self.action_system_prompt)

    @property
    def session(self) -> ChatSession | None:
        """The conversation with the host; `None` until the host is connected."""
        app = self.console_app
        if self._session is None and app.host is not None:
            conversation = Conversation(app.settings.system_prompt)
            self._session = ChatSession(
                app.host, lambda: app.snapshot.model.name if app.snapshot is not None else "", conversation
            )
        return self._session

    async def on_prompt_area_submitted(self, event: PromptArea.Submitted) -> None:
        """Ask, or ask the edited question anew."""
        session = self.session
        if session is None or session.busy:
            event.prompt.text = event.text
            self.console_app.say("A reply is still coming. Esc stops it." if session else "The host isn't there yet.")
            return
        chat = session.conversation
        if self._editing is not None and self._editing in chat.turns:
            index = chat.turns.index(self._editing)
            turn = chat.edit(index, event.text)
        else:
            turn = chat.ask(event.text)
        self._editing = None
        await self._show_reply_of(turn)

    def on_turn_view_edit_asked(self, event: TurnView.EditAsked) -> None:
        """Take the question back into the input."""
        self._editing = event.turn
        prompt = self.query_one(PromptArea)
        prompt.text = event.turn.question
        prompt.move_cursor(prompt.document.end)
        prompt.focus()
        self._show_composer()

    def action_escape(self) -> None:
        """Stop the reply; else leave the edit; else go between input and transcript."""
        prompt = self.query_one(PromptArea)
        if self._session is not None and self._session.busy:
            self._session.stop()
        elif self._editing is not None:
            self._editing = None
            prompt.clear()
            self._show_composer()
        elif prompt.has_focus:
            views = self.query(TurnView)
            (views.last() if views else self.query_one("#transcript")).focus()
        else:
            prompt.focus()

    async def action_regenerate(self) -> None:
        """Answer the last question again."""
        session = self.session
        if session is None or session.busy:
            self.console_app.say("A reply is still coming. Esc stops it.")
        elif (turn := session.conversation.regenerate()) is not None:
            await self._show_reply_of(turn)

    async def action_new_chat(self) -> None:
        """Stop what comes, and begin with an empty history."""
        if self._session is not None:
            self._session.stop()
        if self._answering is not None and not self._answering.is_finished:
            await self._answering.wait()
        if self._session is not None:
            self._session.conversation.clear()
        self._editing = None
        await self._drop_forgotten()
        self._show_composer()
        self.query_one(PromptArea).focus()

    def action_system_prompt(self) -> None:
        """Edit the system prompt in a dialog."""
        session = self.session
        if session is not None and not isinstance(self.app.screen, SystemPromptScreen):
            self.app.push_screen(SystemPromptScreen(session.conversation.system_prompt), self._system_prompt_edited)

    def action_turn(self, step: int) -> None:
        """Focus the turn before or after the focused one."""
        views = list(self.query(TurnView))
        if not views:
            return
        at = views.index(self.focused) + step if isinstance(self.focused, TurnView) else len(views) - 1
        views[max(0, min(at, len(views) - 1))].focus()

    def _system_prompt_edited(self, prompt: str | None) -> None:
        if prompt is None or self._session is None:
            return
        self._session.conversation.system_prompt = prompt
        self.run_worker(self._show_system_prompt(prompt))

    async def _show_system_prompt(self, prompt: str) -> None:
        await self.query("#system").remove()
        if prompt.strip():
            message = UserMessage(prompt, role="system", id="system")
            await self.query_one("#transcript").mount(message, after=self.query_one("#earlier"))

    async def _show_reply_of(self, turn: Turn) -> None:
        """Put the turn at the end of the transcript and let its reply stream."""
        await self._drop_forgotten()
        view = TurnView(turn)
        transcript = self.query_one("#transcript", VerticalScroll)
        await transcript.mount(view)
        transcript.anchor()
        self._answering = self.run_worker(self._answer(turn, view), group="answer")

    async def _answer(self, turn: Turn, view: TurnView) -> None:
        assert self._session is not None
        self._show_composer(busy=True)
        await self._session.answer(turn, view)
        await view.finish()
        self._show_composer()
        for older in list(self.query(TurnView))[:-LIVE_TURNS]:
            await older.collapse()

    async def _drop_forgotten(self) -> None:
        """Remove the views of turns that are no longer part of the chat, or too old to keep on screen."""
        turns = self._session.conversation.turns if self._session is not None else []
        kept = turns[-MOUNTED_TURNS:]
        for view in self.query(TurnView):
            if view.turn not in kept:
                await view.remove()
        earlier = self.query_one("#earlier", Static)
        earlier.display = len(turns) > len(kept)
        earlier.update(f"{len(turns) - len(kept)} earlier turns are part of the chat, but no longer shown.")

    def _show_composer(self, busy: bool = False) -> None:
        composer = self.query_one("#composer")
        composer.set_class(self._editing is not None, "-editing")
        composer.border_title = "Edit the question; its reply and all after it are forgotten" if self._editing else ""
        composer.border_subtitle = (
            "esc stops the reply"
            if busy
            else "esc keeps the question"
            if self._editing
            else "enter sends · shift+enter breaks the line"
        )
