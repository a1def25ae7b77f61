"""The aiohttp application of the OpenAI port.

Plain routes of ours, vLLM's serving classes for what streams, vLLM's own application for the rest. Before the engine
is ready everything but `/metrics` answers 503. Whatever goes wrong is answered as OpenAI's error JSON.
"""

import asyncio
import logging
import re
import uuid
from collections.abc import Awaitable, Callable, Iterable

from aiohttp import web
from aiohttp.typedefs import Middleware

from engine_host.gateway.refusal import Refusal
from engine_host.port.auth import Authenticator, RequestFacts
from engine_host.port.backend import PortHost
from engine_host.port.body import BadBodyError
from engine_host.port.connections import Doorkeeper
from engine_host.port.context import CALLER, ID, REQUEST_ID
from engine_host.port.errors import error_response, refusal_response, unavailable
from engine_host.port.inference import Inference
from engine_host.port.replies import json_response

log = logging.getLogger(__name__)

DOORKEEPER: web.AppKey[Doorkeeper] = web.AppKey("doorkeeper", Doorkeeper)

HEADERS_S: web.AppKey[Callable[[], float]] = web.AppKey("headers_s")
"""How long a new connection may take to send its first headers, in seconds."""

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
    app[HEADERS_S] = lambda: host.rules().gateway.clients.headers_s
    port = _Port(host)
    app.add_routes(extra_routes)
    app.add_routes(
        [
            web.get("/health", port.health),
            web.get("/ping", port.health, allow_head=False),
            web.post("/ping", port.health),
            web.get("/metrics", port.metrics),
            web.get("/load", port.load),
            web.delete("/v1/sessions/{id}", port.forget),
            web.route("*", "/{path:.*}", port.inference.handle),
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
        self.inference = Inference(host)

    async def health(self, request: web.Request) -> web.StreamResponse:
        reason = "" if self._host.serving() is None else await self._host.check_health()
        if reason is not None:
            raise unavailable(self._host, reason)
        return web.Response()

    async def metrics(self, request: web.Request) -> web.StreamResponse:
        # Imported late: the registry of vLLM's metrics, and slow to import.
        from prometheus_client import CONTENT_TYPE_LATEST, generate_latest

        ours, theirs = await asyncio.gather(self._host.metrics_text(), asyncio.to_thread(generate_latest))
        return web.Response(body=ours + theirs, headers={"Content-Type": CONTENT_TYPE_LATEST})

    async def forget(self, request: web.Request) -> web.StreamResponse:
        """Delete the caller's conversation of this id."""
        book = self._host.sessions()
        deleted = book is not None and await book.delete(request[CALLER].key_id, request.match_info["id"])
        if not deleted:
            raise Refusal(404, f"There is no session {request.match_info['id']!r}.", kind="NotFoundError")
        return json_response({"id": request.match_info["id"], "object": "session.deleted", "deleted": True})

    async def load(self, request: web.Request) -> web.StreamResponse:
        if self._host.serving() is None:
            raise unavailable(self._host)
        return json_response({"server_load": self.inference.in_progress})


@web.middleware
async def _identify(request: web.Request, handler: Handler) -> web.StreamResponse:
    """Give the request its id, send it back, and keep count of the connection."""
    given = request.headers.get(REQUEST_ID, "")
    live = request.app[_LIVE_IDS]
    # Two requests at once under one id could not be told apart in the engine, nor aborted one by one.
    request_id = given if _USABLE_ID.fullmatch(given) and given not in live else uuid.uuid4().hex
    request[ID] = request_id
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
        name = request.transport.get_extra_info("sockname") if request.transport is not None else None
        facts = RequestFacts(
            request.method,
            request.raw_path.partition("?")[0],
            request.headers.getall("Authorization", ()),
            request.headers.getall("x-api-key", ()),
            # A Unix socket's name is a path. What isn't known counts as reached from outside.
            name[0] if isinstance(name, tuple) else None if isinstance(name, str | bytes) else "",
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
        return refusal_response(request.path, refusal)
    except BadBodyError as error:
        response = refusal_response(request.path, Refusal(error.status, str(error)))
        if error.status in (408, 413):
            # The rest of the body is still on its way: it must not be taken for the next request.
            response.force_close()
        return response
    except web.HTTPException as error:
        headers = {"Allow": error.headers["Allow"]} if "Allow" in error.headers else None
        return error_response(error.status, f"{error.reason}: {request.method} {request.path}", headers=headers)
    except Exception:
        log.exception("request %s to %s failed", request[ID], request.path)
        return error_response(
            500, "The server failed to answer this request; its log says why.", kind="InternalServerError"
        )
