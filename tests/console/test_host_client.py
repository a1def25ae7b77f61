"""The client against a small server on a Unix socket: what it asks, what it decodes, and each way it can fail."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from stub_host import history, snapshot

from engine_host.api.client import HostClient
from engine_host.api.contract import ChatChunk, ChatMessage, HostError, HostUnreachable
from engine_host.api.types import CommandReply, LogPage, LogRecord, PortCommand, StartCommand

Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def answers(value: object, status: int = 200, **headers: str) -> Handler:
    async def handler(request: web.Request) -> web.Response:
        body = value if isinstance(value, bytes) else msgspec.json.encode(value)
        return web.Response(
            body=body, status=status, headers={name.replace("_", "-"): v for name, v in headers.items()}
        )

    return handler


@asynccontextmanager
async def serving(tmp_path: Path, path: str, handler: Handler) -> AsyncIterator[tuple[HostClient, list[web.Request]]]:
    """A client of a server that answers every method on one path; the requests it got."""
    got: list[web.Request] = []

    async def remember(request: web.Request) -> web.StreamResponse:
        await request.read()
        got.append(request)
        return await handler(request)

    app = web.Application()
    app.router.add_route("*", path, remember)
    runner = web.AppRunner(app, handler_cancellation=True)
    await runner.setup()
    await web.UnixSite(runner, str(tmp_path / "s")).start()
    client = HostClient(str(tmp_path / "s"))
    try:
        yield client, got
    finally:
        await client.close()
        await runner.cleanup()


async def test_reads(tmp_path: Path) -> None:
    page = LogPage((LogRecord(4, 1.0, "info", "engine", "a [/red] line"),), 2)
    async with serving(tmp_path, "/admin/snapshot", answers(snapshot())) as (client, _):
        assert await client.snapshot() == snapshot()
    async with serving(tmp_path, "/admin/history", answers(history())) as (client, got):
        assert await client.history(1767268800.25) == history()
        assert dict(got[0].query) == {"since": "1767268800.25"}
    async with serving(tmp_path, "/admin/log", answers(page)) as (client, got):
        assert await client.log(3, 500) == page
        assert dict(got[0].query) == {"since": "3", "limit": "500"}
    for kind in ("models", "profiles"):
        async with serving(tmp_path, f"/admin/{kind}", answers(["a", "[b"])) as (client, _):
            assert await getattr(client, kind)() == ["a", "[b"]


async def test_commands(tmp_path: Path) -> None:
    refusal = CommandReply(False, "It is already starting.")
    async with serving(tmp_path, "/admin/start", answers(refusal)) as (client, got):
        assert await client.start(StartCommand("m", None)) == refusal
        assert (got[0].method, msgspec.json.decode(await got[0].read())) == ("POST", {"model": "m", "profile": None})
    async with serving(tmp_path, "/admin/port", answers(CommandReply(True))) as (client, got):
        await client.set_port(PortCommand("::1", 8010))
        assert msgspec.json.decode(await got[0].read()) == {"host": "::1", "port": 8010}
    async with serving(tmp_path, "/admin/quit", answers(CommandReply(True))) as (client, got):
        assert (await client.quit()).ok


@pytest.mark.parametrize(
    ("handler", "status", "sentence", "after"),
    [
        (answers({"error": {"message": "Loading.", "code": 503}}, 503, Retry_After="2"), 503, "Loading.", 2.0),
        (answers({"error": {"message": "Too long.", "code": 400}}, 400), 400, "Too long.", None),
        (answers({"object": "error", "message": "Old style.", "code": 404}, 404), 404, "Old style.", None),
        (answers(b"since must be a number.", 400), 400, "since must be a number.", None),
        (answers(b"", 500), 500, "status 500", None),
        (answers({"sequence": "one"}), 502, "doesn't understand", None),
        (answers(b"<html>"), 502, "doesn't understand", None),
    ],
)
async def test_refusals_are_sentences(
    tmp_path: Path, handler: Handler, status: int, sentence: str, after: float | None
) -> None:
    async with serving(tmp_path, "/admin/snapshot", handler) as (client, _):
        with pytest.raises(HostError) as raised:
            await client.snapshot()
        assert (raised.value.status, raised.value.retry_after) == (status, after)
        assert sentence in str(raised.value)


async def test_nobody_there(tmp_path: Path) -> None:
    client = HostClient(str(tmp_path / "none"))
    with pytest.raises(HostUnreachable) as raised:
        await client.snapshot()
    assert raised.value.gone
    await client.close()


async def test_a_connection_that_breaks_is_not_the_end(tmp_path: Path) -> None:
    async def drop(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        return web.Response()

    async with serving(tmp_path, "/admin/snapshot", drop) as (client, _):
        with pytest.raises(HostUnreachable) as raised:
            await client.snapshot()
        assert not raised.value.gone


def streams(*events: bytes, then: asyncio.Event | None = None, left: asyncio.Event | None = None) -> Handler:
    """A reply of these bytes; it then waits for `then`, and sets `left` when the client goes away."""

    async def handler(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream"})
        await response.prepare(request)
        for event in events:
            await response.write(event)
        try:
            if then is not None:
                await then.wait()
        except asyncio.CancelledError:
            if left is not None:
                left.set()
            raise
        return response

    return handler


PATH = "/v1/chat/completions"


async def test_a_chat_streams(tmp_path: Path) -> None:
    handler = streams(
        b'data: {"choices": [{"delta": {"role": "assistant", "content": ""}}]}\n\n',
        b'data: {"choices": [{"delta": {"reasoning": "hm"}}]}\n\ndata: {"choices": [{"delta": {"content": "h\xc3',
        b'\xa9"}}]}\n\ndata: {"choices": [{"delta": {}, "finish_reason": "length"}]}\n\n',
        b'data: {"choices": [], "usage": {"prompt_tokens": 3, "completion_tokens": 9}}\n\ndata: [DONE]\n\n',
    )
    async with serving(tmp_path, PATH, handler) as (client, got):
        chunks = [chunk async for chunk in client.chat("m", [ChatMessage("user", "hi")])]
        assert chunks == [
            ChatChunk(),
            ChatChunk(reasoning="hm"),
            ChatChunk(text="hé"),
            ChatChunk(finish_reason="length"),
            ChatChunk(prompt_tokens=3, completion_tokens=9),
        ]
        assert msgspec.json.decode(await got[0].read()) == {
            "model": "m",
            "messages": [{"role": "user", "content": "hi"}],
            "stream": True,
            "stream_options": {"include_usage": True},
        }


@pytest.mark.parametrize(
    ("events", "sentence"),
    [
        ([b'data: {"error": {"message": "The engine died.", "code": 500}}\n\n'], "The engine died."),
        ([b'data: {"choices": [{"delta": {"content": "half"}}]}\n\n'], "broke off"),
        ([b"data: nonsense\n\n"], "doesn't understand"),
    ],
)
async def test_a_stream_that_fails_is_a_sentence(tmp_path: Path, events: list[bytes], sentence: str) -> None:
    async with serving(tmp_path, PATH, streams(*events)) as (client, _):
        with pytest.raises(HostError) as raised:
            async for _ in client.chat("m", []):
                pass
        assert sentence in str(raised.value)


async def test_leaving_a_chat_aborts_it(tmp_path: Path) -> None:
    left = asyncio.Event()
    first = b'data: {"choices": [{"delta": {"content": "a"}}]}\n\n'
    async with serving(tmp_path, PATH, streams(first, then=asyncio.Event(), left=left)) as (client, _):
        chat = client.chat("m", [])
        assert (await anext(chat)).text == "a"
        await chat.aclose()
        await left.wait()
