"""What the port does while the engine behind it is changed, and who may change it."""

import asyncio
from typing import Any

import aiohttp
import pytest

from engine_host.admin import _local, public_admin_routes
from engine_host.api.types import ApplyCommand, CommandReply
from engine_host.port.app import make_app
from engine_host.port.auth import Authenticator
from engine_host.port.server import start_site
from profiles.schema import Profile

from .conftest import FakeHost, Port

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


async def test_a_request_waits_for_the_rebuild_and_is_served(port: Port) -> None:
    port.host.admitting = asyncio.Event()
    serving, port.host.backend = port.host.backend, None
    asked = asyncio.create_task(port.post("/v1/chat/completions", CHAT))
    listed = asyncio.create_task(port.client.get("/v1/models"))
    done, _ = await asyncio.wait({asked, listed}, timeout=0.1)
    assert not done
    port.host.backend = serving
    port.host.admitting.set()
    assert (await asked)[0] == 200
    assert (await listed).status == 200


async def test_an_engine_that_does_not_come_back_is_a_503_to_who_waited(port: Port) -> None:
    port.host.admitting = asyncio.Event()
    asked = asyncio.create_task(port.post("/v1/chat/completions", CHAT))
    await asyncio.wait({asked}, timeout=0.1)
    port.host.backend = None
    port.host.admitting.set()
    assert (await asked)[0] == 503


async def test_no_more_wait_for_an_engine_than_the_profile_lets(port: Port) -> None:
    port.host.profile = Profile.model_validate({"name": "t", "gateway": {"lanes": {"max_queued": 2}}})
    port.host.admitting = asyncio.Event()
    waiting = [asyncio.create_task(port.post("/v1/chat/completions", CHAT)) for _ in range(2)]
    await asyncio.wait(waiting, timeout=0.1)
    async with port.client.post("/v1/chat/completions", json=CHAT) as reply:
        assert reply.status == 429
        assert reply.headers["Retry-After"] == "7"
    port.host.admitting.set()
    assert [status for status, _ in await asyncio.gather(*waiting)] == [200, 200]


async def test_a_comment_shows_that_a_silent_stream_is_alive_and_changes_nothing_else(port: Port) -> None:
    goes_on, given = asyncio.Event(), 0

    async def pace() -> None:
        nonlocal given
        given += 1
        if given == 2:
            await goes_on.wait()

    port.engine.pace = pace
    async with port.client.post("/v1/chat/completions", json=CHAT | {"stream": True}) as reply:
        lines = [await reply.content.readline()]
        port.host.streams.comment("the engine is swapping")
        while b"swapping" not in lines[-1]:
            lines.append(await reply.content.readline())
        assert lines[-1] == b": the engine is swapping\n"
        goes_on.set()
        lines += (await reply.read()).splitlines(keepends=True)
    events = [line for line in lines if line.startswith(b"data: ")]
    assert events[-1] == b"data: [DONE]\n"
    assert all(line.startswith((b"data: ", b": ")) or line == b"\n" for line in lines)
    port.host.streams.comment("nobody is there to see this")


class AppliedTo:
    """A host that notes what it is told to apply."""

    def __init__(self, reply: CommandReply) -> None:
        self.reply = reply
        self.applied: list[ApplyCommand] = []

    async def apply(self, command: ApplyCommand) -> CommandReply:
        self.applied.append(command)
        return self.reply


@pytest.mark.parametrize(
    ("headers", "reply", "status", "applied"),
    [
        ({}, CommandReply(True), 401, 0),
        ({"Authorization": "Bearer other"}, CommandReply(True), 401, 0),
        ({"Authorization": "Bearer secret"}, CommandReply(True, "in force"), 200, 1),
        ({"x-api-key": "secret"}, CommandReply(True, "in force"), 200, 1),
        ({"Authorization": "Bearer secret"}, CommandReply(False, "It does not fit."), 409, 1),
    ],
)
async def test_a_profile_is_applied_over_the_port_with_the_admin_key_only(
    headers: dict[str, str], reply: CommandReply, status: int, applied: int
) -> None:
    host: Any = AppliedTo(reply)
    auth = Authenticator(None, lambda: None, frozenset, "secret")
    site = await start_site(make_app(FakeHost(), extra_routes=public_admin_routes(host), auth=auth), "127.0.0.1", 0)
    url = f"http://127.0.0.1:{site.port}/admin/profile"
    async with aiohttp.ClientSession() as client, client.post(url, json={"profile": "p"}, headers=headers) as answer:
        body = await answer.json()
    await site.close()
    assert (answer.status, len(host.applied)) == (status, applied)
    assert reply.ok or body["error"]["message"] == reply.message


@pytest.mark.parametrize(
    ("address", "local"),
    [("127.0.0.1", True), ("127.8.0.1", True), ("::1", True), ("192.168.0.2", False), ("", False), (None, False)],
)
def test_only_this_machine_is_local(address: str | None, local: bool) -> None:
    assert _local(address) == local
