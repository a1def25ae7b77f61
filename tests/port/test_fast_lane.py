"""The fast lane's bytes are those of vLLM's own lane."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec
import pydantic
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_host.engine.stub import Delta

CHAT = {"messages": [{"role": "user", "content": "hi"}], "stream": True}
COMPLETION = {"prompt": "hi", "stream": True}
PATHS = {"/v1/chat/completions": CHAT, "/v1/completions": COMPLETION}
HEADERS = {"X-Request-Id": "fixed"}

TEXTS: dict[str, list[Delta]] = {
    "words": [Delta(" one"), Delta(" two"), Delta(" three", finish_reason="length")],
    "emoji": [Delta("🧑‍🚀"), Delta("🇨🇭"), Delta(" ไทย"), Delta("�", finish_reason="stop")],
    "quotes": [Delta('say "'), Delta('\\"hi\\"'), Delta("</script>"), Delta("'", finish_reason="stop")],
    "controls": [Delta("\x00\x01\x1f"), Delta("\t\n\r\b\f"), Delta("\x7f\x80\u2028\u2029"), Delta("", 1, "stop")],
    "empty deltas": [Delta("", 1), Delta(""), Delta("a"), Delta("", 1), Delta("b"), Delta("", 0, "stop")],
    "first delta without a token": [Delta("", 0), Delta("a"), Delta("b"), Delta("c", finish_reason="length")],
    "several tokens a delta": [Delta("abc", 3), Delta("def", 3), Delta("", 2), Delta("g", 1, "length")],
    "stop string": [Delta("a"), Delta("b"), Delta("c", finish_reason="stop", stop_reason="END")],
    "stop token": [Delta("a"), Delta("b"), Delta("c", finish_reason="stop", stop_reason=2)],
    "one token": [Delta("only", finish_reason="stop")],
    "no token": [Delta("", 0, "stop")],
    "abort": [Delta("a"), Delta("b"), Delta("", 0, "abort")],
}


class Collected:
    """An outlet that keeps the chunks apart."""

    full = False

    def __init__(self) -> None:
        self.chunks: list[bytes] = []

    def put(self, chunk: bytes) -> None:
        self.chunks.append(chunk)

    async def drain(self) -> None:
        raise AssertionError("it is never full")


@pytest.fixture(scope="module")
async def plain_serving(stub_engine: Any, serve_args: Any) -> Any:
    """The same serving classes without the fast lane."""
    from engine_host.engine import fast_lane
    from engine_host.engine.serving import build_serving

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_lane, "install", lambda chat, completion: None)
        return await build_serving(stub_engine, serve_args)


async def stream(serving: Any, path: str, body: dict[str, Any]) -> list[bytes]:
    reply = await serving.call(path, body, HEADERS)
    outlet = Collected()
    await reply.deliver(outlet)
    await reply.aclose()
    return [re.sub(rb'"created":\d+', b'"created":0', chunk) for chunk in outlet.chunks]


async def both(
    engine: Any, fast: Any, plain: Any, path: str, deltas: Sequence[Any], **body: Any
) -> tuple[list[bytes], list[bytes]]:
    engine.script = lambda prompt, params: list(deltas)
    request = {**PATHS[path], **body}
    return await stream(fast, path, request), await stream(plain, path, request)


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize("usage", [{}, {"stream_options": {"include_usage": True}}, {"stream_options": {}}])
@pytest.mark.parametrize("name", TEXTS)
async def test_chunks_are_those_of_vllm(
    stub_engine: Any, stub_serving: Any, plain_serving: Any, path: str, usage: dict[str, Any], name: str
) -> None:
    ours, theirs = await both(stub_engine, stub_serving, plain_serving, path, TEXTS[name], **usage)
    assert ours == theirs


@pytest.mark.parametrize("path", PATHS)
@settings(max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(texts=st.lists(st.text(st.characters(exclude_categories=["Cs"]), max_size=12), min_size=1, max_size=8))
async def test_any_text(stub_engine: Any, stub_serving: Any, plain_serving: Any, path: str, texts: list[str]) -> None:
    deltas = [Delta(text) for text in texts[:-1]] + [Delta(texts[-1], finish_reason="stop")]
    ours, theirs = await both(stub_engine, stub_serving, plain_serving, path, deltas)
    assert ours == theirs


UNUSUAL = {
    "/v1/chat/completions": [
        {"n": 2},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
        {"echo": True},
    ],
    "/v1/completions": [
        {"n": 2},
        {"stream_options": {"include_usage": True, "continuous_usage_stats": True}},
        {"return_token_ids": True},
        {"echo": True},
        {"prompt": ["a", "b"]},
    ],
}


@pytest.mark.parametrize(("path", "body"), [(path, body) for path, bodies in UNUSUAL.items() for body in bodies])
async def test_unusual_streams_keep_vllms_lane(
    stub_engine: Any, stub_serving: Any, plain_serving: Any, path: str, body: dict[str, Any]
) -> None:
    ours, theirs = await both(stub_engine, stub_serving, plain_serving, path, TEXTS["words"], **body)
    # Two prompts in one request may overtake each other.
    assert sorted(ours) == sorted(theirs)


@pytest.mark.parametrize("path", PATHS)
async def test_only_the_text_varies_between_plain_chunks(stub_engine: Any, plain_serving: Any, path: str) -> None:
    """What the lane rests on: if vLLM adds a field that changes from token to token, this fails."""
    stub_engine.script = lambda prompt, params: [Delta(f"<{n}>", 1 + n % 3) for n in range(20)] + [Delta("", 0, "stop")]
    chunks = await stream(plain_serving, path, PATHS[path])
    middle = [chunk for chunk in chunks if re.search(rb'"<\d+>"', chunk)]
    assert len(middle) == 20
    assert len({re.sub(rb'"<\d+>"', b"TEXT", chunk) for chunk in middle}) == 1


@pytest.mark.parametrize("path", PATHS)
async def test_plain_tokens_are_not_rendered_one_by_one(
    stub_engine: Any, stub_serving: Any, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered = []
    dump = pydantic.BaseModel.model_dump_json

    def counted(self: pydantic.BaseModel, **options: Any) -> str:
        rendered.append(self)
        return dump(self, **options)

    monkeypatch.setattr(pydantic.BaseModel, "model_dump_json", counted)
    stub_engine.script = lambda prompt, params: [Delta("x")] * 100 + [Delta("", 0, "stop")]
    chunks = await stream(stub_serving, path, PATHS[path])
    assert sum(b'"x"' in chunk for chunk in chunks) == 100
    assert len(rendered) <= 3  # The role, the template, the end.


@pytest.mark.parametrize("path", PATHS)
async def test_an_error_in_the_middle_ends_the_stream_as_vllm_ends_it(
    stub_engine: Any, stub_serving: Any, plain_serving: Any, path: str
) -> None:
    deltas = [Delta("a"), Delta("b"), Delta("c"), ValueError("the middle broke")]
    ours, theirs = await both(stub_engine, stub_serving, plain_serving, path, deltas)
    assert ours == theirs
    assert b"the middle broke" in ours[-2]


def test_json_strings_are_escaped_as_pydantic_escapes_them() -> None:
    class Text(pydantic.BaseModel):
        t: str

    characters = [chr(c) for c in range(0x110000) if not 0xD800 <= c < 0xE000]
    for start in range(0, len(characters), 4096):
        text = "".join(characters[start : start + 4096])
        assert b'{"t":' + msgspec.json.encode(text) + b"}" == Text(t=text).model_dump_json().encode()
