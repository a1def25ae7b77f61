"""Requests that broke other servers, on the real engine: each with what must happen."""

import asyncio
import json
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine_host.api.client import HostClient
from engine_host.api.types import ApplyCommand
from engine_host.gateway.keys import KEYS_FILE, KeyStore
from tests.support import LiveHost

CASES = json.loads(Path(__file__).with_name("cases.json").read_text())
MODEL = "stub-model"

pytestmark = pytest.mark.engine


def expand(value: Any) -> Any:
    """`{"$repeat": [s, n]}` stands for s repeated n times."""
    if isinstance(value, dict) and set(value) == {"$repeat"}:
        text, times = value["$repeat"]
        return text * times
    if isinstance(value, dict):
        return {key: expand(each) for key, each in value.items()}
    if isinstance(value, list):
        return [expand(each) for each in value]
    return value


def body_of(case: dict[str, Any]) -> bytes:
    if isinstance(case["body"], str):
        return str(case["body"]).encode()
    return json.dumps({"model": MODEL, **expand(case["body"])}).encode()


def strict(text: str) -> Any:
    def refuse(constant: str) -> None:
        raise ValueError(f"{constant} is no JSON")

    return json.loads(text, parse_constant=refuse)


def chunks_of(text: str) -> list[dict[str, Any]]:
    lines = [line.removeprefix("data: ") for line in text.splitlines() if line.startswith("data: ")]
    assert lines.pop() == "[DONE]"
    return [strict(line) for line in lines]


def applied(host: LiveHost, profile: str) -> None:
    """Have a profile of live knobs in force."""

    async def apply() -> None:
        client = HostClient(host.socket)
        reply = await client.apply_profile(ApplyCommand(profile))
        await client.close()
        assert reply.ok, reply.message

    asyncio.run(apply())


@pytest.fixture(scope="module", params=["without a key", "with a key"])
def key(request: pytest.FixtureRequest, live_host: LiveHost) -> Iterator[str | None]:
    """The key to send; with one, nothing is served without it."""
    if request.param == "without a key":
        yield None
        return
    _, text = KeyStore(live_host.data / KEYS_FILE).create("cases")
    applied(live_host, "keyed")
    yield text
    applied(live_host, "tests")


@pytest.mark.parametrize("case", CASES, ids=[case["id"] for case in CASES])
async def test_case(port_url: str, key: str | None, case: dict[str, Any]) -> None:
    expect = case["expect"]
    streams = isinstance(case["body"], dict) and bool(case["body"].get("stream"))
    asking = {"Authorization": f"Bearer {key}"} if key else {}
    async with aiohttp.ClientSession(port_url, headers=asking) as client:
        headers = {"Content-Type": "application/json"}
        if key:
            unasked = {**headers, "Authorization": ""}
            async with client.post(case["path"], data=body_of(case), headers=unasked) as response:
                assert response.status == 401
        async with client.post(case["path"], data=body_of(case), headers=headers) as response:
            text = await response.text()
            allowed = expect["status"] if isinstance(expect["status"], list) else [expect["status"]]
            assert response.status in allowed, text[:500]
            if response.status >= 400:
                check_error(strict(text), response.status, expect)
            elif streams:
                check_stream(chunks_of(text), expect)
            else:
                strict(text)
        if expect.get("engine") == "alive":
            plain = {"model": MODEL, "prompt": "hi", "max_tokens": 2}
            async with client.post("/v1/completions", json=plain) as response:
                assert response.status == 200


def check_error(value: Any, status: int, expect: dict[str, Any]) -> None:
    assert set(value["error"]) == {"message", "type", "param", "code"}
    assert value["error"]["code"] == status
    assert expect.get("message_has", "") in value["error"]["message"]


def check_stream(chunks: list[dict[str, Any]], expect: dict[str, Any]) -> None:
    if "usage_chunks" in expect:
        assert sum(chunk.get("usage") is not None for chunk in chunks) == expect["usage_chunks"]
    if "last_choices" in expect:
        assert chunks[-1]["choices"] == expect["last_choices"]
    choices = [choice for chunk in chunks for choice in chunk["choices"]]
    if "finish_per_index" in expect:
        finishes = Counter(choice["index"] for choice in choices if choice.get("finish_reason"))
        assert set(finishes) == {choice["index"] for choice in choices}
        assert set(finishes.values()) == {expect["finish_per_index"]}
    if "absent" in expect:
        contents = [choice["delta"].get("content") or "" for choice in choices]
        assert expect["absent"] not in "".join(contents)
