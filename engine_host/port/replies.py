"""Whole replies of our own routes."""

import msgspec
from aiohttp import web


def json_response(value: object) -> web.Response:
    """`value` as JSON: anything that msgspec encodes."""
    return web.Response(body=msgspec.json.encode(value), content_type="application/json")
