"""The host's own API, for its screens. Served on the Unix socket, which none but its owner can open.

One command is on the OpenAI port too, for scripts on the same machine: applying a profile, with the admin key.
"""

import asyncio
import ipaddress
from collections.abc import Awaitable, Callable
from typing import TypeVar

import msgspec
from aiohttp import web

from engine_host.api.types import (
    ApplyCommand,
    CommandReply,
    PortCommand,
    ProfileLine,
    ProfileText,
    SaveCommand,
    StartCommand,
)
from engine_host.host import EngineHost
from engine_host.logs.ring import LogRing
from engine_host.models.errors import ModelError
from engine_host.port.errors import error_response
from engine_host.port.replies import json_response
from engine_host.ports import Ports
from engine_host.snapshots import SnapshotSource
from profiles.edit import save_values
from profiles.errors import ProfileError
from profiles.store import BUILTIN_DIR, ProfileStore

MAX_LOG_RECORDS = 5_000

Handler = Callable[[web.Request], Awaitable[web.Response]]

_Command = TypeVar("_Command", StartCommand, PortCommand, ApplyCommand, SaveCommand)


def admin_routes(
    host: EngineHost, ports: Ports, snapshots: SnapshotSource, ring: LogRing, quit_host: Callable[[], None]
) -> list[web.RouteDef]:
    """Everything below `/admin`, each answering JSON of the types in `engine_host.api.types`."""

    async def snapshot(_: web.Request) -> web.Response:
        return json_response(snapshots.snapshot())

    async def history(request: web.Request) -> web.Response:
        return json_response(snapshots.history(number(request, "since", 0.0)))

    async def log(request: web.Request) -> web.Response:
        limit = int(number(request, "limit", 1_000))
        return json_response(ring.page(int(number(request, "since", 0)), max(1, min(limit, MAX_LOG_RECORDS))))

    async def models(_: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(lambda: [model.name for model in host.models.list()]))

    async def profiles(_: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(lambda: [profile.name for profile in host.profiles.list()[0]]))

    async def profile_lines(_: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(_lines, host.profiles, host.profile_name))

    async def profile_text(request: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(_text, host.profiles, request.query.get("name", "")))

    async def profile_change(request: web.Request) -> web.Response:
        return json_response(await host.plan(request.query.get("name", "")))

    async def apply(request: web.Request) -> web.Response:
        return json_response(await apply_command(host, await _command(request, ApplyCommand)))

    async def cancel(_: web.Request) -> web.Response:
        return json_response(host.cancel_change())

    async def changes(_: web.Request) -> web.Response:
        return json_response(host.changes.records())

    async def save(request: web.Request) -> web.Response:
        command = await _command(request, SaveCommand)
        try:
            path = await asyncio.to_thread(save_values, host.profiles, command.name, command.base, command.values)
        except (ProfileError, OSError) as error:
            return json_response(CommandReply(False, str(error)))
        return json_response(CommandReply(True, f"Saved as {path}."))

    async def start(request: web.Request) -> web.Response:
        return json_response(host.start(await _command(request, StartCommand)))

    async def port(request: web.Request) -> web.Response:
        return json_response(await ports.move(await _command(request, PortCommand)))

    async def quit_(_: web.Request) -> web.Response:
        quit_host()
        return json_response(CommandReply(True))

    return [
        web.get("/admin/snapshot", snapshot),
        web.get("/admin/history", history),
        web.get("/admin/log", log),
        web.get("/admin/models", models),
        web.get("/admin/profiles", profiles),
        web.get("/admin/profiles/lines", _said(profile_lines)),
        web.get("/admin/profiles/text", _said(profile_text)),
        web.get("/admin/profiles/change", _said(profile_change)),
        web.post("/admin/profiles/save", save),
        web.post("/admin/profile", apply),
        web.post("/admin/profile/cancel", cancel),
        web.get("/admin/changes", changes),
        web.post("/admin/start", start),
        web.post("/admin/port", port),
        web.post("/admin/quit", quit_),
    ]


def public_admin_routes(host: EngineHost) -> list[web.RouteDef]:
    """`POST /admin/profile` for the OpenAI port, which asks for admin rights: for a client on this machine."""

    async def apply(request: web.Request) -> web.Response:
        if not _local(request.remote):
            return error_response(403, "Profiles are applied from this machine only.", kind="PermissionDeniedError")
        reply = await apply_command(host, await _command(request, ApplyCommand))
        return json_response(reply) if reply.ok else error_response(409, reply.message, kind="ConflictError")

    return [web.post("/admin/profile", apply)]


async def apply_command(host: EngineHost, command: ApplyCommand) -> CommandReply:
    """Apply a profile; what is wrong with it or with the model is the reply's sentence."""
    try:
        return await host.apply(command)
    except (ProfileError, ModelError) as error:
        return CommandReply(False, str(error))


def _local(address: str | None) -> bool:
    try:
        return address is not None and ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def _said(
    handler: Callable[[web.Request], Awaitable[web.Response]],
) -> Callable[[web.Request], Awaitable[web.Response]]:
    """The handler, with what is wrong with a profile or a model as the reply's sentence."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except (ProfileError, ModelError) as error:
            return error_response(422, str(error))

    return handle


def _lines(store: ProfileStore, active: str) -> list[ProfileLine]:
    profiles, problems = store.list()
    files = store.files()
    good = {
        profile.name: ProfileLine(
            profile.name, profile.description, files[profile.name].parent == BUILTIN_DIR, profile.name == active
        )
        for profile in profiles
    }
    found = []
    for name, path in files.items():
        said = [str(problem) for problem in problems if str(path) in str(problem) or path.name in str(problem)]
        broken = ProfileLine(
            name, "", path.parent == BUILTIN_DIR, name == active, "\n".join(said) or "It can't be read."
        )
        found.append(good.get(name, broken))
    return found


def _text(store: ProfileStore, name: str) -> ProfileText:
    path = store.file(name)
    try:
        return ProfileText(name, path.read_text(), path.parent == BUILTIN_DIR)
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(path, f"can't be read: {error}") from error


def number(request: web.Request, name: str, default: float) -> float:
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
