"""When a stream's chunks are written, and what happens when the client or the engine goes away."""

import asyncio
from typing import Any

from aiohttp import HttpVersion11

from engine_host.engine.stub import Delta
from engine_host.port.context import RequestContext
from engine_host.port.stream import HIGH_WATER_BYTES, FlushOnWait, SocketOutlet

from .conftest import Gate, Port

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}


class FakeTransport:
    def __init__(self) -> None:
        self.writes: list[bytes] = []
        self.unsent = 0

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return self.unsent

    def write(self, data: bytes) -> None:
        self.writes.append(data)


class FakeRequest:
    version = HttpVersion11

    def __init__(self) -> None:
        self.transport = FakeTransport()


def outlet() -> tuple[Any, FakeTransport]:
    request: Any = FakeRequest()
    writer: Any = None
    return SocketOutlet(request, writer, RequestContext("r", 0.0, "/")), request.transport


def test_who_waits_for_the_first_bytes_is_told_once_when_they_go_out() -> None:
    context, request, writer = RequestContext("r", 0.0, "/"), FakeRequest(), None
    out = SocketOutlet(request, writer, context)  # type: ignore[arg-type]
    told: list[tuple[int, float]] = []
    context.when_written.append(lambda at: told.append((len(request.transport.writes), at)))
    out.put(b"a")
    assert told == []
    out.flush()
    out.put(b"b")
    out.flush()
    ((writes, at),) = told
    assert writes == 1
    assert at > 0.0


async def test_what_is_ready_at_one_wake_up_goes_out_in_one_write() -> None:
    out, transport = outlet()

    async def stream() -> None:
        out.put(b"a")
        out.put(b"b")
        await asyncio.sleep(0)
        out.put(b"c")
        out.put(b"d")
        out.put(b"e")
        await asyncio.sleep(0)
        out.put(b"f")

    await FlushOnWait(stream(), out.flush)
    assert transport.writes == [b"2\r\nab\r\n", b"3\r\ncde\r\n"]
    assert out.take() == b"f"


async def test_nothing_is_written_when_nothing_was_put() -> None:
    out, transport = outlet()

    async def stream() -> None:
        for _ in range(3):
            await asyncio.sleep(0)

    await FlushOnWait(stream(), out.flush)
    assert transport.writes == []


async def test_cancelling_reaches_the_stream() -> None:
    out, _ = outlet()
    ended = asyncio.Event()

    async def stream() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    async def deliver() -> None:
        await FlushOnWait(stream(), out.flush)

    task = asyncio.create_task(deliver())
    await asyncio.sleep(0)
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    assert ended.is_set()
    assert task.cancelled()


async def test_a_stream_is_full_when_its_client_does_not_read() -> None:
    out, transport = outlet()
    assert not out.full
    transport.unsent = HIGH_WATER_BYTES + 1
    assert out.full


async def test_stream_headers_keep_proxies_from_buffering(port: Port) -> None:
    async with port.client.post("/v1/chat/completions", json={**CHAT, "stream": True}) as response:
        assert response.headers["X-Accel-Buffering"] == "no"
        assert response.headers["Cache-Control"] == "no-cache"
        assert response.content_type == "text/event-stream"
        assert (await response.text()).endswith("data: [DONE]\n\n")


async def leave(port: Port, gate: Gate, path: str, body: dict[str, Any]) -> None:
    """Send a request and break the connection once the engine works on it."""
    port.engine.pace = gate
    task = asyncio.create_task(port.post(path, body))
    await gate.reached.wait()
    task.cancel()
    await gate.left.wait()
    await asyncio.gather(task, return_exceptions=True)


async def test_a_client_that_leaves_is_aborted(port: Port, gate: Gate) -> None:
    await leave(port, gate, "/v1/chat/completions", CHAT)
    assert len(port.engine.aborted) == 1


async def test_a_client_that_leaves_before_the_first_token_is_aborted(port: Port, gate: Gate) -> None:
    await leave(port, gate, "/v1/chat/completions", {**CHAT, "stream": True})
    assert len(port.engine.aborted) == 1


async def test_a_client_that_leaves_a_long_tail_route_is_aborted(port: Port, gate: Gate) -> None:
    await leave(port, gate, "/v1/chat/completions/batch", {"messages": [CHAT["messages"]]})
    assert len(port.engine.aborted) == 1


async def test_a_client_that_leaves_in_the_middle_is_aborted(port: Port, gate: Gate) -> None:
    outputs = 0

    async def pace() -> None:
        nonlocal outputs
        outputs += 1
        if outputs > 3:
            await gate()

    port.engine.pace = pace
    response = await port.client.post("/v1/completions", json={"prompt": "hi", "stream": True})
    await gate.reached.wait()
    response.close()
    await gate.left.wait()
    assert len(port.engine.aborted) == 1


async def test_a_stream_that_breaks_in_the_middle_says_so(port: Port) -> None:
    port.engine.script = lambda prompt, params: [Delta("a"), Delta("b"), RuntimeError("it broke")]
    async with port.client.post("/v1/responses", json={"input": "hi", "stream": True}) as response:
        assert response.status == 200
        assert "event: error\n" in await response.text()
