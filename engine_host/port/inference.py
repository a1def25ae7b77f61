"""One request for the engine: from its body to its reply, by vLLM's serving classes or its own application."""

import socket
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import msgspec
from aiohttp import web
from multidict import CIMultiDict

from engine_host.gateway.refusal import Refusal
from engine_host.port.asgi import serve_asgi
from engine_host.port.auth import check_model, tier_of
from engine_host.port.backend import JsonReply, PortHost, Serving
from engine_host.port.body import PRIORITY_FIELD, parse_object, read_body
from engine_host.port.context import CALLER, ID, REQUEST_ID, RequestContext, request_context
from engine_host.port.conversation import Conversation
from engine_host.port.errors import from_json_reply, unavailable
from engine_host.port.governance import governed
from engine_host.port.stream import send_stream

HIDDEN_HEADERS = frozenset({"x-vllm-priority"})
"""Request headers that vLLM would obey and clients may not set."""


class Inference:
    """Handles every route that needs the engine. `in_progress` counts the requests being served."""

    def __init__(self, host: PortHost) -> None:
        self._host = host
        self.in_progress = 0
        self._waiting = 0

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Serve one request. Raises `BadBodyError` and `Refusal`."""
        began = time.monotonic()
        await self._engine_there()
        if (serving := self._host.serving()) is None:
            raise unavailable(self._host)
        rules = self._host.rules()
        tier = tier_of(request[CALLER], rules)
        _cut_off_after(request, rules.gateway.clients.stall_s)
        body = await read_body(request, rules.gateway.clients)
        context = RequestContext(
            request[ID],
            time.monotonic(),
            request.path,
            began,
            request[CALLER],
            tier,
            traceparent=request.headers.get("traceparent"),
        )
        request_context.set(context)
        if request.method != "POST":
            return await serve_asgi(serving.asgi, request, body, HIDDEN_HEADERS, {REQUEST_ID: context.request_id})
        await self._engine_there()
        if (now := self._host.serving()) is None:
            raise unavailable(self._host)
        self.in_progress += 1
        try:
            if request.path in now.streaming_paths:
                response = await self._by_serving_class(now, request, body, context)
            else:
                response = await self._by_application(now, request, body, context)
        finally:
            self.in_progress -= 1
        if context.refusals and not response.prepared and response.status >= 400:
            raise context.refusals[0]
        return response

    async def _engine_there(self) -> None:
        """Wait while the engine is changed or brought back. Raises `Refusal` where too many do already."""
        most = self._host.rules().gateway.lanes.max_queued
        if self._waiting >= most:
            state = self._host.engine_state().name
            raise Refusal(
                429,
                f"The engine is {state}, and {self._waiting} requests wait for it already, the most this server lets "
                "wait.",
                retry_after_s=self._host.retry_after_s(),
            )
        self._waiting += 1
        try:
            await self._host.admission()
        finally:
            self._waiting -= 1

    async def _by_serving_class(
        self, serving: Serving, request: web.Request, body: bytes, context: RequestContext
    ) -> web.StreamResponse:
        value = await self._checked(request, body)
        conversation = await Conversation.begin(self._host.sessions(), request, value, context.reply_headers)
        try:
            rules = self._host.rules().gateway.prompts
            value = await governed(request.path, conversation.body, serving, rules, context.reply_headers)
            own = {REQUEST_ID: context.request_id}
            reply = await serving.call(request.path, value, _visible_headers(request, own))
            headers = {**own, **serving.cors_headers(request.headers.get("Origin")), **context.reply_headers}
            if isinstance(reply, JsonReply):
                conversation.whole(reply)
                return from_json_reply(reply, headers)
            return await send_stream(request, reply, headers, self._host.streams, context, conversation.tap)
        finally:
            await conversation.end()

    async def _by_application(
        self, serving: Serving, request: web.Request, body: bytes, context: RequestContext
    ) -> web.StreamResponse:
        if body and _read_as_json(request):
            value = await self._checked(request, body)
            if b'"' + PRIORITY_FIELD.encode() + b'"' in body:
                body = msgspec.json.encode(value)
        else:
            check_model(request[CALLER], None)
        response = await serve_asgi(serving.asgi, request, body, HIDDEN_HEADERS, {REQUEST_ID: context.request_id})
        if not response.prepared:
            response.headers.update(context.reply_headers)
        return response

    async def _checked(self, request: web.Request, body: bytes) -> dict[str, Any]:
        """The body as an object of strict JSON, for a model that the caller may use."""
        value = await parse_object(request, body, self._host.rules().gateway.clients)
        check_model(request[CALLER], value.get("model"))
        return value


def _read_as_json(request: web.Request) -> bool:
    """Whether vLLM's application takes the body for JSON: also by a relative of that type, and without any."""
    kind = request.content_type
    return kind == "application/json" or kind.endswith("+json") or "Content-Type" not in request.headers


def _visible_headers(request: web.Request, headers: dict[str, str]) -> Mapping[str, str]:
    visible = CIMultiDict(request.headers)
    for name in HIDDEN_HEADERS:
        visible.popall(name, None)
    visible.update(headers)
    return visible


def _cut_off_after(request: web.Request, stall_s: float) -> None:
    """Have the kernel end the connection of a client that takes nothing for so long (TCP_USER_TIMEOUT, tcp(7))."""
    sock = request.get_extra_info("socket")
    with suppress(OSError, AttributeError):
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, int(stall_s * 1000))
