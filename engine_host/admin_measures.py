"""The part of the host's API that tells what is measured, kept and found."""

import asyncio
import time

from aiohttp import web

from engine_host.admin import number
from engine_host.doctor.gather import Gatherer
from engine_host.doctor.record import dump
from engine_host.doctor.rules import diagnose
from engine_host.measuring import Measuring
from engine_host.port.replies import json_response


def measure_routes(measuring: Measuring, gatherer: Gatherer) -> list[web.RouteDef]:
    """`/admin/telemetry`, `/admin/past`, `/admin/findings` and `/admin/record`."""

    async def telemetry(_: web.Request) -> web.Response:
        return json_response(measuring.telemetry())

    async def past(request: web.Request) -> web.Response:
        since, until = number(request, "since", 0.0), number(request, "until", time.time())
        return json_response(await asyncio.to_thread(measuring.ledger.past, since, until))

    async def findings(_: web.Request) -> web.Response:
        return json_response(await asyncio.to_thread(diagnose, await gatherer.gather()))

    async def record(_: web.Request) -> web.Response:
        body = await asyncio.to_thread(dump, await gatherer.gather())
        return web.Response(body=body, content_type="application/octet-stream")

    return [
        web.get("/admin/telemetry", telemetry),
        web.get("/admin/past", past),
        web.get("/admin/findings", findings),
        web.get("/admin/record", record),
    ]
