"""How long prompts and replies may be, and which prompts need no tokenizer to tell."""

from typing import Any

import pytest

from engine_host.gateway.prompts import (
    TemplateCost,
    cap_reply,
    check_hard,
    check_not_empty,
    check_reply,
    max_tokens_of,
    over_soft,
    refuse_soft,
    surely_over,
    surely_within,
    texts_of,
)
from engine_host.gateway.refusal import Refusal
from profiles.gateway import Prompts

CHAT, COMPLETIONS, RESPONSES, MESSAGES = (
    "/v1/chat/completions",
    "/v1/completions",
    "/v1/responses",
    "/v1/messages",
)
TEMPLATE = TemplateCost(base=20, per_message=10)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


IMAGE = {"type": "image_url", "image_url": {"url": "data:,x"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": '{"q": "cats"}'}}


@pytest.mark.parametrize(
    ("body", "texts"),
    [
        ({"messages": [user("a"), user([{"type": "text", "text": "b"}, IMAGE])]}, ["a", "b"]),
        ({"messages": [[user("a")], [user("b")]]}, ["a", "b"]),
        ({"prompt": ["a", "b"]}, ["a", "b"]),
        ({"prompt": [1, 2]}, []),
        ({"input": "a", "instructions": "b"}, ["a", "b"]),
        ({"input": [{"type": "function_call_output", "call_id": "x", "output": "a"}]}, ["a"]),
        ({"system": [{"type": "text", "text": "b"}], "messages": [user("a")]}, ["a", "b"]),
        ({"messages": [user([{"type": "tool_result", "tool_use_id": "x", "content": "a"}])]}, ["a"]),
        ({"messages": 3, "prompt": None, "input": {"content": [4]}}, []),
    ],
)
def test_texts(body: dict[str, Any], texts: list[str]) -> None:
    assert list(texts_of(body)) == texts


def test_texts_of_tools() -> None:
    tools = [{"type": "function", "function": {"name": "find", "description": "Finds."}}]
    body = {"messages": [{"role": "assistant", "content": None, "tool_calls": [CALL]}], "tools": tools}
    assert {"find", '{"q": "cats"}', "Finds."} <= set(texts_of(body))


@pytest.mark.parametrize(
    ("body", "over"),
    [
        ({"messages": [user("x" * 101)]}, True),
        ({"messages": [user("x" * 100)]}, False),
        ({"messages": [user("x" * 60), user([{"type": "text", "text": "x" * 60}])]}, True),
        ({"messages": [user("x"), {"role": "assistant", "content": "x" * 200}]}, False),
        ({"system": "x" * 101, "messages": []}, True),
        ({"input": "x" * 101}, True),
        ({"prompt": "x" * 101}, True),
        ({"prompt": ["x" * 60, "x" * 60]}, False),
        ({"prompt": [1] * 11}, True),
        ({"prompt": [1] * 10}, False),
        ({"prompt": "x" * 101, "truncate_prompt_tokens": 5}, False),
    ],
)
def test_surely_over_ten_tokens_of_ten_characters(body: dict[str, Any], over: bool) -> None:
    assert surely_over(body, 10, 10) is over


@pytest.mark.parametrize(
    ("body", "within"),
    [
        ({"messages": [user("x" * 70)]}, True),
        ({"messages": [user("x" * 71)]}, False),
        ({"messages": [user("x" * 30), user("x" * 31)]}, False),
        ({"messages": [user([{"type": "text", "text": "x" * 70}])]}, True),
        ({"messages": [user("ü" * 3)]}, True),
        ({"messages": [user("ü" * 4)]}, False),
        ({"messages": [user("x"), user([IMAGE])]}, False),
        ({"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]}, False),
        ({"messages": [user("x")], "tools": [{}]}, False),
        ({"messages": [user("x")], "chat_template_kwargs": {"enable_thinking": True}}, False),
        ({"input": "x" * 70}, True),
        ({"input": "x", "previous_response_id": "resp_1"}, False),
        ({"prompt": ["x" * 80, [1] * 80]}, True),
        ({"prompt": ["x" * 80, [1] * 81]}, False),
    ],
)
def test_surely_within_a_hundred_tokens(body: dict[str, Any], within: bool) -> None:
    assert surely_within(body, 100, TEMPLATE) is within


def test_nothing_is_surely_within_while_the_template_is_unknown() -> None:
    assert not surely_within({"messages": [user("x")]}, 100, None)


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": ""},
        {"prompt": []},
        {"prompt": ["a", ""]},
        {"prompt": [[]]},
        {"messages": []},
        {"messages": [user(""), user([{"type": "text", "text": ""}])]},
        {"messages": [user(None)]},
        {"messages": [[user("a")], [user("")]]},
        {"input": ""},
        {"input": [{"type": "message", "role": "user", "content": [{"type": "input_text", "text": ""}]}]},
    ],
)
def test_empty_prompts(body: dict[str, Any]) -> None:
    with pytest.raises(Refusal, match="The prompt is empty") as caught:
        check_not_empty(body)
    assert caught.value.status == 400


@pytest.mark.parametrize(
    "body",
    [
        {"prompt": "a"},
        {"prompt": [0]},
        {"prompt": None},
        {"prompt": "", "prompt_embeds": "AAAA"},
        {"messages": [user(""), user("a")]},
        {"messages": [user([IMAGE])]},
        {"messages": [{"role": "assistant", "content": "", "tool_calls": [CALL]}]},
        {"messages": 3},
        {"messages": ["what"]},
        {"input": [{"type": "function_call_output", "call_id": "x", "output": ""}]},
        {},
    ],
)
def test_prompts_that_are_not_empty(body: dict[str, Any]) -> None:
    check_not_empty(body)


@pytest.mark.parametrize("status", [400, 413])
def test_the_hard_limit(status: Any) -> None:
    rules = Prompts(hard_limit=1000, over_hard=status)
    check_hard(1000, rules, 2048)
    with pytest.raises(Refusal, match=r"has 1,001 tokens; .* at most 1,000") as caught:
        check_hard(1001, rules, 2048)
    assert caught.value.status == status


@pytest.mark.parametrize("hard_limit", [None, 5000])
def test_the_context_length_is_the_hard_limit(hard_limit: int | None) -> None:
    with pytest.raises(Refusal, match=r"has at least 2,049 tokens; .* at most 2,048"):
        check_hard(2049, Prompts(hard_limit=hard_limit), 2048)


@pytest.mark.parametrize("choice", ["allow", "long-queue", "reject", "compress"])
def test_the_soft_limit(choice: Any) -> None:
    rules = Prompts(soft_limit=100, over_soft=choice)
    assert over_soft(100, rules) == "allow"
    assert over_soft(101, rules) == choice
    assert str(refuse_soft(101, rules, 2048, "Why.")).endswith("has 101 tokens; this server takes at most 100. "
                                                               "Shorten it. Why.")  # fmt: skip


def test_no_soft_limit() -> None:
    assert over_soft(10**6, Prompts()) == "allow"


def test_a_longer_reply_is_clamped_or_refused() -> None:
    assert check_reply(512, Prompts(max_tokens=512)) == 512
    assert check_reply(4096, Prompts(max_tokens=512)) == 512
    with pytest.raises(Refusal, match=r"4,096.* at most 512") as caught:
        check_reply(4096, Prompts(max_tokens=512, over_max_tokens="refuse"))
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("path", "body", "capped", "said"),
    [
        (CHAT, {"max_tokens": 4096}, {"max_tokens": 512}, "clamped 4096->512"),
        (CHAT, {"max_completion_tokens": 600, "max_tokens": 9}, {"max_completion_tokens": 512, "max_tokens": 9},
         "clamped 600->512"),
        (CHAT, {}, {"max_completion_tokens": 512}, "set to 512"),
        (CHAT, {"max_tokens": 512}, {"max_tokens": 512}, None),
        (CHAT, {"max_tokens": "many"}, {"max_tokens": "many"}, None),
        (COMPLETIONS, {}, {}, None),
        (RESPONSES, {"max_output_tokens": 600}, {"max_output_tokens": 512}, "clamped 600->512"),
        (MESSAGES, {"max_tokens": 600}, {"max_tokens": 512}, "clamped 600->512"),
        ("/tokenize", {"max_tokens": 600}, {"max_tokens": 600}, None),
    ],
)  # fmt: skip
def test_the_cap_by_api(path: str, body: dict[str, Any], capped: dict[str, Any], said: str | None) -> None:
    given = dict(body)
    assert cap_reply(path, body, Prompts(max_tokens=512), 2048) == (capped, said)
    assert body == given


def test_a_cap_over_the_context_length_sets_nothing() -> None:
    assert cap_reply(CHAT, {}, Prompts(max_tokens=4096), 2048) == ({}, None)


def test_which_field_is_read() -> None:
    assert max_tokens_of(CHAT, {"max_tokens": 5, "max_completion_tokens": None}) == ("max_tokens", 5)
    assert max_tokens_of(CHAT, {"max_tokens": True}) is None
    assert max_tokens_of(CHAT, {}) is None
