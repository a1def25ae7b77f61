"""What the gateway may know of the HTTP request it works for."""

from collections.abc import Callable
from contextvars import ContextVar
from dataclasses import dataclass, field

from aiohttp import web

from engine_host.gateway.caller import Caller
from engine_host.gateway.refusal import Refusal

REQUEST_ID = "X-Request-Id"

ID: web.RequestKey[str] = web.RequestKey("request_id", str)
"""The request's id; set for every request before its handler runs."""

CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)
"""Who asks; set likewise."""


@dataclass(frozen=True, slots=True)
class RequestContext:
    """One request on the port.

    `request_id` is the client's `X-Request-Id` where it sent a usable one, else ours; `arrived` is `time.monotonic()`
    in seconds when the last byte of its body had been read, `began` when its headers had; `path` is the URL's path.
    `tier` is its caller's, `None` where the profile decides. What is put into `reply_headers` before the status is sent
    goes out with it; `refusals` are the reasons why the gateway did not serve it, or one of its prompts. `traceparent`
    is the client's, of its trace; what is put into `when_written` is told when the next bytes of a stream go out.
    """

    request_id: str
    arrived: float
    path: str
    began: float = 0.0
    caller: Caller | None = None
    tier: str | None = None
    reply_headers: dict[str, str] = field(default_factory=dict)
    refusals: list[Refusal] = field(default_factory=list)
    traceparent: str | None = None
    when_written: list[Callable[[float], None]] = field(default_factory=list)

    def written(self, at: float) -> None:
        """Bytes of the reply went to the socket at `at` (monotonic seconds)."""
        for each in self.when_written:
            each(at)
        self.when_written.clear()


request_context: ContextVar[RequestContext | None] = ContextVar("request_context", default=None)
"""Set while a request is served; `None` outside of one (a background task of ours, a test)."""

rendering_model: ContextVar[str | None] = ContextVar("rendering_model", default=None)
"""The model whose tokenizer made the prompt's tokens, where that is known: they mean nothing to another."""
