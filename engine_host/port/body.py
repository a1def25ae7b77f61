"""Reading request bodies: strict JSON, bounded in size and time."""

import asyncio
from typing import Any

import msgspec
from aiohttp import web

MAX_BODY_BYTES = 32 * 2**20
"""A prompt of 1M tokens is about 5 MB of text and twice that with escapes; images travel inline too."""

BODY_TIMEOUT_S = 30.0
"""A client that has sent its headers must have sent its body by then."""

PRIORITY_FIELD = "priority"
"""Clients don't set their own place in the queue."""


class BadBodyError(Exception):
    """The body can't be served; `status` and the sentence to answer with."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def read_body(request: web.Request) -> bytes:
    """The whole body. Raises `BadBodyError` 413 over `MAX_BODY_BYTES`, 408 when it doesn't come, 400 when it breaks."""
    try:
        async with asyncio.timeout(BODY_TIMEOUT_S):
            return await request.read()
    except web.HTTPRequestEntityTooLarge:
        raise BadBodyError(
            413, f"The request body is larger than the {MAX_BODY_BYTES // 2**20} MiB this server reads."
        ) from None
    except TimeoutError:
        raise BadBodyError(408, f"The request body did not arrive within {BODY_TIMEOUT_S:.0f} s.") from None
    except (web.RequestPayloadError, ValueError) as error:
        raise BadBodyError(400, f"The request body could not be read: {error}") from None


def parse_object(request: web.Request, body: bytes) -> dict[str, Any]:
    """The body as a JSON object, without what clients may not set.

    Raises `BadBodyError` 415 for another media type and 400 for what isn't strict JSON (NaN and Infinity aren't) or
    isn't an object.
    """
    if request.content_type != "application/json":
        raise BadBodyError(
            415, f"Unsupported media type {request.content_type!r}: send the body as 'application/json'."
        )
    try:
        value = msgspec.json.decode(body)
    except (msgspec.DecodeError, RecursionError) as error:
        raise BadBodyError(400, f"The request body is not valid JSON: {error}.") from None
    if not isinstance(value, dict):
        raise BadBodyError(400, f"The request body must be a JSON object, not {_json_type(value)}.")
    value.pop(PRIORITY_FIELD, None)
    return value


def _json_type(value: object) -> str:
    names = {list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
