"""The assistant's message, gathered from what is sent to the client."""

from dataclasses import dataclass, field
from typing import Any

import msgspec

from engine_host.gateway.session_turns import Message


class _Function(msgspec.Struct, gc=False):
    name: str | None = None
    arguments: str | None = None


class _Call(msgspec.Struct, gc=False):
    index: int | None = None
    id: str | None = None
    function: _Function | None = None


class _Part(msgspec.Struct, gc=False):
    """A delta, or the message of a whole reply."""

    content: str | None = None
    tool_calls: list[_Call] | None = None


class _Choice(msgspec.Struct, gc=False):
    index: int = 0
    delta: _Part | None = None
    message: _Part | None = None
    finish_reason: str | None = None


class _Reply(msgspec.Struct, gc=False):
    choices: list[_Choice] = []


_decoder = msgspec.json.Decoder(_Reply)


@dataclass(slots=True)
class _GatheredCall:
    id: str = ""
    name: str = ""
    arguments: list[str] = field(default_factory=list)


class ReplyCollector:
    """Gathers the first choice of a chat completion: text and tool calls, without reasoning.

    Holds at most about `max_bytes` characters. A longer reply, or one it can't read, has no message.
    """

    def __init__(self, max_bytes: int) -> None:
        self._left = max_bytes
        self._tail = b""
        self._text: list[str] = []
        self._calls: dict[int, _GatheredCall] = {}
        self._finished = False
        self._lost = False

    def feed(self, chunk: bytes) -> None:
        """Take the next bytes of an event stream, cut anywhere."""
        if self._lost:
            return
        *lines, self._tail = (self._tail + chunk).split(b"\n")
        if len(self._tail) > self._left + 65_536:  # Text takes more room in an event than by itself.
            self._give_up()
        for line in lines:
            if line.startswith(b"data:") and not line.startswith(b"data: [DONE]"):
                self.feed_json(line[5:])

    def feed_json(self, body: bytes) -> None:
        """Take a whole reply that was not streamed, or one event's data."""
        try:
            reply = _decoder.decode(body)
        except msgspec.MsgspecError:
            return self._give_up()
        for choice in reply.choices:
            if choice.index == 0:
                self._finished = self._finished or choice.finish_reason is not None
                part = choice.delta or choice.message
                if part is not None:
                    self._add(part)
        return None

    def message(self) -> Message | None:
        """The assistant's message as far as it came; `None` where nothing came before the reply was cut short.

        Tool calls that were cut short are left out: no chat template could write them into the next prompt.
        """
        if self._lost:
            return None
        calls: list[dict[str, Any]] = [
            {"id": call.id, "type": "function", "function": {"name": call.name, "arguments": "".join(call.arguments)}}
            for _, call in sorted(self._calls.items())
            if call.name and _is_object("".join(call.arguments))
        ]
        text = "".join(self._text)
        if not (text or calls or self._finished):
            return None
        message: Message = {"role": "assistant", "content": text or (None if calls else "")}
        return {**message, "tool_calls": calls} if calls else message

    def _add(self, part: _Part) -> None:
        if part.content:
            self._text.append(part.content)
            self._left -= len(part.content)
        for position, call in enumerate(part.tool_calls or ()):
            gathered = self._calls.setdefault(position if call.index is None else call.index, _GatheredCall())
            gathered.id = call.id or gathered.id
            self._left -= 64  # A call costs memory by itself.
            if call.function is not None:
                gathered.name = call.function.name or gathered.name
                gathered.arguments.append(call.function.arguments or "")
                self._left -= len(call.function.arguments or "")
        if self._left < 0:
            self._give_up()

    def _give_up(self) -> None:
        self._lost = True
        self._tail = b""
        self._text.clear()
        self._calls.clear()


def _is_object(arguments: str) -> bool:
    try:
        msgspec.json.decode(arguments, type=dict[str, Any])
    except msgspec.MsgspecError:
        return False
    return True
