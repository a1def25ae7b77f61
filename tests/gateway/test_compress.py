"""Shortening prompts: what is kept whole, what goes first, and that the target is met where it can be."""

import asyncio
import json
import re
import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.gateway.compress import MARK, Compressed, compress
from engine_host.gateway.prompts import texts_of
from engine_host.gateway.sentences import least_telling_first

CODE = "```python\nprint('one. two. three.')\n\n# four.\n```\n"
TOPICS = [
    "The cache keeps blocks.",
    "Blocks are shared by hash.",
    "A hash names a block of the cache.",
    "Lunch was good.",
]
PROSE = " ".join(f"{TOPICS[n % 4]} Point {n} says more of blocks." for n in range(40))


def tokens(body: Any) -> int:
    """A count as a tokenizer's: words and marks, and four for each message."""
    return sum(len(re.findall(r"\w+|[^\w\s]", text)) for text in texts_of(body)) + 4 * len(body.get("messages", []))


async def count(body: Any) -> int:
    return tokens(body)


def shortened(body: dict[str, Any], target: int) -> Compressed | None:
    return asyncio.run(compress(body, tokens(body), target, count))


def turn(role: str, content: Any, **more: Any) -> dict[str, Any]:
    return {"role": role, "content": content, **more}


CALL = {"id": "c1", "type": "function", "function": {"name": "find", "arguments": json.dumps({"text": PROSE})}}
CHAT = {
    "model": "m",
    "temperature": 0.5,
    "messages": [
        turn("system", PROSE),
        turn("user", PROSE + "\n\n" + CODE + "\nAnd so on. " + PROSE),
        turn("assistant", None, tool_calls=[CALL]),
        turn("tool", PROSE, tool_call_id="c1"),
        turn("tool", json.dumps([PROSE]), tool_call_id="c2"),
        turn("assistant", PROSE, name="a"),
        turn("user", [{"type": "text", "text": PROSE}, {"type": "image_url", "image_url": {"url": "data:,x"}}]),
    ],
}


def test_what_is_kept_whole() -> None:
    given_as = json.dumps(CHAT)
    result = shortened(CHAT, 1)
    assert result is not None
    assert json.dumps(CHAT) == given_as
    before, after = CHAT["messages"], result.body["messages"]
    assert isinstance(before, list)
    for n in (0, 2, 4, 6):
        assert after[n] == before[n]
    for n in (1, 3, 5):
        assert after[n] | {"content": ""} == before[n] | {"content": ""}
    assert after[1]["content"] == f"{MARK}\n\n{CODE}\n{MARK}"
    assert after[3]["content"] == after[5]["content"] == MARK
    assert {key: value for key, value in result.body.items() if key != "messages"} == {"model": "m", "temperature": 0.5}
    assert result.after == tokens(result.body)
    assert result.after > 1


def test_the_target_is_met_closely() -> None:
    for target in (2300, 2600, 3000):
        result = shortened(CHAT, target)
        assert result is not None
        assert result.after == pytest.approx(target, rel=0.1)
        assert result.after <= target
        assert result.header == f"compressed {tokens(CHAT)}->{result.after}"


def test_what_has_least_in_common_with_the_rest_goes_first() -> None:
    off_topic = {3: "Lunch was good today.", 8: "My aunt likes purple umbrellas.", 11: "Rain fell over Lisbon."}
    sentences = [
        "The cache keeps every block that a request has filled.",
        "A filled block gets a hash of its tokens.",
        "When another request has the same tokens, the cache finds the block by its hash.",
        "",
        "A block found by its hash is shared, not filled again.",
        "The request then counts as one more reader of the shared block.",
        "A block without readers stays in the cache until room is needed.",
        "Room is needed when a request asks for a block and none is free.",
        "",
        "Then the block that was read longest ago leaves the cache.",
        "Its hash is forgotten, and its tokens have to be filled again by the next request.",
        "",
    ]
    sentences = [off_topic.get(n, each) for n, each in enumerate(sentences)]
    assert set(least_telling_first(sentences)[:3]) == set(off_topic)


def test_what_is_said_again_goes_before_all_else() -> None:
    assert least_telling_first(["Blocks have hashes.", "Lunch.", "Blocks have hashes. "])[0] == 2


