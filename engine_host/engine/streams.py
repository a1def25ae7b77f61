"""Streams of vLLM's serving classes as replies of the port: opened before the status is sent, aborted when left."""

import json
import logging
from collections.abc import AsyncGenerator, AsyncIterator
from typing import Any

from vllm.entrypoints.serve.engine.protocol import ErrorInfo, ErrorResponse
from vllm.entrypoints.serve.exception_handling.error_response import create_error_response
from vllm.exceptions import RetryableRequestError
from vllm.v1.engine.exceptions import EngineDeadError

from engine_host.engine.fast_lane import SplicedStream
from engine_host.engine.refused import RefusedError
from engine_host.port.backend import Outlet
from engine_host.port.sse import error_in

log = logging.getLogger(__name__)


class RequestFailedError(Exception):
    """vLLM has refused or failed a request; `response` says how."""

    def __init__(self, response: Any) -> None:
        super().__init__(response.error.message)
        self.response = response


def error_response(error: Exception) -> Any:
    """vLLM's `ErrorResponse` for what a serving method or its stream has raised."""
    if isinstance(error, RequestFailedError):
        return error.response
    if isinstance(error, RefusedError):
        refusal = error.refusal
        info = ErrorInfo(message=str(refusal), type=refusal.kind, param=refusal.param, code=refusal.status)
        return ErrorResponse(error=info)
    if isinstance(error, EngineDeadError):
        error = RetryableRequestError(
            "The engine stopped while it worked on this request. It is being started again: send the request again."
        )
    return create_error_response(error)


def generation_error_event(error: Exception) -> str:
    """The data of the event that tells of an error in the middle of a stream."""
    return str(error_response(error).model_dump_json())


def raise_generation_error(error: Exception) -> None:
    """Let a failure of the engine out of a stream of the Responses API: its own event for it can't be built."""
    raise RequestFailedError(error_response(error))


async def opened(stream: AsyncIterator[str], preamble: tuple[str, ...] = ()) -> list[str]:
    """Read the beginning of a stream: up to the first chunk that the engine had a part in.

    Chunks that begin with one of `preamble` are sent by vLLM before it asks the engine. Raises `RequestFailedError`
    where the stream begins with an error, and whatever the stream raises.
    """
    chunks: list[str] = []
    async for chunk in stream:
        raise_if_error(chunk)
        chunks.append(chunk)
        if not chunk.startswith(preamble or ("\0",)):
            break
    return chunks


def raise_if_error(chunk: str) -> None:
    """Raise `RequestFailedError` if this first chunk of a stream is an error."""
    reply = error_in(chunk.encode()) if chunk.startswith("data: {") else None
    if reply is None:
        return
    info = ErrorInfo(**json.loads(reply.body)["error"])
    if info.message == str(EngineDeadError()):
        raise EngineDeadError
    raise RequestFailedError(ErrorResponse(error=info))


async def checked_first(stream: AsyncGenerator[str, None]) -> AsyncGenerator[str, None]:
    """The same stream; raises `RequestFailedError` instead of yielding an error as its first chunk."""
    first = True
    async for chunk in stream:
        if first:
            raise_if_error(chunk)
            first = False
        yield chunk


class ServedStream:
    """An opened stream, ready to be delivered.

    `chunks` is what is left after `opening`; `source` is what the serving method returned, which `chunks` reads.
    """

    def __init__(self, opening: list[str], chunks: Any, source: Any) -> None:
        self._opening = opening
        self._chunks = chunks
        self._source = source

    async def deliver(self, outlet: Outlet) -> None:
        """See `engine_host.port.backend.StreamReply`."""
        if isinstance(self._chunks, SplicedStream):
            self._chunks.outlet = outlet
        count = len(self._opening)
        for chunk in self._opening:
            outlet.put(chunk.encode())
        try:
            async for chunk in self._chunks:
                count += 1
                outlet.put(chunk.encode())
                if outlet.full:
                    await outlet.drain()
        except Exception as error:
            log.exception("a stream broke off after %d chunks", count)
            outlet.put(_broken_off(error, count).encode())

    async def aclose(self) -> None:
        """See `engine_host.port.backend.StreamReply`."""
        await self._chunks.aclose()
        if self._source is not self._chunks:
            await self._source.aclose()


def _broken_off(error: Exception, sequence_number: int) -> str:
    """The event that ends a stream of the Responses API; the other APIs' generators make their own."""
    info = error_response(error).error
    event = {
        "type": "error",
        "code": info.type,
        "message": info.message,
        "param": info.param,
        "sequence_number": sequence_number,
    }
    return f"event: error\ndata: {json.dumps(event)}\n\n"
