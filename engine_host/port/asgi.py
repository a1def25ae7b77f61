"""Serving a request through vLLM's own FastAPI application, for the routes that need no care of ours."""

import asyncio
from contextlib import suppress
from typing import Any

from aiohttp import web

from engine_host.port import faults
from engine_host.port.backend import AsgiApp, Message
from engine_host.port.errors import dressed, error_response
from engine_host.port.sse import error_in
from engine_host.port.stream import HEADERS

ABORT_GRACE_S = 5.0
"""How long the application may take to end a request whose client has left."""

_HOP_HEADERS = frozenset({"content-length", "transfer-encoding", "connection"})


async def serve_asgi(
    app: AsgiApp, request: web.Request, body: bytes, hidden_headers: frozenset[str], headers: dict[str, str]
) -> web.StreamResponse:
    """Run one request through `app`.

    The application doesn't see `hidden_headers` of the request; `headers` are set on it and on the reply. An error in
    another shape becomes OpenAI's, and a stream that begins with an error becomes that error.
    """
    exchange = _Exchange(request, body, headers)
    task = asyncio.ensure_future(app(_scope(request, hidden_headers, headers), exchange.receive, exchange.send))
    try:
        await asyncio.shield(task)
    except asyncio.CancelledError:
        exchange.gone.set()
        with suppress(Exception, asyncio.CancelledError):
            await asyncio.wait_for(task, ABORT_GRACE_S)
        raise
    except Exception as error:
        if exchange.has_begun or not faults.is_of_request(error):
            raise
        return error_response(400, faults.MESSAGE, kind="BadRequestError", headers=headers)
    return await exchange.finish()


def _scope(request: web.Request, hidden: frozenset[str], extra: dict[str, str]) -> dict[str, Any]:
    replaced = hidden | {name.lower() for name in extra}
    headers = [(name.lower(), value) for name, value in request.raw_headers if name.decode().lower() not in replaced]
    headers += [(name.lower().encode(), value.encode()) for name, value in extra.items()]
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "method": request.method,
        "scheme": request.scheme,
        "path": request.path,
        "raw_path": request.raw_path.partition("?")[0].encode(),
        "query_string": request.query_string.encode(),
        "root_path": "",
        "headers": headers,
        "client": None,
        "server": None,
        "state": {},
    }


class _Exchange:
    """One request and its reply: the messages of ASGI on one side, an aiohttp response on the other."""

    def __init__(self, request: web.Request, body: bytes, headers: dict[str, str]) -> None:
        self.gone = asyncio.Event()
        self._request = request
        self._body: bytes | None = body
        self._headers = headers
        self._status = 500
        self._reply_headers: list[tuple[str, str]] = []
        self._whole = bytearray()
        self._response: web.StreamResponse | None = None

    @property
    def has_begun(self) -> bool:
        """Whether the client has been sent anything."""
        return self._response is not None

    async def receive(self) -> Message:
        if self._body is not None:
            body, self._body = self._body, None
            return {"type": "http.request", "body": body, "more_body": False}
        await self.gone.wait()
        return {"type": "http.disconnect"}

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self._status = message["status"]
            self._reply_headers = [(name.decode(), value.decode("latin-1")) for name, value in message["headers"]]
            return
        if message["type"] != "http.response.body":
            return
        chunk: bytes = message.get("body", b"")
        if self._response is not None:
            await self._response.write(chunk)
        elif chunk and self._is_stream() and (error := error_in(chunk)) is None:
            self._response = web.StreamResponse(status=self._status, headers={**HEADERS, **self._headers})
            await self._response.prepare(self._request)
            await self._response.write(chunk)
        elif chunk and self._is_stream() and error is not None:
            self._status, self._reply_headers = error.status, [("content-type", "application/json")]
            self._whole += error.body
            self.gone.set()
        else:
            self._whole += chunk

    async def finish(self) -> web.StreamResponse:
        if self._response is not None:
            await self._response.write_eof()
            return self._response
        headers = {name: value for name, value in self._reply_headers if name.lower() not in _HOP_HEADERS}
        headers.update(self._headers)
        body = bytes(self._whole)
        asked = f"{self._request.method} {self._request.path}"
        if self._status >= 400 and (ours := dressed(self._status, self._content_type(), body, asked)) is not None:
            headers["content-type"] = "application/json"
            body = ours
        return web.Response(status=self._status, body=body, headers=headers)

    def _content_type(self) -> str:
        return next((value for name, value in self._reply_headers if name.lower() == "content-type"), "")

    def _is_stream(self) -> bool:
        return self._status == 200 and self._content_type().startswith("text/event-stream")
