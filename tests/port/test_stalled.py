"""Clients that stop reading, on real sockets: who takes nothing is cut off, who is slow is not."""

import asyncio
import socket
from collections.abc import AsyncGenerator
from dataclasses import dataclass, field

import pytest
from aiohttp import web

from engine_host.port.backend import Outlet
from engine_host.port.context import RequestContext
from engine_host.port.stream import OpenStreams, SocketOutlet, send_stream

STALL_S = 30.0


@dataclass
class Reply:
    """Puts a chunk when the test says so; `ended` says how it was left."""

    chunks: "asyncio.Queue[bytes]" = field(default_factory=asyncio.Queue)
    outlet: Outlet | None = None
    begun: asyncio.Event = field(default_factory=asyncio.Event)
    ended: asyncio.Event = field(default_factory=asyncio.Event)

    async def deliver(self, outlet: Outlet) -> None:
        self.outlet = outlet
        self.begun.set()
        while True:
            outlet.put(await self.chunks.get())
            self.chunks.task_done()
            if outlet.full:
                await outlet.drain()

    async def aclose(self) -> None:
        self.ended.set()

    async def put(self, chunk: bytes, count: int = 1) -> None:
        for _ in range(count):
            self.chunks.put_nowait(chunk)
            await asyncio.sleep(0)


@dataclass
class Scene:
    streams: OpenStreams
    reply: Reply
    client: socket.socket

    async def read(self, most: int) -> bytes:
        return await asyncio.get_running_loop().sock_recv(self.client, most)

    async def filled(self) -> None:
        """Send until the client's kernel takes no more."""
        async with asyncio.timeout(20):
            while self.reply.outlet is None or not self.reply.outlet.full:
                await self.reply.put(b"x" * 8192)


@pytest.fixture
async def scene() -> AsyncGenerator[Scene, None]:
    streams, reply = OpenStreams(), Reply()

    async def handler(request: web.Request) -> web.StreamResponse:
        return await send_stream(request, reply, {}, streams, RequestContext("r", 0.0, "/"))

    app = web.Application()
    app.router.add_get("/", handler)
    runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.setblocking(False)
    loop = asyncio.get_running_loop()
    await loop.sock_connect(client, runner.addresses[0])
    await loop.sock_sendall(client, b"GET / HTTP/1.1\r\nHost: x\r\n\r\n")
    async with asyncio.timeout(10):
        await reply.begun.wait()
    yield Scene(streams, reply, client)
    client.close()
    await runner.cleanup()


async def test_a_client_that_takes_nothing_is_cut_off_and_its_request_ended(scene: Scene) -> None:
    await scene.filled()
    scene.streams.cut_stalled(100.0, STALL_S)
    scene.streams.cut_stalled(100.0 + STALL_S, STALL_S)
    assert not scene.reply.ended.is_set()
    scene.streams.cut_stalled(100.0 + STALL_S + 0.1, STALL_S)
    async with asyncio.timeout(10):
        await scene.reply.ended.wait()


async def test_it_is_cut_off_too_where_the_rest_fits_into_the_kernels_buffer(scene: Scene) -> None:
    # The client's kernel is full, and what comes on top lies in ours: the transport itself holds nothing.
    outlet = scene.reply.outlet
    assert isinstance(outlet, SocketOutlet)
    async with asyncio.timeout(20):
        while not outlet.stalled_s(0.0) and outlet.stalled_s(1.0) < 1.0:
            await scene.reply.put(b"x" * 512)
            assert not outlet.full
    assert outlet._transport.get_write_buffer_size() == 0
    scene.streams.cut_stalled(100.0, STALL_S)
    scene.streams.cut_stalled(100.0 + STALL_S, STALL_S)
    async with asyncio.timeout(10):
        await scene.reply.ended.wait()


@pytest.mark.parametrize("tiny", [0, 20_000])
async def test_a_slow_reader_is_not_cut_off(scene: Scene, tiny: int) -> None:
    await scene.filled()
    outlet = scene.reply.outlet
    assert isinstance(outlet, SocketOutlet)
    for number in range(4):
        scene.streams.cut_stalled(100.0 + number * (STALL_S - 1), STALL_S)
        assert not outlet._transport.is_closing()
        taken = 0
        # The kernel tells of what was read only when it is worth a packet.
        while taken < 64 * 1024:
            taken += len(await scene.read(4096))
        # Of tiny chunks most is frames, and more of them come than are read.
        for _ in range(tiny):
            outlet.put(b"y")
            outlet.flush()
    assert not scene.reply.ended.is_set()


async def test_a_stream_in_which_nothing_is_unread_is_never_stalled(scene: Scene) -> None:
    await scene.reply.put(b"hello")
    assert b"200 OK" in await scene.read(4096)
    for now in (100.0, 1_000.0, 10_000.0):
        scene.streams.cut_stalled(now, STALL_S)
    # A connection that was cut has its end already.
    await scene.reply.put(b"again")
    assert b"again" in await scene.read(4096)
