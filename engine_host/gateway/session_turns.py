"""Conversations as turns: what a client's messages add to what is kept, and what of it is sent. Pure functions."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

Message = dict[str, Any]
"""One message of OpenAI's chat API, as the client sent it."""

Turn = tuple[Message, ...]


@dataclass(frozen=True, slots=True)
class Conversation:
    """`system` are the system and developer messages at the beginning.

    Each turn begins with a user message and has all that follows it up to the next one: replies, tool calls and their
    results. Only the first may begin otherwise, where the conversation does.
    """

    system: Turn = ()
    turns: tuple[Turn, ...] = ()

    @property
    def messages(self) -> list[Message]:
        """All messages in order."""
        return [*self.system, *chain.from_iterable(self.turns)]


def split(messages: Sequence[Message]) -> Conversation:
    """The messages as a conversation; joined again they are the same messages."""
    begin = 0
    while begin < len(messages) and messages[begin].get("role") in ("system", "developer"):
        begin += 1
    turns: list[list[Message]] = []
    for message in messages[begin:]:
        if message.get("role") == "user" or not turns:
            turns.append([])
        turns[-1].append(message)
    return Conversation(tuple(messages[:begin]), tuple(tuple(turn) for turn in turns))


def merge(stored: Conversation, incoming: Sequence[Message]) -> list[Message]:
    """The whole conversation: what is kept, continued by what the client sent.

    A client that sends only what is new is the common case. One that sends a history, whole or from some turn on,
    replaces what it repeats, so that nothing comes twice; where it disagrees with what is kept, the client's stands.
    System messages at the beginning replace the kept ones.
    """
    sent = split(incoming)
    kept, new = (list(chain.from_iterable(each.turns)) for each in (stored, sent))
    return [*(sent.system or stored.system), *kept[: _kept_before(kept, new)], *new]


def trim(messages: Sequence[Message], budget_tokens: int, count: Callable[[Message], int]) -> list[Message]:
    """Without the oldest turns, so that the rest is at most `budget_tokens` long as far as that can be.

    System messages and the newest turn always stay, and no turn is split. `count` gives a message's tokens; it isn't
    asked for more than what fits and the turn after it.
    """
    whole = split(messages)
    if len(whole.turns) < 2:
        return list(messages)
    left = budget_tokens - sum(map(count, whole.system)) - sum(map(count, whole.turns[-1]))
    first = len(whole.turns) - 1
    while first > 0 and (left := left - sum(map(count, whole.turns[first - 1]))) >= 0:
        first -= 1
    return Conversation(whole.system, whole.turns[first:]).messages


def remember(messages: Sequence[Message], reply: Message, max_bytes: int) -> Conversation | None:
    """The conversation to keep, at most `max_bytes` of `encode`: the oldest turns go.

    `None` where the newest turn alone, with the system messages, is larger.
    """
    whole = split([*messages, reply])
    # Brackets and commas take up to two bytes a turn and eight in all.
    left = max_bytes - 8 - len(_json(whole.system))
    first = len(whole.turns)
    while first > 0 and (left := left - 2 - len(_json(whole.turns[first - 1]))) >= 0:
        first -= 1
    return Conversation(whole.system, whole.turns[first:]) if first < len(whole.turns) else None


def encode(conversation: Conversation) -> bytes:
    """As JSON, for a store."""
    return _json([conversation.system, conversation.turns])


def decode(data: bytes) -> Conversation:
    """What `encode` made."""
    system, turns = json.loads(data.decode("utf-8", "surrogatepass"))
    return Conversation(tuple(system), tuple(tuple(turn) for turn in turns))


def _json(value: Any) -> bytes:
    # Half a surrogate pair is legal in JSON, and so are integers of any length.
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")


def _kept_before(kept: Sequence[Message], new: Sequence[Message]) -> int:
    """How many of the kept messages come before the client's."""
    ours, theirs = [_substance(message) for message in kept], [_substance(message) for message in new]
    replies = [index for index, message in enumerate(kept) if message.get("role") == "assistant"]
    beginning = replies[0] + 1 if replies else len(ours)
    if theirs[:beginning] == ours[:beginning]:
        return 0
    if not any(message.get("role") == "assistant" for message in new[:-1]):
        return len(kept)
    # A history that begins later than ours, for what is new is never a reply of the model's.
    for index in range(1, replies[-1] + 1 if replies else 0):
        if theirs[: len(ours) - index] == ours[index:]:
            return index
    return 0


def _substance(message: Message) -> tuple[Any, ...]:
    """What makes two messages the same, however clients write them back: parts or text, null fields or none."""
    content = message.get("content")
    calls = message.get("tool_calls")
    return (
        message.get("role"),
        (_text(content) if isinstance(content, list) else content) or "",
        [call.get("function") for call in calls if isinstance(call, dict)] if isinstance(calls, list) else [],
        message.get("tool_call_id"),
    )


def _text(parts: list[Any]) -> Any:
    """The text of a message in parts; the parts where not all are text."""
    texts = [part.get("text") for part in parts if isinstance(part, dict) and part.get("type") == "text"]
    return "".join(map(str, texts)) if len(texts) == len(parts) else parts
