"""What a screen asks of the gateway, on the host's own API: requests and keys."""

from collections.abc import Awaitable, Callable

import msgspec
from aiohttp import web

from engine_host.api.types import CancelCommand, CommandReply, TierCommand
from engine_host.gateway.key_file import KeyStoreError
from engine_host.gateway.view import GatewayView
from engine_host.host import EngineHost
from engine_host.port.errors import error_response
from engine_host.port.replies import json_response

Handler = Callable[[web.Request], Awaitable[web.Response]]


def gateway_routes(host: EngineHost, view: GatewayView) -> list[web.RouteDef]:
    """Ending and moving requests, where the time of one went, and the keys."""

    async def cancel(request: web.Request) -> web.Response:
        command = msgspec.json.decode(await request.read(), type=CancelCommand)
        ended = sum(host.gate.cancel(each) for each in command.ids)
        return _reply(ended, len(command.ids), "cancelled")

    async def tier(request: web.Request) -> web.Response:
        command = msgspec.json.decode(await request.read(), type=TierCommand)
        if command.tier not in host.rules().tiers:
            return json_response(CommandReply(False, f"The profile has no tier {command.tier!r}."))
        moved = sum(host.gate.move(each, command.tier) for each in command.ids)
        return _reply(moved, len(command.ids), f"moved to {command.tier}")

    async def waterfall(request: web.Request) -> web.Response:
        found = view.waterfall(request.query.get("id", ""), host.flight)
        if found is None:
            return error_response(404, "The host no longer knows this request.")
        return json_response(found)

    async def keys(_: web.Request) -> web.Response:
        try:
            return json_response(await view.keys())
        except KeyStoreError as error:
            return error_response(503, str(error))

    return [
        web.post("/admin/requests/cancel", _decoded(cancel)),
        web.post("/admin/requests/tier", _decoded(tier)),
        web.get("/admin/requests/waterfall", waterfall),
        web.get("/admin/keys", keys),
    ]


def _decoded(handler: Handler) -> Handler:
    """The handler, with a body that is no command as a sentence."""

    async def handle(request: web.Request) -> web.Response:
        try:
            return await handler(request)
        except msgspec.MsgspecError as error:
            return error_response(400, f"This is no such command: {error}.")

    return handle


def _reply(done: int, asked: int, what: str) -> web.Response:
    if done == asked:
        return json_response(CommandReply(True, f"{done} request{'' if done == 1 else 's'} {what}."))
    return json_response(CommandReply(done > 0, f"{done} of {asked} requests {what}; the others had ended."))
