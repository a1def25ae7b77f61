"""Reading request bodies: strict JSON, bounded in size, time, depth and number of values."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

from profiles.gateway import Clients

PRIORITY_FIELD = "priority"
"""Clients don't set their own place in the queue."""

THREAD_FROM_BYTES = 256 * 2**10
"""Bodies from this size are decoded beside the event loop: below it the way there and back costs more."""

_ONE_KIND = bytes.maketrans(b"{}", b"[]")
_SPACE = b" \t\r\n"
_NOT_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


class BadBodyError(Exception):
    """The body can't be served; `status` and the sentence to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: web.Request, limits: Clients) -> bytes:
    """The whole body.

    Raises `BadBodyError` 413 over `max_body` bytes (of what a compressed body unpacks to), 408 when it hasn't come
    within `body_s` seconds, 400 when it breaks.
    """
    whole = bytearray()
    try:
        if (request.content_length or 0) > limits.max_body:
            raise _too_large(limits)
        if not request.body_exists:
            return b""
        async with asyncio.timeout(limits.body_s):
            async for chunk in request.content.iter_any():
                whole += chunk
                if len(whole) > limits.max_body:
                    raise _too_large(limits)
    except TimeoutError:
        raise BadBodyError(408, f"The request body did not arrive within {limits.body_s:g} s.") from None
    except (web.RequestPayloadError, ValueError) as error:
        raise BadBodyError(400, f"The request body could not be read: {error}") from None
    return bytes(whole)


async def parse_object(request: web.Request, body: bytes, limits: Clients) -> dict[str, Any]:
    """The body as a JSON object, without what clients may not set.

    Raises `BadBodyError` 415 for another media type and 400 for what isn't strict JSON (NaN and Infinity aren't), isn't
    an object, or is deeper or larger than `limits` allow. The limits are held against the bytes: what is over them is
    never built in memory.
    """
    if request.content_type != "application/json":
        raise BadBodyError(
            415, f"Unsupported media type {request.content_type!r}: send the body as 'application/json'."
        )
    if len(body) < THREAD_FROM_BYTES:
        value = decode(body, limits)
    else:
        value = await asyncio.to_thread(decode, body, limits)
    if not isinstance(value, dict):
        raise BadBodyError(400, f"The request body must be a JSON object, not {_json_type(value)}.")
    value.pop(PRIORITY_FIELD, None)
    return value


def decode(body: bytes, limits: Clients) -> Any:
    """Decode JSON within `limits.max_depth` and `limits.max_items`. Raises `BadBodyError` 400."""
    _check_shape(body, limits)
    try:
        return msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(400, f"The request body is not valid JSON: {error}.") from None


def _check_shape(body: bytes, limits: Clients) -> None:
    # Bounds that count what is in strings too, and hold for nearly every body. A value takes two bytes: its own, and
    # the separator or bracket before it.
    opened = body.count(b"{") + body.count(b"[")
    may_be_deep = opened > limits.max_depth
    may_be_many = len(body) > 2 * limits.max_items and opened + body.count(b",") >= limits.max_items
    if not may_be_deep and not may_be_many:
        return
    strings = body.replace(b"\\\\", b"").replace(b'\\"', b"").split(b'"')
    outside = b'"'.join(strings[::2]).translate(None, _SPACE)
    # Every value but the first follows a comma, or is the first in its array or object.
    firsts = outside.count(b"{") + outside.count(b"[") - outside.count(b"{}") - outside.count(b"[]")
    items = 1 + outside.count(b",") + firsts
    if items > limits.max_items:
        raise BadBodyError(
            400,
            f"The request body holds {items:,} JSON values; this server reads at most {limits.max_items:,} "
            "(max_items in [gateway.clients]).",
        )
    if _deeper(outside.translate(_ONE_KIND, _NOT_BRACKETS), limits.max_depth):
        raise BadBodyError(
            400,
            f"The request body is nested more than {limits.max_depth} levels deep, the most this server reads "
            "(max_depth in [gateway.clients]).",
        )


def _deeper(brackets: bytes, levels: int) -> bool:
    """Whether balanced brackets of one kind are nested deeper; what isn't balanced is left to the decoder."""
    for _ in range(levels):
        inner = brackets.replace(b"[]", b"")
        if len(inner) == len(brackets):
            return False
        brackets = inner
    return b"[]" in brackets


def _too_large(limits: Clients) -> BadBodyError:
    return BadBodyError(
        413, f"The request body is larger than the {limits.max_body / 2**20:.4g} MiB this server reads."
    )


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
