"""A request's part in a kept conversation: what was said before comes in front, and its reply is remembered."""

from collections.abc import Callable
from typing import Any

from aiohttp import web

from engine_host.gateway.session_reply import ReplyCollector
from engine_host.gateway.sessions import SessionBook, Ticket
from engine_host.port.backend import JsonReply
from engine_host.port.context import CALLER

SESSION_ID = "X-Session-Id"
SESSION_HEADER = "X-LLMConsole-Session"
"""Says of a request that names a session whether one is kept, and how many of its turns were left out."""

_PATH = "/v1/chat/completions"


class Conversation:
    """One request: `body` is what is sent to the model, `tap` is shown the stream that is the reply."""

    def __init__(self, book: SessionBook | None, body: dict[str, Any], ticket: Ticket | None, max_bytes: int) -> None:
        self.body = body
        self._book = book
        self._ticket = ticket
        self._reply = ReplyCollector(max_bytes) if ticket is not None else None

    @classmethod
    async def begin(
        cls, book: SessionBook | None, request: web.Request, body: dict[str, Any], reply_headers: dict[str, str]
    ) -> "Conversation":
        """Go on with the session that the request names, if it names one. Raises `Refusal`."""
        session_id = request.headers.get(SESSION_ID)
        if session_id is None or request.path != _PATH:
            return cls(None, body, None, 0)
        if book is None:
            reply_headers[SESSION_HEADER] = "off"
            return cls(None, body, None, 0)
        whole, ticket = await book.begin(request[CALLER].key_id, session_id, body)
        if ticket is not None:
            left_out = f"; {ticket.dropped_turns} turns left out" if ticket.dropped_turns else ""
            reply_headers[SESSION_HEADER] = f"kept{left_out}"
        return cls(book, dict(whole), ticket, book.max_bytes)

    @property
    def tap(self) -> Callable[[bytes], None] | None:
        """Where the bytes of a streamed reply go, too."""
        return self._reply.feed if self._reply is not None else None

    def whole(self, reply: JsonReply) -> None:
        """The reply came in one piece."""
        if self._reply is not None and reply.status == 200:
            self._reply.feed_json(reply.body)

    async def end(self) -> None:
        """Remember what was delivered. Never raises."""
        if self._book is not None and self._reply is not None:
            await self._book.end(self._ticket, self._reply.message())
