"""The gateway's rules on the real engine: who goes first, who is ended, and whose pages are free again."""

import asyncio
import json
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest

from engine_host.api.client import HostClient
from engine_host.api.types import ApplyCommand, CancelCommand, Snapshot
from engine_host.gateway.keys import KEYS_FILE, KeyStore
from tests.conftest import TINY
from tests.host.test_live_host import idle, until
from tests.support import LiveHost

pytestmark = pytest.mark.engine

TWO_AT_ONCE = TINY.replace("max_active = 16", "max_active = 2").replace("max_active = 2.0", "max_active = 16.0")
RULES = (
    TWO_AT_ONCE
    + """
[keys]
required = "never"
[gateway.prompts]
hard_limit = 1500
max_tokens = 700
[gateway.lanes]
long_prompt = 1000
[tiers.hasty]
ttft_deadline_s = 0.001
[tiers.fluent]
ttl_deadline_s = 0.001
[tiers.modest]
requests_per_minute = 1
"""
)


@pytest.fixture(scope="module")
def keys(live_host: LiveHost) -> dict[str, str]:
    """A key of each tier."""
    store = KeyStore(live_host.data / KEYS_FILE)
    tiers = ("premium", "best-effort", "hasty", "fluent", "modest")
    return {tier: store.create(f"of {tier}", tier=tier)[1] for tier in tiers}


@pytest.fixture
async def host(live_host: LiveHost) -> AsyncIterator[HostClient]:
    """The host, with `RULES` in force."""
    path = live_host.runtime / "config" / "llmconsole" / "profiles" / "rules.toml"
    path.write_text(RULES)
    client = HostClient(str(live_host.socket))
    await until(client, idle)
    assert (await client.apply_profile(ApplyCommand("rules"))).ok
    yield client
    await until(client, idle)
    assert (await client.apply_profile(ApplyCommand("tests"))).ok
    await client.close()


@pytest.fixture
async def port(live_host: LiveHost) -> AsyncIterator[aiohttp.ClientSession]:
    async with aiohttp.ClientSession(live_host.url) as session:
        yield session


class Asked:
    """A request under way, as its client sees it."""

    def __init__(self, port: aiohttp.ClientSession, key: str | None = None, **body: Any) -> None:
        body = {"prompt": "Once upon a time", "ignore_eos": True, "temperature": 0, "stream": True, **body}
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.status = 0
        self.headers: dict[str, str] = {}
        self.text = ""
        self.events: list[str] = []
        self.whole: Any = None
        self.began = asyncio.Event()
        self.task = asyncio.create_task(self._read(port, body, headers))

    async def _read(self, port: aiohttp.ClientSession, body: dict[str, Any], headers: dict[str, str]) -> "Asked":
        async with port.post("/v1/completions", json=body, headers=headers) as reply:
            self.status, self.headers = reply.status, dict(reply.headers)
            if reply.content_type != "text/event-stream":
                self.whole = await reply.json()
                return self
            async for line in reply.content:
                if line.startswith(b"data: "):
                    self.events.append(line[6:].decode().strip())
                    if self.events[-1].startswith("{") and "choices" in (event := json.loads(self.events[-1])):
                        self.text += "".join(choice["text"] for choice in event["choices"])
                        self.began.set()
        return self


def in_state(snapshot: Snapshot, state: str) -> int:
    return sum(row.state == state for row in snapshot.requests)


async def test_premium_takes_a_place_at_a_full_engine_and_nothing_is_lost(
    host: HostClient, port: aiohttp.ClientSession, keys: dict[str, str]
) -> None:
    alone = await Asked(port, max_tokens=120).task
    running = [Asked(port, keys["best-effort"], max_tokens=120) for _ in range(2)]
    for each in running:
        await each.began.wait()
    premium = await Asked(port, keys["premium"], max_tokens=5).task
    assert premium.status == 200
    assert not all(each.task.done() for each in running), "it did not wait for the others to end"
    shown = await host.snapshot()
    assert shown.gateway is not None
    assert {tier.name: tier.checkpointed for tier in shown.gateway.tiers}["best-effort"] == 1
    for each in running:
        await each.task
        assert each.text == alone.text, "the one that was set aside says what it would have said"
        assert each.events[-1] == "[DONE]"


