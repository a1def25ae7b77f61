"""Prompt rules and kept conversations as a client of the port meets them, on the stub engine."""

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from engine_host.gateway.sessions import SessionBook, open_sessions
from profiles.schema import Profile
from tests.port.conftest import Port

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


def rules(port: Port, **prompts: Any) -> None:
    port.host.profile = Profile.model_validate({"name": "test", "gateway": {"prompts": prompts}})


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    roles = ("user", "assistant")
    messages = [{"role": roles[number % 2], "content": text} for number, text in enumerate(texts)]
    return {"messages": messages, "max_tokens": 4, **more}


def prompt_of(port: Port) -> str:
    """What the engine was asked last, as text."""
    request_ids = port.engine.prompts[-1]
    return str(port.engine.renderer.tokenizer.decode(request_ids))


@pytest.fixture(autouse=True)
def seen_prompts(port: Port) -> None:
    """Have the stub engine keep the prompts it is asked."""
    from engine_host.engine.stub import counting

    port.engine.prompts = []

    def script(ids: list[int], params: Any) -> Any:
        port.engine.prompts.append(ids)
        return counting(ids, params)

    port.engine.script = script


async def test_an_empty_prompt_is_refused_before_the_engine_sees_it(port: Port) -> None:
    for path, body in ((CHAT, chat("")), (COMPLETIONS, {"prompt": ""}), (COMPLETIONS, {"prompt": []})):
        status, reply = await port.post(path, body)
        assert status == 400
        assert "empty" in reply["error"]["message"]
    assert port.engine.prompts == []


async def test_a_reply_over_the_cap_is_clamped_and_said_or_refused(port: Port) -> None:
    rules(port, max_tokens=8)
    async with port.client.post(CHAT, json=chat("Hi", max_tokens=100)) as reply:
        assert reply.headers["X-LLMConsole-Max-Tokens"] == "clamped 100->8"
        assert (await reply.json())["usage"]["completion_tokens"] == 8
    rules(port, max_tokens=8, over_max_tokens="refuse")
    status, reply = await port.post(CHAT, chat("Hi", max_tokens=100))
    assert status == 400
    assert "100" in reply["error"]["message"]
    assert "8" in reply["error"]["message"]


async def test_a_prompt_over_the_hard_limit_names_limit_and_count(port: Port) -> None:
    rules(port, hard_limit=50)
    status, reply = await port.post(COMPLETIONS, {"prompt": "word " * 2_000_000})
    assert status == 400, "known from its length, without being tokenized"
    assert "50 tokens" in reply["error"]["message"]
    rules(port, hard_limit=50, over_hard=413)
    for words, said in ((60, "60 tokens; this server takes at most 50"), (3_000, "more than 50 tokens")):
        status, reply = await port.post(COMPLETIONS, {"prompt": "word" + " word" * (words - 1)})
        assert status == 413
        assert said in reply["error"]["message"]
    assert port.engine.prompts == []


async def test_a_long_prompt_is_compressed_and_said(port: Port) -> None:
    story = " ".join(f"In chapter {n} the owl named lamp number {n} after a street." for n in range(60))
    code = "```python\nprint('kept whole')\n```"
    rules(port, soft_limit=400, compress_to=300, over_soft="compress")
    body = chat(f"{story}\n{code}", "I see.", "Which lamp was first?")
    async with port.client.post(CHAT, json=body) as reply:
        assert reply.status == 200
        before, after = reply.headers["X-LLMConsole-Prompt"].removeprefix("compressed ").split("->")
        assert (await reply.json())["usage"]["prompt_tokens"] == int(after) <= 300 < int(before)
    asked = prompt_of(port)
    assert code in asked
    assert "Which lamp was first?" in asked
    async with port.client.post(CHAT, json=chat("Short.")) as reply:
        assert "X-LLMConsole-Prompt" not in reply.headers


async def test_a_last_turn_that_is_too_long_by_itself_is_refused_with_the_reason(port: Port) -> None:
    rules(port, soft_limit=100, over_soft="compress")
    status, reply = await port.post(CHAT, chat("One long question. " * 100))
    assert status == 400
    assert "can't be compressed" in reply["error"]["message"]


@pytest.fixture
async def book(port: Port, tmp_path: Path) -> AsyncIterator[SessionBook]:
    sessions = Profile.model_validate({"name": "t", "gateway": {"sessions": {"enabled": True}}}).gateway.sessions
    port.host.book = open_sessions(None, tmp_path, lambda: sessions, lambda: 2048, lambda message: len(str(message)))
    yield port.host.book
    await port.host.book.close()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_thin_client_sends_only_its_new_turn(port: Port, book: SessionBook, stream: bool) -> None:
    session = {"X-Session-Id": "s-1"}
    for text in ("My owl is called Uhu.", "What is it called?"):
        async with port.client.post(CHAT, json=chat(text, stream=stream), headers=session) as reply:
            assert reply.headers["X-LLMConsole-Session"] == "kept"
            await reply.read()
    asked = prompt_of(port)
    assert asked.index("My owl is called Uhu.") < asked.index("0 1 2 3") < asked.index("What is it called?")
    async with port.client.delete("/v1/sessions/s-1") as reply:
        assert reply.status == 200
    async with port.client.delete("/v1/sessions/s-1") as reply:
        assert reply.status == 404
    await port.post(CHAT, chat("Do you know my owl?"), headers=session)
    assert "Uhu" not in prompt_of(port)


async def test_a_session_is_not_kept_where_the_profile_keeps_none(port: Port) -> None:
    async with port.client.post(CHAT, json=chat("Hi"), headers={"X-Session-Id": "s-1"}) as reply:
        assert reply.headers["X-LLMConsole-Session"] == "off"
        assert reply.status == 200
