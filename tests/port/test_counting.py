"""How many tokens a prompt has, by vLLM's own renderer; and that the bounds that save the counting hold for it."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.gateway.prompts import TemplateCost, measure_template, surely_over, surely_within

CHAT, COMPLETIONS, RESPONSES, MESSAGES = "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages"


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


async def _template(serving: Any) -> TemplateCost:
    async def count(body: Any) -> int | None:
        counted: int | None = await serving.count_tokens(CHAT, body)
        return counted

    template = await measure_template(count)
    assert template is not None
    return template


_TEXT = st.text(max_size=40) | st.text("ab <|im_start|>\n", max_size=60) | st.sampled_from(["ﷺ" * 9, "각" * 9, "🏳️‍🌈"])
_TURNS = st.lists(st.tuples(st.sampled_from(["user", "assistant", "system"]), _TEXT), min_size=1, max_size=5)


async def test_the_bounds_hold_for_the_real_count(stub_serving: Any) -> None:
    template = await _template(stub_serving)
    bodies: list[dict[str, Any]] = []

    @given(_TURNS)
    def collect(turns: list[tuple[str, str]]) -> None:
        bodies.append({"messages": [{"role": role, "content": text} for role, text in turns]})

    collect()
    for body in bodies:
        count = await stub_serving.count_tokens(CHAT, body)
        if count is None:
            continue
        assert not surely_within(body, count - 1, template)
        assert not surely_over(body, count, stub_serving.longest_token_chars)


@pytest.mark.parametrize(
    ("path", "body"),
    [
        (CHAT, {"messages": [user("hi there")]}),
        (COMPLETIONS, {"prompt": "hi there"}),
        (COMPLETIONS, {"prompt": [5, 6, 7]}),
        (RESPONSES, {"input": "hi there", "instructions": "Be brief."}),
        (MESSAGES, {"model": "stub-model", "max_tokens": 5, "system": "Be brief.", "messages": [user("hi there")]}),
    ],
)
async def test_the_count_is_what_the_engine_gets(stub_serving: Any, path: str, body: dict[str, Any]) -> None:
    count = await stub_serving.count_tokens(path, body)
    reply = await stub_serving.call(path, body, {})
    usage = json.loads(reply.body)["usage"]
    assert count == (usage.get("prompt_tokens") or usage["input_tokens"])


async def test_several_prompts_count_as_the_longest(stub_serving: Any) -> None:
    long = await stub_serving.count_tokens(COMPLETIONS, {"prompt": "hi there, and more"})
    assert await stub_serving.count_tokens(COMPLETIONS, {"prompt": ["hi", "hi there, and more"]}) == long


async def test_what_is_longer_than_the_context_counts_as_more(stub_serving: Any) -> None:
    assert await stub_serving.count_tokens(CHAT, {"messages": [user("word " * 3000)]}) == 2049
    assert await stub_serving.count_tokens(COMPLETIONS, {"prompt": "x" * 10_000_000}) == 2049
    assert await stub_serving.count_tokens(CHAT, {"messages": 3}) is None