def test_old_and_long_texts_lose_more() -> None:
    body = {
        "messages": [turn("user", PROSE), turn("assistant", PROSE), turn("assistant", PROSE[:300]), turn("user", "?")]
    }
    result = shortened(body, tokens(body) * 2 // 3)
    assert result is not None
    oldest, newer, short, _ = (len(each["content"]) for each in result.body["messages"])
    assert oldest < newer < len(PROSE)
    assert short == 300


@pytest.mark.parametrize(
    "body",
    [
        {"messages": [turn("user", PROSE)]},
        {"messages": [turn("system", PROSE), turn("user", "Why?")]},
        {"messages": [turn("user", CODE * 20), turn("user", "Why?")]},
        {"messages": [turn("user", "Why?"), turn("assistant", PROSE)]},
        {"input": PROSE},
        {"prompt": PROSE},
        {"prompt": [1, 2, 3]},
    ],
)
def test_nothing_can_be_left_out(body: dict[str, Any]) -> None:
    assert shortened(body, 5) is None


def test_the_last_paragraph_of_a_prompt_stays() -> None:
    question = "What does it say of lunch? Answer in a word."
    result = shortened({"prompt": [f"{PROSE}\n\n{question}\n", "Short."]}, 200)
    assert result is not None
    first, second = result.body["prompt"]
    assert first.endswith(f"\n\n{question}\n")
    assert result.after <= 200
    assert second == "Short."


def test_messages_of_anthropic_and_responses() -> None:
    results = turn("user", [{"type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": PROSE}]}])
    body = {"system": PROSE, "messages": [turn("user", PROSE), turn("assistant", PROSE), turn("user", PROSE), results]}
    result = shortened(body, 1)
    assert result is not None
    assert result.body["system"] == PROSE
    assert [each["content"] == PROSE for each in result.body["messages"][:3]] == [False, False, True]
    assert result.body["messages"][3]["content"][0] == {
        "type": "tool_result", "tool_use_id": "x", "content": [{"type": "text", "text": MARK}],
    }  # fmt: skip

    output = {"type": "function_call_output", "call_id": "x", "output": PROSE}
    result = shortened({"input": [turn("user", "Why?"), output]}, 1)
    assert result is not None
    assert result.body["input"] == [turn("user", "Why?"), output | {"output": MARK}]


SCRIPTS = {
    "Chinese": "缓存保存数据块。数据块按哈希共享。哈希是缓存里数据块的名字。今天午饭很好吃。",
    "Thai": "แคชเก็บบล็อก บล็อกใช้ร่วมกันตามแฮช\nแฮชเป็นชื่อของบล็อกในแคช\nอาหารกลางวันอร่อย\n",
    "Russian": "Кэш хранит блоки. Блоки делятся по хешу. Хеш — имя блока в кэше. Обед был хорош. ",
    "no full stops": "blocks and hashes " * 8,
    "no spaces": "YmxvY2tzIGFuZCBoYXNoZXM" * 20,
}


@pytest.mark.parametrize("name", SCRIPTS)
def test_any_script(name: str) -> None:
    async def characters(body: Any) -> int:
        return sum(map(len, texts_of(body)))

    text = SCRIPTS[name] * 20
    body = {"messages": [turn("user", text), turn("user", "?")]}
    result = asyncio.run(compress(body, len(text) + 1, len(text) // 2, characters))
    assert result is not None
    assert MARK in result.body["messages"][0]["content"]
    assert len(text) // 4 < result.after <= len(text) // 2


def test_the_same_in_every_process() -> None:
    program = (
        "from engine_host.gateway.sentences import least_telling_first as rank\n"
        f"print(rank({[each + str(n % 7) for n, each in enumerate(TOPICS * 8)]!r}))"
    )
    orders = {
        subprocess.run(
            [sys.executable, "-c", program], env={"PYTHONHASHSEED": seed}, check=True, capture_output=True
        ).stdout
        for seed in ("1", "2")
    }
    assert len(orders) == 1


def test_ranking_knows_every_sentence_once() -> None:
    for sentences in ([], ["a"], ["", "!"], ["a b", "c d"], ["same."] * 70, [str(n) for n in range(70)]):
        assert sorted(least_telling_first(sentences)) == list(range(len(sentences)))


_PIECE = st.sampled_from(["One thing. ", "And another! ", "数据块。", "\n\n", "x" * 50 + " ", CODE,
                          "```\nnever closed. ", "[…] ", "no stop ", "~~~\na\n~~~\n", '{"a": 1}'])  # fmt: skip
_CONTENT = st.lists(_PIECE, max_size=25).map("".join)
_BODY = st.lists(st.tuples(st.sampled_from(["system", "user", "assistant", "tool"]), _CONTENT), min_size=1, max_size=6)


@settings(max_examples=60)
@given(_BODY, st.floats(0.1, 1.2))
def test_the_rules_hold_for_any_conversation(turns: list[tuple[str, str]], share: float) -> None:
    body = {"messages": [turn(role, content) for role, content in turns]}
    target = int(tokens(body) * share)
    result = shortened(body, target)
    if result is None:
        return
    assert tokens(result.body) == result.after < tokens(body)
    least = shortened(body, 0)
    assert least is not None
    assert result.after <= target or result.after == least.after
    last = max((n for n, (role, content) in enumerate(turns) if role == "user" and content), default=-1)
    for n, ((role, content), after) in enumerate(zip(turns, result.body["messages"], strict=True)):
        assert after["role"] == role
        if role == "system" or n == last:
            assert after["content"] == content
        if after["content"] != content:
            assert len(after["content"]) < len(content)
            assert after["content"].count(CODE) == content.count(CODE) or "never" in content
            position = 0
            for kept in after["content"].split(MARK):
                position = content.index(kept.strip(), position) + len(kept.strip())
