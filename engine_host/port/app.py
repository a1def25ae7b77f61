"""The aiohttp application of the OpenAI port.

Plain routes of ours, vLLM's serving classes for what streams, vLLM's own application for the rest. Before the engine
is ready everything but `/metrics` answers 503. Whatever goes wrong is answered as OpenAI's error JSON.
"""

import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Iterable, Mapping

import msgspec
from aiohttp import web
from aiohttp.typedefs import Middleware
from multidict import CIMultiDict

from engine_host.gateway.caller import Caller
from engine_host.gateway.refusal import Refusal
from engine_host.port.asgi import serve_asgi
from engine_host.port.auth import Authenticator, RequestFacts
from engine_host.port.backend import JsonReply, PortHost, Serving
from engine_host.port.body import PRIORITY_FIELD, BadBodyError, parse_object, read_body
from engine_host.port.connections import Doorkeeper
from engine_host.port.context import RequestContext, request_context
from engine_host.port.errors import error_body, error_response, from_json_reply
from engine_host.port.stream import OpenStreams, send_stream
from profiles.gateway import Clients

log = logging.getLogger(__name__)

DOORKEEPER: web.AppKey[Doorkeeper] = web.AppKey("doorkeeper", Doorkeeper)

REQUEST_ID = "X-Request-Id"
_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
HIDDEN_HEADERS = frozenset({"x-vllm-priority"})
"""Request headers that vLLM would obey and clients may not set."""

CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)
"""Who asks; set for every request before its handler runs."""

LIMITS = Clients()

_LIVE_IDS: web.AppKey[set[str]] = web.AppKey("live_ids", set)
_USABLE_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def make_app(
    host: PortHost,
    *,
    extra_routes: Iterable[web.AbstractRouteDef] = (),
    auth: Authenticator | None = None,
    trusted: bool = False,
) -> web.Application:
    """Build the application.

    `extra_routes` come first. `auth` guards every route; without it vLLM's own keys alone do. `trusted` lets everybody
    in: for the Unix socket, which only its owner can open.
    """
    auth = auth or Authenticator(None, lambda: None, lambda: keys_of_vllm(host))
    app = web.Application(middlewares=[_identify, _openai_errors, _guard(auth, trusted)])
    app[_LIVE_IDS] = set()
    port = _Port(host)
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


def keys_of_vllm(host: PortHost) -> frozenset[str]:
    """The keys of `--api-key` as vLLM reads it; none before the engine is ready."""
    serving = host.serving()
    return serving.api_keys if serving is not None else frozenset()


class _Port:
    def __init__(self, host: PortHost) -> None:
        self._host = host
        self._in_progress = 0

    async def health(self, request: web.Request) -> web.StreamResponse:
        reason = "" if self._host.serving() is None else await self._host.check_health()
        return web.Response() if reason is None else self._unavailable(reason)

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        # Imported late: the registry of vLLM's metrics, and slow to import.
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        return web.Response(
            body=self._host.metrics_text() + generate_latest(), headers={"Content-Type": CONTENT_TYPE_LATEST}
        )

    async def load(self, request: web.Request) -> web.StreamResponse:
        return self._unavailable() if self._host.serving() is None else _json({"server_load": self._in_progress})

    async def inference(self, request: web.Request) -> web.StreamResponse:
        await self._host.admission()
        serving = self._host.serving()
        if serving is None:
            return self._unavailable()
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


def _guard(auth: Authenticator, trusted: bool) -> Middleware:
    """Who asks is known before anything else is done, on every route and on unknown ones."""

    @web.middleware
    async def guard(request: web.Request, handler: Handler) -> web.StreamResponse:
        name = None if request.transport is None else request.transport.get_extra_info("sockname")
        facts = RequestFacts(
            request.method,
            request.raw_path.partition("?")[0],
            request.headers.getall("Authorization", ()),
            request.headers.getall("x-api-key", ()),
            name[0] if isinstance(name, tuple) else None,
            trusted,
        )
        request[CALLER] = auth.caller(facts)
        return await handler(request)

    return guard


@web.middleware
async def _openai_errors(request: web.Request, handler: Handler) -> web.StreamResponse:
    try:
        return await handler(request)
    except Refusal as refusal:
        body = error_body(refusal.status, str(refusal), kind=refusal.kind, param=refusal.param)
        return web.Response(status=refusal.status, body=body, content_type="application/json", headers=refusal.headers)
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
