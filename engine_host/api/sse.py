"""Server-sent events out of a byte stream, however it was cut into pieces."""

import codecs
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class SseEvent:
    """One event: its type (`message` unless the server named one) and its data lines joined by newlines."""

    event: str
    data: str


class SseParser:
    """Incremental parser: feed it bytes, get the events that became complete.

    Follows the HTML standard's event-stream rules for `event` and `data`; comments and other fields are ignored.
    Lines may end in CR, LF or CRLF, and a cut may fall anywhere, inside a character too.
    """

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")(errors="replace")
        self._rest = ""
        self._event = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> list[SseEvent]:
        """Return the events completed by these bytes, in order."""
        text = self._rest + self._decoder.decode(chunk)
        # A CR at the very end may be the first half of a CRLF: keep it until the next byte is known.
        held = "\r" if text.endswith("\r") else ""
        text = text.removesuffix(held) if held else text
        lines = text.replace("\r\n", "\n").replace("\r", "\n").split("\n")
        self._rest = lines.pop() + held
        return [event for line in lines if (event := self._line(line)) is not None]

    def _line(self, line: str) -> SseEvent | None:
        if not line:
            return self._dispatch()
        field, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if field == "data":
            self._data.append(value)
        elif field == "event":
            self._event = value
        return None

    def _dispatch(self) -> SseEvent | None:
        event = SseEvent(self._event or "message", "\n".join(self._data)) if self._data else None
        self._event = ""
        self._data = []
        return event