async def test_deadlines_free_the_engine_and_say_which_and_how_long(
    host: HostClient, port: aiohttp.ClientSession, keys: dict[str, str]
) -> None:
    late = await Asked(port, keys["hasty"], prompt="word " * 400, max_tokens=5).task
    assert late.status == 408
    assert "first token did not come within 0.001 s, the deadline of the tier hasty" in late.whole["error"]["message"]
    broken = await Asked(port, keys["fluent"], max_tokens=300).task
    assert broken.status == 200
    error = json.loads(broken.events[-2])["error"]
    assert (error["code"], error["type"], broken.events[-1]) == (408, "TimeoutError", "[DONE]")
    assert "next token did not come within 0.001 s" in error["message"]
    await until(host, idle)


@pytest.mark.parametrize("stream", [True, False])
@pytest.mark.parametrize("where", ["queued", "prefill", "decode"])
async def test_a_client_that_leaves_leaves_nothing_behind(
    host: HostClient, port: aiohttp.ClientSession, where: str, stream: bool
) -> None:
    others = [Asked(port, max_tokens=600) for _ in range(4 if where == "queued" else 0)]
    if others:
        # One more than the two that run waits in the engine itself, and one in front of it.
        await until(host, lambda s: s.gateway is not None and sum(lane.waiting for lane in s.gateway.lanes) == 1)
    leaves = Asked(port, prompt="word " * (1400 if where == "prefill" else 10), max_tokens=600, stream=stream)
    if others:
        await until(host, lambda s: s.gateway is not None and sum(lane.waiting for lane in s.gateway.lanes) == 2)
    else:
        await until(host, lambda s: in_state(s, where) == 1)
    leaves.task.cancel()
    if others:
        shown = await until(host, lambda s: len(s.requests) == 4)
        assert shown.gateway is not None
        for each in others:
            each.task.cancel()
    await until(host, idle)


async def test_the_operator_cancels_a_request_and_its_client_is_told(
    host: HostClient, port: aiohttp.ClientSession
) -> None:
    asked = Asked(port, max_tokens=600)
    await asked.began.wait()
    (row,) = (await host.snapshot()).requests
    assert (row.tier, row.key, row.lane) == ("standard", "no key", "short")
    assert (await host.cancel_requests(CancelCommand((row.id,)))).ok
    await asked.task
    assert "operator" in json.loads(asked.events[-2])["error"]["message"]
    found = await host.waterfall(row.id)
    names = [span.name for span in found.spans]
    assert names == ["received", "validated", "queued", "scheduled", "prefill", "decode", "done"]
    assert all(one.end == other.start for one, other in zip(found.spans, found.spans[1:], strict=False))
    assert found.chunks


async def test_limits_of_length_and_number(host: HostClient, port: aiohttp.ClientSession, keys: dict[str, str]) -> None:
    too_long = await Asked(port, prompt="word " * 1600, max_tokens=5).task
    assert too_long.status == 400
    assert "1500" in too_long.whole["error"]["message"].replace(",", "")
    capped = Asked(port, max_tokens=900)
    await capped.began.wait()
    assert capped.headers["X-LLMConsole-Max-Tokens"] == "clamped 900->700"
    capped.task.cancel()
    first = await Asked(port, keys["modest"], max_tokens=2).task
    assert first.headers["x-ratelimit-remaining-requests"] == "0"
    second = await Asked(port, keys["modest"], max_tokens=2).task
    assert second.status == 429
    assert int(second.headers["Retry-After"]) >= 1
