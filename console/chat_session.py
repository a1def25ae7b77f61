"""A chat with the served model: its history, and one reply at a time streamed into it. No user interface here."""

import asyncio
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Literal, Protocol

from engine_host.api.contract import ChatMessage, HostApi, HostError, HostUnreachable

TurnState = Literal["waiting", "streaming", "done", "stopped", "failed"]

UNREACHABLE_RETRY_S = 1.0


@dataclass(slots=True)
class Figures:
    """What one reply took, seen from here; `None` is unknown. Times in seconds.

    ttft: from sending the request that was answered to its first text. ttl: first to last text over tokens - 1.
    tokens_per_second: tokens over the time from sending to the last text. tokens: the port's own count, so unknown for
    a reply that was stopped.
    """

    ttft: float | None = None
    ttl: float | None = None
    tokens_per_second: float | None = None
    tokens: int | None = None


@dataclass(slots=True, eq=False)
class Turn:
    """A question and its reply. `error` is the sentence to show when it failed."""

    question: str
    answer: str = ""
    state: TurnState = "waiting"
    finish_reason: str | None = None
    error: str = ""
    figures: Figures = field(default_factory=Figures)

    @property
    def cut_off(self) -> bool:
        """Whether the reply ended because it reached a length limit, not because the model was done."""
        return self.finish_reason == "length"


@dataclass(slots=True)
class Conversation:
    """The system prompt and the turns, oldest first."""

    system_prompt: str = ""
    turns: list[Turn] = field(default_factory=list)

    def ask(self, question: str) -> Turn:
        """Add a turn at the end."""
        turn = Turn(question)
        self.turns.append(turn)
        return turn

    def edit(self, index: int, question: str) -> Turn:
        """Ask turn `index` anew with other words; it and every turn after it are forgotten."""
        del self.turns[index:]
        return self.ask(question)

    def regenerate(self) -> Turn | None:
        """Ask the last question again in place of its reply; `None` when there is no turn."""
        return self.edit(-1, self.turns[-1].question) if self.turns else None

    def clear(self) -> None:
        """Forget all turns; the system prompt stays."""
        self.turns.clear()

    def request_for(self, turn: Turn) -> list[ChatMessage]:
        """The messages to send for this turn's reply.

        Earlier turns without any reply are left out: chat templates want the roles to alternate.
        """
        messages = [ChatMessage("system", self.system_prompt)] if self.system_prompt.strip() else []
        for earlier in self.turns[: self.turns.index(turn)]:
            if earlier.answer:
                messages += [ChatMessage("user", earlier.question), ChatMessage("assistant", earlier.answer)]
        return [*messages, ChatMessage("user", turn.question)]


class ReplyView(Protocol):
    """Whoever shows a reply while it comes."""

    def waiting(self, sentence: str) -> None:
        """The request can't be answered yet, for the reason in the sentence; it will be tried again."""
        ...

    def append(self, text: str) -> None:
        """More of the reply, as Markdown; a reasoning model's thoughts come first, quoted."""
        ...


class ChatSession:
    """One conversation with one host; at most one reply streams at a time."""

    def __init__(
        self,
        host: HostApi,
        model: Callable[[], str],
        conversation: Conversation | None = None,
        *,
        clock: Callable[[], float] = time.monotonic,
        sleep: Callable[[float], Awaitable[None]] = asyncio.sleep,
    ) -> None:
        """`model` gives the name to ask for, read anew at each try; `clock` and `sleep` count seconds."""
        self.conversation = conversation or Conversation()
        self._host = host
        self._model = model
        self._clock = clock
        self._sleep = sleep
        self._reply: asyncio.Task[None] | None = None

    @property
    def busy(self) -> bool:
        """Whether a reply is awaited or streaming."""
        return self._reply is not None

    async def answer(self, turn: Turn, view: ReplyView) -> None:
        """Get the reply of this turn, showing it to `view`; returns when the turn is done, stopped or failed."""
        if self._reply is not None:
            raise RuntimeError("a reply is already streaming")
        self._reply = asyncio.create_task(self._until_answered(turn, view))
        try:
            await asyncio.wait({self._reply})
        finally:
            self._reply.cancel()
            failure = None if self._reply.cancelled() or not self._reply.done() else self._reply.exception()
            self._reply = None
        if failure is not None:
            raise failure

    def stop(self) -> None:
        """End the reply that is awaited or streaming, keeping the text so far; nothing happens when there is none."""
        if self._reply is not None and not self._reply.cancelling():
            self._reply.cancel()

    async def _until_answered(self, turn: Turn, view: ReplyView) -> None:
        try:
            while not await self._try(turn, view):
                pass
        except asyncio.CancelledError:
            turn.state = "stopped"
        except (HostError, HostUnreachable) as error:
            turn.state, turn.error = "failed", str(error)

    async def _try(self, turn: Turn, view: ReplyView) -> bool:
        """Send the request once; False when the host isn't ready yet and it's time to try again."""
        try:
            await self._stream(turn, view)
        except HostError as error:
            if error.status != 503 or error.retry_after is None or turn.state == "streaming":
                raise
            view.waiting(str(error))
            await self._sleep(error.retry_after)
            return False
        except HostUnreachable as error:
            if turn.state == "streaming":
                raise
            view.waiting(str(error))
            await self._sleep(UNREACHABLE_RETRY_S)
            return False
        return True

    async def _stream(self, turn: Turn, view: ReplyView) -> None:
        figures = turn.figures
        sent = self._clock()
        first = last = None
        thinking = False
        chunks = self._host.chat(self._model(), self.conversation.request_for(turn))
        try:
            async for chunk in chunks:
                if chunk.text or chunk.reasoning:
                    last = self._clock()
                    if first is None:
                        first, turn.state = last, "streaming"
                        figures.ttft = first - sent
                if chunk.reasoning:
                    view.append(("" if thinking else "> ") + chunk.reasoning.replace("\n", "\n> "))
                    thinking = True
                if chunk.text:
                    turn.answer += chunk.text
                    view.append("\n\n" + chunk.text if thinking else chunk.text)
                    thinking = False
                turn.finish_reason = chunk.finish_reason or turn.finish_reason
                if chunk.completion_tokens is not None:
                    figures.tokens = chunk.completion_tokens
        finally:
            await chunks.aclose()
        if figures.tokens and first is not None and last is not None:
            figures.tokens_per_second = figures.tokens / (last - sent) if last > sent else None
            figures.ttl = (last - first) / (figures.tokens - 1) if figures.tokens > 1 else None
        turn.state = "done"
