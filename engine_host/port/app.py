"""The aiohttp application of the OpenAI port.

Plain routes of ours, vLLM's serving classes for what streams, vLLM's own application for the rest. Before the engine
is ready everything but `/metrics` answers 503. Whatever goes wrong is answered as OpenAI's error JSON.
"""

import hmac
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from engine_host.port.asgi import serve_asgi
from engine_host.port.backend import JsonReply, PortHost, Serving
from engine_host.port.body import PRIORITY_FIELD, BadBodyError, parse_object, read_body
from engine_host.port.connections import Doorkeeper
from engine_host.port.context import RequestContext, request_context
from engine_host.port.errors import error_response, from_json_reply
from engine_host.port.stream import OpenStreams, send_stream
from profiles.gateway import Clients

log = logging.getLogger(__name__)

DOORKEEPER: web.AppKey[Doorkeeper] = web.AppKey("doorkeeper", Doorkeeper)

REQUEST_ID = "X-Request-Id"
_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
HIDDEN_HEADERS = frozenset({"x-vllm-priority"})
"""Request headers that vLLM would obey and clients may not set."""

OPEN_PATHS = frozenset({"/health", "/ping", "/version"})
"""Answered without a key, for load balancers."""

LIMITS = Clients()

_LIVE_IDS: web.AppKey[set[str]] = web.AppKey("live_ids", set)
_USABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    host: PortHost, *, extra_routes: Iterable[web.AbstractRouteDef] = (), trusted: bool = False
) -> web.Application:
    """Build the application.

    `extra_routes` come first. `trusted` leaves out the API key check: for the Unix socket, which has its own.
    """
    app = web.Application(middlewares=[_identify, _openai_errors])
    app[_LIVE_IDS] = set()
    port = _Port(host, trusted)
    app.add_routes(extra_routes)
    app.add_routes(
        [
            web.get("/health", port.health),
            web.get("/ping", port.health, allow_head=False),
            web.post("/ping", port.health),
            web.get("/metrics", port.metrics),
            web.get("/load", port.load),
            web.route("*", "/{path:.*}", port.inference),
        ]
    )
    return app


class _Port:
    def __init__(self, host: PortHost, trusted: bool) -> None:
        self._host = host
        self._trusted = trusted
        self._in_progress = 0

    async def health(self, request: web.Request) -> web.StreamResponse:
        reason = "" if self._host.serving() is None else await self._host.check_health()
        return web.Response() if reason is None else self._unavailable(reason)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        if (refusal := self._refusal(request, self._host.serving())) is not None:
            return refusal
        # Imported late: the registry of vLLM's metrics, and slow to import.
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return web.Response(
            body=self._host.metrics_text() + generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def load(self, request: web.Request) -> web.StreamResponse:
        serving = self._host.serving()
        if serving is None:
            return self._unavailable()
        refusal = self._refusal(request, serving)
        return refusal if refusal is not None else _json({"server_load": self._in_progress})

    async def inference(self, request: web.Request) -> web.StreamResponse:
        await self._host.admission()
        serving = self._host.serving()
        if serving is None:
            return self._unavailable()
        if (refusal := self._refusal(request, serving)) is not None:
            return refusal
        body = await read_body(request, LIMITS)
        request_id = request[_ID]
        request_context.set(RequestContext(request_id, time.monotonic(), request.path))
        headers = {REQUEST_ID: request_id}
        if request.method != "POST":
            return await serve_asgi(serving.asgi, request, body, HIDDEN_HEADERS, headers)
        await self._host.admission()
        if (now := self._host.serving()) is None:
            return self._unavailable()
        serving = now
        self._in_progress += 1
        try:
            if request.path in serving.streaming_paths:
                headers |= serving.cors_headers(request.headers.get("Origin"))
                return await _stream_or_json(serving, request, body, headers, self._host.streams)
            return await serve_asgi(serving.asgi, request, await _cleaned(request, body), HIDDEN_HEADERS, headers)
        finally:
            self._in_progress -= 1

    def _unavailable(self, reason: str = "") -> web.Response:
        state = self._host.engine_state()
        if state.name == "failed":
            message = f"The engine could not start: {state.reason or 'the reason is in the log.'} {state.hint or ''}"
        elif reason or state.reason:
            message = reason or state.reason or ""
        else:
            phase = f" ({state.phase})" if state.phase else ""
            message = f"The engine is {state.name}{phase}; try again in a moment."
        headers = {"Retry-After": str(self._host.retry_after_s())}
        return error_response(503, message.strip(), kind="ServiceUnavailableError", headers=headers)

    def _refusal(self, request: web.Request, serving: Serving | None) -> web.Response | None:
        if self._trusted or serving is None or not serving.api_keys or request.path in OPEN_PATHS:
            return None
        if request.method == "OPTIONS":
            # A browser asks which origins are allowed before it sends the key.
            return None
        scheme, _, token = request.headers.get("Authorization", "").partition(" ")
        given = token if scheme.lower() == "bearer" else request.headers.get("x-api-key", "")
        if any(hmac.compare_digest(given.encode(), key.encode()) for key in serving.api_keys):
            return None
        return error_response(
            401,
            "This server needs a key: send it as 'Authorization: Bearer KEY' or 'x-api-key: KEY'.",
            kind="AuthenticationError",
            headers={"WWW-Authenticate": "Bearer"},
        )


async def _stream_or_json(
    serving: Serving, request: web.Request, body: bytes, headers: dict[str, str], streams: OpenStreams
) -> web.StreamResponse:
    value = await parse_object(request, body, LIMITS)
    reply = await serving.call(request.path, value, _visible_headers(request, headers))
    if isinstance(reply, JsonReply):
        return from_json_reply(reply, headers)
    return await send_stream(request, reply, headers, streams)


def _visible_headers(request: web.Request, headers: dict[str, str]) -> Mapping[str, str]:
    visible = CIMultiDict(request.headers)
    for name in HIDDEN_HEADERS:
        visible.popall(name, None)
    visible.update(headers)
    return visible


async def _cleaned(request: web.Request, body: bytes) -> bytes:
    """The body for vLLM's application: strict JSON without what clients may not set; other bodies as they are."""
    if request.content_type != "application/json" or not body:
        return body
    value = await parse_object(request, body, LIMITS)
    return msgspec.json.encode(value) if b'"' + PRIORITY_FIELD.encode() + b'"' in body else body


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


@web.middleware
async def _identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id, send it back, and keep count of the connection."""
    given = request.headers.get(REQUEST_ID, "")
    live = request.app[_LIVE_IDS]
    # Two requests at once under one id could not be told apart in the engine, nor aborted one by one.
    request_id = given if _USABLE_ID.fullmatch(given) and given not in live else uuid.uuid4().hex
    request[_ID] = request_id
    live.add(request_id)
    doorkeeper = request.app.get(DOORKEEPER)
    if doorkeeper is not None:
        doorkeeper.busy(request.protocol)
    try:
        response = await handler(request)
    finally:
        live.discard(request_id)
        if doorkeeper is not None:
            doorkeeper.idle(request.protocol)
    if not response.prepared:
        response.headers[REQUEST_ID] = request_id
    return response


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except BadBodyError as error:
        response = error_response(error.status, str(error))
        if error.status in (408, 413):
            # The rest of the body is still on its way: it must not be taken for the next request.
            response.force_close()
        return response
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return error_response(error.status, f"{error.reason}: {request.method} {request.path}", headers=headers)
    except Exception:
        log.exception("request %s to %s failed", request[_ID], request.path)
        return error_response(
            500, "The server failed to answer this request; its log says why.", kind="InternalServerError"
        )
