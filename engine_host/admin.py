"""The host's own API, for its screens. Served on the Unix socket only, which none but its owner can open."""

import asyncio
from collections.abc import Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from engine_host.api.types import CommandReply, PortCommand, StartCommand
from engine_host.host import EngineHost
from engine_host.logs.ring import LogRing
from engine_host.ports import Ports
from engine_host.snapshots import SnapshotSource

MAX_LOG_RECORDS = 5_000

_Command = TypeVar("_Command", StartCommand, PortCommand)


def admin_routes(
    host: EngineHost, ports: Ports, snapshots: SnapshotSource, ring: LogRing, quit_host: Callable[[], None]
) -> list[web.RouteDef]:
    """Everything below `/admin`, each answering JSON of the types in `engine_host.api.types`."""

    async def snapshot(_: web.Request) -> web.Response:
        return _json(snapshots.snapshot())

    async def history(request: web.Request) -> web.Response:
        return _json(snapshots.history(_number(request, "since", 0.0)))

    async def log(request: web.Request) -> web.Response:
        limit = int(_number(request, "limit", 1_000))
        return _json(ring.page(int(_number(request, "since", 0)), max(1, min(limit, MAX_LOG_RECORDS))))

    async def models(_: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(lambda: [model.name for model in host.models.list()]))

    async def profiles(_: web.Request) -> web.Response:
        return _json(await asyncio.to_thread(lambda: [profile.name for profile in host.profiles.list()[0]]))

    async def start(request: web.Request) -> web.Response:
        return _json(host.start(await _command(request, StartCommand)))

    async def port(request: web.Request) -> web.Response:
        return _json(await ports.move(await _command(request, PortCommand)))

    async def quit_(_: web.Request) -> web.Response:
        quit_host()
        return _json(CommandReply(True))

    return [
        web.get("/admin/snapshot", snapshot),
        web.get("/admin/history", history),
        web.get("/admin/log", log),
        web.get("/admin/models", models),
        web.get("/admin/profiles", profiles),
        web.post("/admin/start", start),
        web.post("/admin/port", port),
        web.post("/admin/quit", quit_),
    ]


def _json(value: object) -> web.Response:
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")


def _number(request: web.Request, name: str, default: float) -> float:
    text = request.query.get(name)
    if text is None:
        return default
    try:
        return float(text)
    except ValueError:
        raise web.HTTPBadRequest(text=f"{name} must be a number, not {text!r}.") from None


async def _command(request: web.Request, kind: type[_Command]) -> _Command:
    try:
        return msgspec.json.decode(await request.read(), type=kind)
    except msgspec.MsgspecError as error:
        raise web.HTTPBadRequest(text=f"This is no {kind.__name__}: {error}.") from None
