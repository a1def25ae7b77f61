"""The host's API and its OpenAI port, over the host's Unix socket."""

import contextlib
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from typing import Any, TypeVar

import aiohttp
import msgspec

from engine_host.api.contract import ChatChunk, ChatMessage, HostError, HostUnreachable
from engine_host.api.figures import Finding, Telemetry
from engine_host.api.sse import SseParser
from engine_host.api.types import (
    ApplyCommand,
    CancelCommand,
    ChangeRecord,
    CommandReply,
    HistoryPoint,
    KeyLine,
    LogPage,
    PortCommand,
    ProfileChange,
    ProfileLine,
    ProfileText,
    SaveCommand,
    Snapshot,
    StartCommand,
    TierCommand,
    Waterfall,
)

T = TypeVar("T")

ANSWER_TIMEOUT_S = 5.0
"""A host that's alive answers within milliseconds, but importing the engine can hold its loop for seconds."""


class HostClient:
    """`HostApi` over HTTP on a Unix socket. Create it inside a running event loop; `close()` it there."""

    def __init__(self, socket: str) -> None:
        self._socket = socket
        self._session = aiohttp.ClientSession(
            "http://host",
            connector=aiohttp.UnixConnector(socket),
            timeout=aiohttp.ClientTimeout(total=ANSWER_TIMEOUT_S),
            read_bufsize=2**20,
        )

    async def snapshot(self) -> Snapshot:
        """Everything an overview shows, now."""
        return await self._get("/admin/snapshot", Snapshot)

    async def history(self, since: float) -> list[HistoryPoint]:
        """The seconds after this Unix time, oldest first."""
        return await self._get("/admin/history", list[HistoryPoint], since=repr(since))

    async def past(self, since: float, until: float) -> list[HistoryPoint]:
        """The minutes that began in [since, until), from the ledger."""
        return await self._get("/admin/past", list[HistoryPoint], since=repr(since), until=repr(until))

    async def telemetry(self) -> Telemetry:
        """Everything measured, now."""
        return await self._get("/admin/telemetry", Telemetry)

    async def findings(self) -> list[Finding]:
        """What the doctor finds now."""
        return await self._get("/admin/findings", list[Finding])

    async def record(self) -> bytes:
        """What the doctor looks at now, as the file that `engine_host.doctor.record` reads."""
        async with self._request("GET", "/admin/record") as response:
            return await response.read()

    async def log(self, since: int, limit: int) -> LogPage:
        """At most `limit` log records with a sequence number above `since`, oldest first."""
        return await self._get("/admin/log", LogPage, since=str(since), limit=str(limit))

    async def models(self) -> list[str]:
        """Names of the models the host could serve."""
        return await self._get("/admin/models", list[str])

    async def profiles(self) -> list[str]:
        """Names of the profiles the host knows."""
        return await self._get("/admin/profiles", list[str])

    async def profile_lines(self) -> list[ProfileLine]:
        """Every profile, with what is wrong with it."""
        return await self._get("/admin/profiles/lines", list[ProfileLine])

    async def profile_text(self, name: str) -> ProfileText:
        """A profile's source."""
        return await self._get("/admin/profiles/text", ProfileText, name=name)

    async def profile_change(self, name: str) -> ProfileChange:
        """What applying this profile to the running engine would do."""
        return await self._get("/admin/profiles/change", ProfileChange, name=name)

    async def apply_profile(self, command: ApplyCommand) -> CommandReply:
        """Apply a profile; returns when the change is in force (live) or has been begun (rebuild)."""
        return await self._post("/admin/profile", command)

    async def cancel_change(self) -> CommandReply:
        """Give up a change that has not reached the old engine yet."""
        return await self._post("/admin/profile/cancel", None)

    async def changes(self) -> list[ChangeRecord]:
        """The history of changes since the host started, oldest first."""
        return await self._get("/admin/changes", list[ChangeRecord])

    async def save_profile(self, command: SaveCommand) -> CommandReply:
        """Validate and save a user profile."""
        return await self._post("/admin/profiles/save", command)

    async def cancel_requests(self, command: CancelCommand) -> CommandReply:
        """End requests."""
        return await self._post("/admin/requests/cancel", command)

    async def set_tier(self, command: TierCommand) -> CommandReply:
        """Move requests to another tier."""
        return await self._post("/admin/requests/tier", command)

    async def waterfall(self, request_id: str) -> Waterfall:
        """Where a request's time went, also of one that ended a while ago."""
        return await self._get("/admin/requests/waterfall", Waterfall, id=request_id)

    async def keys(self) -> list[KeyLine]:
        """Every key with what it has used up."""
        return await self._get("/admin/keys", list[KeyLine])

    async def start(self, command: StartCommand) -> CommandReply:
        """Start the engine, or start it again after a failure."""
        return await self._post("/admin/start", command)

    async def set_port(self, command: PortCommand) -> CommandReply:
        """Bind the OpenAI port somewhere else."""
        return await self._post("/admin/port", command)

    async def quit(self) -> CommandReply:
        """Shut the host down."""
        return await self._post("/admin/quit", None)

    async def chat(self, model: str, messages: Sequence[ChatMessage]) -> AsyncGenerator[ChatChunk]:
        """Stream a reply of the model through the OpenAI port; closing the generator aborts the request."""
        body = {
            "model": model,
            "messages": messages,
            "stream": True,
            "stream_options": {"include_usage": True},
        }
        parser = SseParser()
        # No timeout: a reply takes as long as it takes, and the user can stop it.
        async with self._request("POST", "/v1/chat/completions", body=body, timeout=None) as response:
            async for data in response.content.iter_any():
                for event in parser.feed(data):
                    if event.data == "[DONE]":
                        return
                    yield _chunk(event.data)
        raise HostError(502, "The reply broke off before its end.")

    async def close(self) -> None:
        """Let go of the connections."""
        await self._session.close()

    async def _get(self, path: str, kind: type[T], **query: str) -> T:
        async with self._request("GET", path, query=query) as response:
            return msgspec.json.decode(await response.read(), type=kind)

    async def _post(self, path: str, command: msgspec.Struct | None) -> CommandReply:
        async with self._request("POST", path, body=command) as response:
            return msgspec.json.decode(await response.read(), type=CommandReply)

    @contextlib.asynccontextmanager
    async def _request(
        self,
        method: str,
        path: str,
        *,
        query: dict[str, str] | None = None,
        body: Any = None,
        timeout: float | None = ANSWER_TIMEOUT_S,
    ) -> AsyncIterator[aiohttp.ClientResponse]:
        """Run one request and turn every way it can fail into our two errors."""
        try:
            async with self._session.request(
                method,
                path,
                params=query or None,
                data=None if body is None else msgspec.json.encode(body),
                headers=None if body is None else {"Content-Type": "application/json"},
                timeout=aiohttp.ClientTimeout(total=timeout),
            ) as response:
                if response.status >= 400:
                    raise _refusal(response, await response.read())
                yield response
        except TimeoutError as error:
            raise HostUnreachable(f"The host hasn't answered for {timeout:.0f} s.", gone=False) from error
        except aiohttp.ClientConnectorError as error:
            gone = isinstance(error.os_error, FileNotFoundError | ConnectionRefusedError)
            raise HostUnreachable(f"No host answers at {self._socket}.", gone=gone) from error
        except (aiohttp.ClientError, OSError) as error:
            raise HostUnreachable("The connection to the host broke off.", gone=False) from error
        except msgspec.MsgspecError as error:
            raise HostError(502, f"The host answered {path} in a way this console doesn't understand.") from error


