"""OpenAI's error JSON, the only shape in which the port reports a failure."""

from http import HTTPStatus

import msgspec
from aiohttp import web

from engine_host.gateway.refusal import Refusal
from engine_host.port.backend import JsonReply, PortHost


def error_body(status: int, message: str, *, kind: str | None = None, param: str | None = None) -> bytes:
    """`{"error": {message, type, param, code}}`; `kind` defaults to the name of the status."""
    error = {"message": message, "type": kind or HTTPStatus(status).phrase, "param": param, "code": status}
    return msgspec.json.encode({"error": error})


ANTHROPIC_PATHS = frozenset({"/v1/messages", "/v1/messages/count_tokens"})
"""Answered in Anthropic's shape, errors too."""


def refusal_response(path: str, refusal: Refusal) -> web.Response:
    """A refusal in the shape that clients of `path` read."""
    if path in ANTHROPIC_PATHS:
        body = msgspec.json.encode({"type": "error", "error": {"type": refusal.kind, "message": str(refusal)}})
    else:
        body = error_body(refusal.status, str(refusal), kind=refusal.kind, param=refusal.param)
    return web.Response(status=refusal.status, body=body, content_type="application/json", headers=refusal.headers)


def error_response(
    status: int, message: str, *, kind: str | None = None, headers: dict[str, str] | None = None
) -> web.Response:
    """The same as an aiohttp response."""
    return web.Response(
        status=status,
        body=error_body(status, message, kind=kind),
        content_type="application/json",
        headers=headers,
    )


def unavailable(host: PortHost, reason: str = "") -> Refusal:
    """503 with the reason, or the engine's state, and when to ask again."""
    state = host.engine_state()
    if state.name == "failed":
        message = f"The engine could not start: {state.reason or 'the reason is in the log.'} {state.hint or ''}"
    elif reason or state.reason:
        message = reason or state.reason or ""
    else:
        phase = f" ({state.phase})" if state.phase else ""
        message = f"The engine is {state.name}{phase}; try again in a moment."
    return Refusal(503, message.strip(), retry_after_s=host.retry_after_s())


def from_json_reply(reply: JsonReply, headers: dict[str, str]) -> web.Response:
    """A serving class's whole reply as an aiohttp response, with `headers` beside its own."""
    return web.Response(
        status=reply.status, body=reply.body, content_type="application/json", headers={**reply.headers, **headers}
    )


def dressed(status: int, content_type: str, body: bytes, asked: str) -> bytes | None:
    """An error body of another shape (FastAPI's `detail`, plain text) as OpenAI's; `None` where it already is one.

    `asked`, the method and path, is added where the error says no more than its status.
    """
    try:
        value = msgspec.json.decode(body) if "json" in content_type else None
    except msgspec.DecodeError:
        value = None
    if isinstance(value, dict) and isinstance(value.get("error"), dict):
        return None
    phrase = HTTPStatus(status).phrase
    detail = value.get("detail", value.get("error")) if isinstance(value, dict) else None
    return error_body(status, detail if isinstance(detail, str) and detail != phrase else f"{phrase}: {asked}")
