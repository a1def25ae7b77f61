"""Conversations kept on the host, so that a client that names one (`X-Session-Id`) sends only its new turn."""

import asyncio
import logging
import re
import time
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

from engine_host.gateway.budget_store import StoreError, Watch
from engine_host.gateway.refusal import Refusal
from engine_host.gateway.session_stores import RedisSessions, SessionStore, SqliteSessions
from engine_host.gateway.session_turns import Conversation, Message, decode, encode, merge, remember, split, trim
from profiles.gateway import Sessions as Rules

log = logging.getLogger(__name__)

PATIENCE_S = 1.0
"""Longest wait for the session's last request, in seconds: a client may have its reply before the host has kept it."""

RETRY_AFTER_S = 5.0
"""When to ask again while the store can't be reached; as for budgets."""

SESSIONS_FILE = "sessions.db"
"""Name of the file in the data folder."""

SESSION_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


@dataclass(eq=False, slots=True, weakref_slot=True)
class Ticket:
    """One request of a session, to be handed to `end` once. `dropped_turns` were left out of what is sent."""

    owner: str
    session_id: str
    version: str = ""
    messages: list[Message] = field(default_factory=list)
    dropped_turns: int = 0
    ended: asyncio.Event = field(default_factory=asyncio.Event)


class SessionBook:
    """Puts the kept conversation in front of a request's messages, and keeps the reply.

    One request of a session runs at a time. A session belongs to its owner: another one's of the same name is another.
    """

    def __init__(
        self,
        store: SessionStore,
        rules: Callable[[], Rules],
        context_length: Callable[[], int | None],
        count: Callable[[Message], int],
        clock: Callable[[], float] = time.time,
    ) -> None:
        """`rules` are the profile's of the moment, `context_length` the model's in tokens, `None` while unknown.

        `count` gives a message's tokens; it is called in a thread. `clock` gives Unix time.
        """
        self._store = store
        self._rules = rules
        self._context_length = context_length
        self._count = count
        self._clock = clock
        self._watch = Watch("sessions", "requests of a session are refused with 503 until it can")
        # Weak, so that a ticket that is lost does not hold its session for ever.
        self._running: WeakValueDictionary[tuple[str, str], Ticket] = WeakValueDictionary()
        self._tasks: set[asyncio.Task[Any]] = set()

    @property
    def max_bytes(self) -> int:
        """Largest conversation that is kept."""
        return self._rules().max_bytes

    async def begin(
        self, owner: str, session_id: str, body: Mapping[str, Any], patience_s: float = PATIENCE_S
    ) -> tuple[Mapping[str, Any], Ticket | None]:
        """The body of a chat completion with the conversation in it, and a ticket for `end`.

        The body itself and no ticket while sessions are off, or where its messages are none (what validates it says
        so). Raises `Refusal`: 400 for a bad id, 409 where another request of the session has not ended within
        `patience_s` seconds, 503 where the store can't be used.
        """
        rules = self._rules()
        messages = body.get("messages")
        if not rules.enabled:
            return body, None
        _check_id(session_id)
        if not isinstance(messages, list) or not messages or not all(isinstance(each, dict) for each in messages):
            return body, None
        ticket = await self._claim(owner, session_id, patience_s)
        try:
            found = await self._bounded(self._store.load(owner, session_id, self._clock(), rules.ttl_s))
            if found is not None:
                ticket.version = found.version
            ticket.messages, sent = await asyncio.to_thread(self._prepare, found and found.data, messages, rules)
            ticket.dropped_turns = len(split(ticket.messages).turns) - len(split(sent).turns)
        except BaseException:
            self._leave(ticket)
            raise
        return {**body, "messages": sent}, ticket

    async def end(self, ticket: Ticket | None, reply: Message | None) -> None:
        """Keep the turn with the assistant's message, whole or cut short; keep nothing where there is none.

        Never raises; done also where the caller is cancelled meanwhile.
        """
        if ticket is None:
            return
        if reply is None or not self._rules().enabled:
            self._leave(ticket)
            return
        await asyncio.shield(self._spawn(self._keep(ticket, reply)))

    async def delete(self, owner: str, session_id: str) -> bool:
        """Forget a session, also what its running request would add; whether there was one.

        Raises `Refusal` 400 for a bad id, 503 where the store can't be used.
        """
        _check_id(session_id)
        running = self._running.get((owner, session_id))
        if running is not None:
            self._leave(running)
        return await self._bounded(self._store.delete(owner, session_id)) or running is not None

    async def sweep(self) -> None:
        """Delete what was unused too long; to be called now and then, for nothing else does while no session is used.

        Never raises.
        """
        rules = self._rules()
        try:
            await self._watch.bounded(self._store.sweep(self._clock(), rules.ttl_s, rules.max_sessions))
        except StoreError as error:
            log.debug("sessions were not swept: %s", error)

    async def close(self) -> None:
        """Write what is not written yet, and let go of the store."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._store.close()

    async def _claim(self, owner: str, session_id: str, patience_s: float) -> Ticket:
        key = owner, session_id
        try:
            async with asyncio.timeout(patience_s):
                while (running := self._running.get(key)) is not None:
                    await running.ended.wait()
        except TimeoutError:
            raise Refusal(
                409,
                f"Another request of session {session_id} is still running. Wait for its reply, or use another "
                "X-Session-Id for what is to run beside it.",
                kind="ConflictError",
                param="X-Session-Id",
            ) from None
        ticket = self._running[key] = Ticket(owner, session_id)
        return ticket

    def _leave(self, ticket: Ticket) -> None:
        if self._running.get((ticket.owner, ticket.session_id)) is ticket:
            del self._running[ticket.owner, ticket.session_id]
        ticket.ended.set()

    def _prepare(
        self, data: bytes | None, messages: list[Message], rules: Rules
    ) -> tuple[list[Message], list[Message]]:
        """In a thread: the whole conversation, and what of it is sent."""
        whole = merge(decode(data) if data else Conversation(), messages)
        context = self._context_length()
        window = rules.window or (context and context // 2)
        return whole, trim(whole, window, self._count) if window else whole

    async def _keep(self, ticket: Ticket, reply: Message) -> None:
        rules = self._rules()
        try:
            data = await asyncio.to_thread(_data, ticket.messages, reply, rules.max_bytes)
            if data is None:
                log.warning("a turn of a session is larger than gateway.sessions.max_bytes, and was not kept")
            elif not ticket.ended.is_set():  # Else it was deleted meanwhile.
                saving = self._store.save(
                    ticket.owner,
                    ticket.session_id,
                    ticket.version,
                    data,
                    self._clock(),
                    rules.ttl_s,
                    rules.max_sessions,
                )
                if not await self._watch.bounded(saving):
                    log.warning("a turn of a session was not kept: the session was changed or deleted meanwhile")
        except StoreError:
            log.warning("a turn of a session was not kept: its store can't be used")
        finally:
            self._leave(ticket)

    async def _bounded(self, work: Coroutine[Any, Any, Any]) -> Any:
        try:
            return await self._watch.bounded(work)
        except StoreError:
            raise Refusal(
                503,
                "The conversation of this session can't be read, because the store of sessions can't be reached. Send "
                "the request again in some seconds, or the whole conversation without X-Session-Id.",
                retry_after_s=RETRY_AFTER_S,
            ) from None

    def _spawn(self, work: Coroutine[Any, Any, None]) -> "asyncio.Task[None]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def open_sessions(
    store_url: str | None,
    data_dir: Path,
    rules: Callable[[], Rules],
    context_length: Callable[[], int | None],
    count: Callable[[Message], int],
    clock: Callable[[], float] = time.time,
) -> SessionBook:
    """Sessions in the Redis at `store_url`, or in `SESSIONS_FILE` in `data_dir` without one; see `SessionBook`.

    Nothing is opened or written before the first request of a session.
    """
    store: SessionStore = RedisSessions(store_url) if store_url else SqliteSessions(data_dir / SESSIONS_FILE)
    return SessionBook(store, rules, context_length, count, clock)


def _check_id(session_id: str) -> None:
    if not SESSION_ID.fullmatch(session_id):
        raise Refusal(
            400,
            "X-Session-Id must be 1 to 128 characters of A-Z, a-z, 0-9, dot, underscore, colon and hyphen.",
            param="X-Session-Id",
        )


def _data(messages: list[Message], reply: Message, max_bytes: int) -> bytes | None:
    kept = remember(messages, reply, max_bytes)
    return None if kept is None else encode(kept)
