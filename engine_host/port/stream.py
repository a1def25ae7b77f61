"""Delivering a stream: what is ready when the stream starts to wait goes out in one write."""

import asyncio
import fcntl
import logging
import struct
import termios
import time
from collections.abc import Callable, Coroutine, Generator, Iterator
from contextlib import contextmanager
from typing import Any

from aiohttp import HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter

from engine_host.port.backend import StreamReply
from engine_host.port.context import RequestContext

log = logging.getLogger(__name__)

HEADERS = {
    "Content-Type": "text/event-stream; charset=utf-8",
    "Cache-Control": "no-cache",
    "X-Accel-Buffering": "no",
}

HIGH_WATER_BYTES = 64 * 1024
"""Unsent bytes of one stream above which it waits for its client: asyncio's own default for a transport."""


class SocketOutlet:
    """The outlet onto one response to the request of `context`. `tap` is shown everything that is sent.

    It frames chunks itself and writes to the transport without awaiting: the writer of aiohttp is a coroutine, and one
    more await a token is a third of what a token costs.
    """

    def __init__(
        self,
        request: web.Request,
        writer: AbstractStreamWriter,
        context: RequestContext,
        tap: Callable[[bytes], None] | None = None,
    ) -> None:
        if request.transport is None:
            raise ConnectionResetError("the client has left")
        self._transport = request.transport
        self._writer = writer
        self._context = context
        self._tap = tap
        self._framed = request.version >= HttpVersion11
        self._ready: list[bytes] = []
        self._written = self._taken = 0
        self._moved: float | None = None
        self.put = self._ready.append

    @property
    def full(self) -> bool:
        return self._transport.get_write_buffer_size() > HIGH_WATER_BYTES

    def take(self) -> bytes:
        """What was put and not yet written."""
        data = b"".join(self._ready)
        self._ready.clear()
        if self._tap is not None and data:
            self._tap(data)
        return data

    def flush(self) -> None:
        """Write what was put, in one piece."""
        if not self._ready:
            return
        data = self.take()
        if data and not self._transport.is_closing():
            if self._framed:
                data = b"%x\r\n%b\r\n" % (len(data), data)
            self._written += len(data)
            self._transport.write(data)
            if self._context.when_written:
                self._context.written(time.monotonic())

    @property
    def request_id(self) -> str:
        """Of the request that is answered."""
        return self._context.request_id

    def stalled_s(self, now: float) -> float:
        """Seconds for which the client has taken nothing though something was there for it; 0 while it reads."""
        unsent = self._transport.get_write_buffer_size() + _in_kernel(self._transport)
        taken = self._written - unsent
        if self._moved is None or not unsent or taken > self._taken:
            self._moved, self._taken = now, taken
        return now - self._moved

    def cut(self) -> None:
        """Close the connection at once; what was not sent is thrown away."""
        self._transport.abort()

    async def drain(self) -> None:
        self.flush()
        await self._writer.drain()


class FlushOnWait:
    """Awaits a coroutine and calls `flush` each time it is about to wait."""

    def __init__(self, coroutine: Coroutine[Any, Any, None], flush: Callable[[], None]) -> None:
        self._coroutine = coroutine
        self._flush = flush

    def __await__(self) -> Generator[Any, Any, None]:
        send, throw, flush = self._coroutine.send, self._coroutine.throw, self._flush
        try:
            waits_for = send(None)
            while True:
                flush()
                try:
                    value = yield waits_for
                except BaseException as error:
                    waits_for = throw(error)
                else:
                    waits_for = send(value)
        except StopIteration:
            return


class OpenStreams:
    """The streams being delivered now."""

    def __init__(self) -> None:
        self._outlets: set[SocketOutlet] = set()

    def comment(self, text: str) -> None:
        """Write a comment into every stream: it shows that the connection is alive, and no client sees it as data."""
        for outlet in self._outlets:
            outlet.put(f": {text}\n\n".encode())
            outlet.flush()

    def cut_stalled(self, now: float, stall_s: float) -> None:
        """Cut off the clients that have taken nothing for `stall_s` seconds; call it a few times a second."""
        for outlet in tuple(self._outlets):
            if outlet.stalled_s(now) > stall_s:
                log.warning("a client that has read nothing for %.0f s is cut off", stall_s)
                outlet.cut()

    def stalled(self, now: float, after_s: float) -> list[tuple[str, float]]:
        """The requests whose clients have taken nothing for longer than this, and the seconds it is."""
        waits = [(outlet.request_id, outlet.stalled_s(now)) for outlet in self._outlets]
        return [each for each in waits if each[1] > after_s]

    @contextmanager
    def holding(self, outlet: SocketOutlet) -> Iterator[None]:
        """Count a stream as open."""
        self._outlets.add(outlet)
        try:
            yield
        finally:
            self._outlets.discard(outlet)


def _in_kernel(transport: asyncio.Transport) -> int:
    """Bytes that the kernel has not been told are received (SIOCOUTQ, tcp(7)); 0 where it doesn't say."""
    sock = transport.get_extra_info("socket")
    try:
        return int(struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, b"\0\0\0\0"))[0])
    except (OSError, AttributeError, ValueError):
        return 0


async def send_stream(
    request: web.Request,
    reply: StreamReply,
    headers: dict[str, str],
    streams: OpenStreams,
    context: RequestContext,
    tap: Callable[[bytes], None] | None = None,
) -> web.StreamResponse:
    """Send a stream to its end. The request is aborted in the engine if the client leaves before."""
    response = web.StreamResponse(headers={**HEADERS, **headers})
    try:
        writer = await response.prepare(request)
        assert writer is not None
        outlet = SocketOutlet(request, writer, context, tap)
        with streams.holding(outlet):
            await FlushOnWait(reply.deliver(outlet), outlet.flush)
        await response.write_eof(outlet.take())
    finally:
        await reply.aclose()
    return response
