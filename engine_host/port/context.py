"""What the gateway may know of the HTTP request it works for."""

from contextvars import ContextVar
from dataclasses import dataclass, field

from engine_host.gateway.caller import Caller


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request on the port.

    `request_id` is the client's `X-Request-Id` where it sent a usable one, else ours; `arrived` is `time.monotonic()`
    in seconds when the last byte of its body had been read, `began` when its headers had; `path` is the URL's path.
    `tier` is its caller's, `None` where the profile decides. What is put into `reply_headers` before the status is sent
    goes out with it;
    """

    request_id: str
    arrived: float
    path: str
    began: float = 0.0
    caller: Caller | None = None
    tier: str | None = None
    reply_headers: dict[str, str] = field(default_factory=dict)


request_context: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)
"""Set while a request is served; `None` outside of one (a background task of ours, a test)."""

rendering_model: ContextVar[str | None] = ContextVar("rendering_model", default=None)
"""The model whose tokenizer made the prompt's tokens, where that is known: they mean nothing to another."""
