"""What the running host tells its screens, held against the engine's own figures."""

import asyncio
import json
import re
import socket
from collections.abc import AsyncIterator, Callable
from typing import Any

import aiohttp
import pytest

from engine_host.api.client import HostClient
from engine_host.api.flight import FlightReader
from engine_host.api.types import PortCommand, Snapshot, StartCommand
from tests.support import LiveHost, free_port

pytestmark = pytest.mark.engine

PROMPT = "The zebra crossed the quiet street, and nobody wrote it down."


@pytest.fixture
async def host(live_host: LiveHost) -> AsyncIterator[HostClient]:
    client = HostClient(str(live_host.socket))
    yield client
    await client.close()


@pytest.fixture
async def port(live_host: LiveHost) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(live_host.url) as session:
        yield session


def body(**more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": PROMPT}], "ignore_eos": True, "temperature": 0, **more}


async def until(host: HostClient, wanted: Callable[[Snapshot], bool]) -> Snapshot:
    """The first snapshot that `wanted` holds of."""
    while True:
        if wanted(snapshot := await host.snapshot()):
            return snapshot
        await asyncio.sleep(0.02)


def idle(snapshot: Snapshot) -> bool:
    return not snapshot.requests and snapshot.kv is not None and snapshot.kv.used == 0


async def test_a_running_request_is_shown_with_the_pages_it_holds(
    host: HostClient, port: aiohttp.ClientSession
) -> None:
    await until(host, idle)
    reply = await port.post("/v1/chat/completions", json=body(max_tokens=400, stream=True))
    shown = await until(host, lambda s: bool(s.requests and s.requests[0].output_tokens > 40))
    (row,) = shown.requests
    assert shown.kv is not None
    assert (row.state, shown.load.running, shown.load.waiting) == ("decode", 1, 0)
    needed = (row.prompt_tokens + row.output_tokens - 1) // shown.kv.page_tokens
    assert row.pages is not None
    assert needed <= row.pages <= needed + 2
    assert shown.kv.used == row.pages
    assert shown.kv.used + shown.kv.cached + shown.kv.free == shown.kv.pages
    (flight,) = shown.flight
    pages = FlightReader(flight.path).read_pages()
    assert pages.owners == (row.id,)

    reply.close()
    after = await until(host, idle)
    assert after.kv is not None
    assert after.kv.cached > 0


async def gauge(port: aiohttp.ClientSession, name: str) -> float:
    async with port.get("/metrics") as reply:
        found = re.search(rf"^{name}\{{.*\}} (\S+)$", await reply.text(), re.MULTILINE)
    assert found is not None
    return float(found[1])


@pytest.mark.parametrize("stream", [True, False])
async def test_every_token_but_the_first_is_a_ttl_sample(
    host: HostClient, port: aiohttp.ClientSession, stream: bool
) -> None:
    async def counted() -> list[float]:
        names = ("time_to_first_token", "token_latency")
        return [await gauge(port, f"llmconsole_{name}_seconds_count") for name in names]

    before = await counted()
    async with port.post("/v1/chat/completions", json=body(max_tokens=24, stream=stream)) as reply:
        await reply.read()
    await until(host, idle)
    assert [b - a for a, b in zip(before, await counted(), strict=True)] == [1, 23]
    latency = (await host.snapshot()).latency
    assert latency.ttl is not None
    assert 0 < latency.ttl.p50 <= latency.ttl.p99


async def test_steps_in_the_record_add_up_to_the_requests_tokens(host: HostClient, port: aiohttp.ClientSession) -> None:
    reader = FlightReader((await until(host, idle)).flight[0].path)
    mark = reader.read_steps().rows[-1]["number"] if len(reader.read_steps()) else 0
    unseen = {**body(max_tokens=10), "messages": [{"role": "user", "content": "Nine owls named every lamp."}]}
    async with port.post("/v1/chat/completions", json=unseen) as reply:
        usage = (await reply.json())["usage"]
    await until(host, idle)
    steps = reader.read_steps(int(mark))
    cached = (usage.get("prompt_tokens_details") or {}).get("cached_tokens") or 0
    assert int(steps.prefill.sum()) == usage["prompt_tokens"] - cached
    # The prompt's last chunk produces the first token.
    assert int(steps.decode.sum()) == usage["completion_tokens"] - 1


async def test_the_admin_api_is_not_on_the_port(port: aiohttp.ClientSession) -> None:
    async with port.get("/admin/snapshot") as reply:
        assert reply.status == 401
    async with port.post("/admin/quit") as reply:
        assert reply.status == 401


async def test_a_running_engine_is_not_started_over(host: HostClient) -> None:
    reply = await host.start(StartCommand(model="something else"))
    assert not reply.ok
    assert "running" in reply.message
    assert (await host.snapshot()).model.name == "stub-model"


async def test_the_port_moves_and_open_streams_run_on(host: HostClient, port: aiohttp.ClientSession) -> None:
    old = (await host.snapshot()).port.port
    async with port.post("/v1/chat/completions", json=body(max_tokens=60, stream=True)) as reply:
        await reply.content.readline()
        new = free_port()
        assert (await host.set_port(PortCommand("127.0.0.1", new))).ok
        async with aiohttp.ClientSession(f"http://127.0.0.1:{new}") as moved, moved.get("/v1/models") as models:
            assert models.status == 200
        text = (await reply.read()).decode()
    assert text.rstrip().endswith("data: [DONE]")
    assert (await host.set_port(PortCommand("127.0.0.1", old))).ok
    assert (await host.snapshot()).port.port == old


async def test_a_taken_port_is_refused_and_the_old_one_stays(host: HostClient, port: aiohttp.ClientSession) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        taken = holder.getsockname()[1]
        reply = await host.set_port(PortCommand("127.0.0.1", taken))
    assert not reply.ok
    assert str(taken) in reply.message
    async with port.get("/health") as health:
        assert health.status == 200


async def test_prompts_and_replies_are_not_in_the_log(
    live_host: LiveHost, host: HostClient, port: aiohttp.ClientSession
) -> None:
    async with port.post("/v1/chat/completions", json=body(max_tokens=8)) as reply:
        answer = (await reply.json())["choices"][0]["message"]["content"]
    printed = (live_host.socket.parents[2] / "log").read_text()
    page = await host.log(0, 5_000)
    assert page.records
    for text in (PROMPT, answer):
        assert text not in printed
        assert json.dumps(text)[1:-1] not in printed
        assert all(text not in record.text for record in page.records)