def _chunk(data: str) -> ChatChunk:
    """Read one chunk of a streamed chat completion; an error inside the stream raises `HostError`."""
    chunk = msgspec.json.decode(data)
    if "error" in chunk:
        status, sentence = _error_of(chunk)
        raise HostError(status, sentence)
    choice = chunk["choices"][0] if chunk.get("choices") else {}
    delta = choice.get("delta") or {}
    usage = chunk.get("usage") or {}
    return ChatChunk(
        text=delta.get("content") or "",
        reasoning=delta.get("reasoning") or delta.get("reasoning_content") or "",
        finish_reason=choice.get("finish_reason"),
        prompt_tokens=usage.get("prompt_tokens"),
        completion_tokens=usage.get("completion_tokens"),
    )


def _refusal(response: aiohttp.ClientResponse, body: bytes) -> HostError:
    try:
        _, sentence = _error_of(msgspec.json.decode(body))
    except (msgspec.MsgspecError, AttributeError, TypeError):
        sentence = body[:500].decode(errors="replace") or f"The host refused with status {response.status}."
    after = response.headers.get("Retry-After", "")
    return HostError(response.status, sentence, float(after) if after.isdecimal() else None)


def _error_of(body: Any) -> tuple[int, str]:
    """The status and the sentence of an OpenAI error body; 500 where the body names no status."""
    error = body.get("error", body)
    if isinstance(error, str):
        return 500, error
    code = error.get("code")
    return code if isinstance(code, int) else 500, str(error.get("message") or "The host gave no reason.")
