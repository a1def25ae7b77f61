"""Recognising an error that vLLM has put into a stream instead of into the status."""

import msgspec

from engine_host.port.backend import JsonReply

_ERROR = b'data: {"error":'


def error_in(chunk: bytes) -> JsonReply | None:
    """The error that `chunk`, the beginning of a stream, stands for; `None` for an ordinary chunk."""
    if not chunk.startswith(_ERROR):
        return None
    body = chunk.removeprefix(b"data: ").partition(b"\n")[0]
    try:
        code = msgspec.json.decode(body)["error"]["code"]
    except (msgspec.DecodeError, KeyError, TypeError):
        code = None
    return JsonReply(code if isinstance(code, int) and 400 <= code < 600 else 500, body)
