"""Binding the port: at once or not at all, with limits that a hostile or dead client runs into."""

import asyncio
import errno
import socket
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import psutil
from aiohttp import web
from aiohttp.web_protocol import RequestHandler

from engine_host.port.app import DOORKEEPER, HEADERS_S
from engine_host.port.connections import IDLE_TIMEOUT_S, Doorkeeper

BACKLOG = 1024

UNACKNOWLEDGED_TIMEOUT_MS = 30_000
"""TCP_USER_TIMEOUT: a client that takes nothing of what was sent for this long is cut off."""

SHUTDOWN_GRACE_S = 2.0
"""How long requests in progress may run on after `close`."""


class PortInUseError(Exception):
    """The port can't be bound; the sentence says who holds it and what to do."""


class Site:
    """One bound address of one application."""

    def __init__(self, runner: web.AppRunner, server: asyncio.AbstractServer, sweeper: asyncio.Task[None]) -> None:
        self._runner = runner
        self._server = server
        self._sweeper = sweeper

    @property
    def port(self) -> int | None:
        """The TCP port, also where 0 was asked for; `None` on a Unix socket."""
        name = self._server.sockets[0].getsockname()  # type: ignore[attr-defined]
        return name[1] if isinstance(name, tuple) else None

    def stop_listening(self) -> None:
        """Take no new connections; the open ones run on until they end or `close`."""
        self._server.close()

    async def close(self) -> None:
        """Stop listening, give requests in progress `SHUTDOWN_GRACE_S`, then end them."""
        self._server.close()
        self._sweeper.cancel()
        await self._runner.cleanup()


async def start_site(app: web.Application, host: str, port: int) -> Site:
    """Serve `app` on TCP. Port 0 takes a free one.

    Raises `PortInUseError` when somebody else listens there, `OSError` with its own sentence when `host` is no address
    of this machine or `port` needs privileges.
    """
    family, kind, protocol, _, address = (
        await asyncio.get_running_loop().getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)
    )[0]
    sock = socket.socket(family, kind, protocol)
    try:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        # Accepted connections inherit it.
        sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_USER_TIMEOUT, UNACKNOWLEDGED_TIMEOUT_MS)
        sock.bind(address)
        sock.listen(BACKLOG)
        return await _serve(app, sock)
    except OSError as error:
        sock.close()
        if error.errno == errno.EADDRINUSE:
            raise PortInUseError(_in_use(host, port)) from None
        raise
    except BaseException:
        sock.close()
        raise


async def start_unix_site(app: web.Application, path: Path) -> Site:
    """Serve `app` on a Unix socket that only this user can open. A socket left at `path` is replaced."""
    sock = _bound_unix(path)
    try:
        return await _serve(app, sock)
    except BaseException:
        sock.close()
        raise


def _bound_unix(path: Path) -> socket.socket:
    path.unlink(missing_ok=True)
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        sock.bind(str(path))
        # Nobody can connect before `listen`, so there is no moment at which others could.
        path.chmod(0o600)
        sock.listen(BACKLOG)
    except BaseException:
        sock.close()
        raise
    return sock


async def _serve(app: web.Application, sock: socket.socket) -> Site:
    runner = web.AppRunner(
        app,
        # Without it a request whose client has left runs on.
        handler_cancellation=True,
        access_log=None,
        keepalive_timeout=IDLE_TIMEOUT_S,
        shutdown_timeout=SHUTDOWN_GRACE_S,
    )
    loop = asyncio.get_running_loop()
    doorkeeper = Doorkeeper(loop.time, headers_s=app.get(HEADERS_S, lambda: IDLE_TIMEOUT_S))
    app[DOORKEEPER] = doorkeeper
    await runner.setup()
    assert runner.server is not None
    make_protocol: Callable[[], RequestHandler] = runner.server

    def accept() -> RequestHandler:
        connection = make_protocol()
        doorkeeper.opened(connection)
        return connection

    try:
        if sock.family == socket.AF_UNIX:
            server: asyncio.AbstractServer = await loop.create_unix_server(accept, sock=sock, backlog=BACKLOG)
        else:
            server = await loop.create_server(accept, sock=sock, backlog=BACKLOG)
    except BaseException:
        await runner.cleanup()
        raise
    return Site(runner, server, asyncio.create_task(doorkeeper.run(), name="port: idle connections"))


def _in_use(host: str, port: int) -> str:
    holder = _holder(port)
    who = f" by {holder}" if holder else " by another program"
    return f"Port {port} on {host} is already in use{who}. Stop it, or choose another port with --port."


def _holder(port: int) -> str | None:
    """The name and pid of who listens on `port`, where the system tells."""
    with suppress(psutil.Error, OSError):
        for connection in psutil.net_connections(kind="tcp"):
            listens = connection.status == psutil.CONN_LISTEN and connection.laddr and connection.laddr.port == port
            if listens and connection.pid is not None:
                return f"{psutil.Process(connection.pid).name()} (pid {connection.pid})"
    return None
