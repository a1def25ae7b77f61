"""What is read of a request's body, and what is refused before it is built in memory."""

import asyncio
import json
import zlib
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import pytest
from aiohttp import web
from hypothesis import given
from hypothesis import strategies as st

from engine_host.port.body import THREAD_FROM_BYTES, BadBodyError, decode, parse_object, read_body
from profiles.gateway import Clients

JSON = {"Content-Type": "application/json"}
SMALL = Clients(max_body=2048, body_s=0.01)


@pytest.fixture
async def url() -> AsyncIterator[str]:
    """An application that answers with the body it has read, or with why it has not."""

    async def echo(request: web.Request) -> web.Response:
        try:
            return web.json_response(await parse_object(request, await read_body(request, SMALL), SMALL))
        except BadBodyError as error:
            return web.Response(status=error.status, text=str(error))

    app = web.Application()
    app.router.add_post("/", echo)
    runner = web.AppRunner(app, lingering_time=0)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    yield f"http://127.0.0.1:{runner.addresses[0][1]}"
    await runner.cleanup()


async def _post(url: str, body: Any, headers: dict[str, str] = JSON) -> tuple[int, str]:
    async with aiohttp.ClientSession() as client, client.post(url, data=body, headers=headers) as response:
        return response.status, await response.text()


async def test_an_object_is_read_without_the_priority(url: str) -> None:
    status, text = await _post(url, b'{"prompt": "hi", "priority": -5}')
    assert (status, json.loads(text)) == (200, {"prompt": "hi"})


async def test_a_body_over_the_limit_is_refused_by_its_stated_length(url: str) -> None:
    status, text = await _post(url, b" " * 2049)
    assert status == 413
    assert "0.001953 MiB" in text


async def test_a_body_over_the_limit_is_refused_while_it_arrives(url: str) -> None:
    async def endless() -> AsyncIterator[bytes]:
        while True:
            yield b" " * 1024

    async with aiohttp.ClientSession() as client:
        try:
            async with client.post(url, data=endless(), headers=JSON) as response:
                assert response.status == 413
        except aiohttp.ClientOSError:
            # The server has hung up on what was still being sent.
            pass


async def test_a_compressed_body_is_held_to_what_it_unpacks_to(url: str) -> None:
    status, _ = await _post(url, zlib.compress(b" " * 100_000), JSON | {"Content-Encoding": "deflate"})
    assert status == 413


async def test_a_body_that_never_comes(url: str) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", int(url.rpartition(":")[2]))
    writer.write(b"POST / HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 100\r\n\r\n{")
    head = await reader.readline()
    writer.close()
    assert head.startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(("body", "said"), [(b"{", "not valid JSON"), (b"[1]", "not an array")])
async def test_what_is_no_object(url: str, body: bytes, said: str) -> None:
    status, text = await _post(url, body)
    assert status == 400
    assert said in text


class _Request:
    content_type = "application/json"


async def test_a_large_body_is_decoded_off_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    moved = []

    async def to_thread(function: Any, *args: Any) -> Any:
        moved.append(function)
        return function(*args)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    request: Any = _Request()
    for text in ("a", "a" * THREAD_FROM_BYTES):
        assert await parse_object(request, json.dumps({"p": text}).encode(), Clients()) == {"p": text}
    assert moved == [decode]


def _nested(levels: int) -> bytes:
    return b'{"a":' * (levels - 1) + b"{}" + b"}" * (levels - 1)


def test_nesting() -> None:
    limits = Clients(max_depth=5)
    assert decode(_nested(5), limits)
    with pytest.raises(BadBodyError, match="more than 5 levels deep"):
        decode(_nested(6), limits)
    brackets_in_text = {"a": "[[[[[[" * 100 + '\\"', "b": [[], [], {}]}
    assert decode(json.dumps(brackets_in_text).encode(), limits) == brackets_in_text


@pytest.mark.parametrize(("opened", "closed"), [(b"[", b""), (b"[", b"]"), (b"[{", b""), (b'{"a":', b"")])
def test_nesting_that_would_overflow_a_stack(opened: bytes, closed: bytes) -> None:
    body = opened * 100_000 + closed * 100_000
    for limits in (Clients(), Clients(max_depth=500)):
        with pytest.raises(BadBodyError) as caught:
            decode(body, limits)
        assert caught.value.status == 400


@pytest.mark.parametrize("item", ["1", "{}", "[ ]", '""', '"a,b,c"', '{"a": 1}'])
def test_many_values(item: str) -> None:
    limits = Clients(max_items=200)
    each = 2 if ":" in item else 1
    most = (limits.max_items - 1) // each
    assert len(decode(f"[{','.join([item] * most)}]".encode(), limits)) == most
    with pytest.raises(BadBodyError, match="at most 200"):
        decode(f"[{','.join([item] * (most + each))}]".encode(), limits)


def _size(value: Any) -> tuple[int, int]:
    """Depth and number of values, counted in the plain recursive way."""
    if not isinstance(value, dict | list):
        return 0, 1
    inner = [_size(each) for each in (value.values() if isinstance(value, dict) else value)]
    return 1 + max((depth for depth, _ in inner), default=0), 1 + sum(items for _, items in inner)


_VALUES = st.recursive(
    st.none() | st.integers() | st.text('a,"\\[]{}: é\n', max_size=12),
    lambda inner: st.lists(inner, max_size=12) | st.dictionaries(st.text('k,"\\[{', max_size=4), inner, max_size=6),
    max_leaves=150,
)


@given(_VALUES, st.sampled_from([None, 1]), st.integers(4, 7))
def test_the_limits_hold_exactly(value: Any, indent: int | None, max_depth: int) -> None:
    body = json.dumps(value, indent=indent).encode()
    depth, items = _size(value)
    limits = Clients(max_depth=max_depth, max_items=100)
    if depth > max_depth or items > 100:
        with pytest.raises(BadBodyError):
            decode(body, limits)
    else:
        assert decode(body, limits) == value
