"""What a screen may ask of a host: the protocol that the client and the tests' stub both fulfil.

Free of aiohttp, so that a screen can import it before its first paint.
"""

from collections.abc import AsyncGenerator, Sequence
from typing import Protocol

import msgspec

from engine_host.api.figures import Finding, Telemetry
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


class ChatMessage(msgspec.Struct, frozen=True):
    """One message of a chat request; `role` is system, user or assistant."""

    role: str
    content: str


class ChatChunk(msgspec.Struct, frozen=True):
    """One event of a streamed reply: any of new text, why it ended, and the token counts of the whole request."""

    text: str = ""
    reasoning: str = ""
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None


class HostUnreachable(Exception):
    """Nobody answers at the host's socket; `str()` is a sentence. `gone` tells that nothing listens there."""

    def __init__(self, sentence: str, *, gone: bool) -> None:
        super().__init__(sentence)
        self.gone = gone


class HostError(Exception):
    """The host refused a request; `str()` is the host's sentence.

    `status` is the HTTP status, `retry_after` the seconds to wait before another try where the host said so.
    """

    def __init__(self, status: int, sentence: str, retry_after: float | None = None) -> None:
        super().__init__(sentence)
        self.status = status
        self.retry_after = retry_after


class HostApi(Protocol):
    """The host as a screen sees it. Every method raises `HostUnreachable` or `HostError`."""

    async def snapshot(self) -> Snapshot:
        """Everything an overview shows, now."""
        ...

    async def history(self, since: float) -> list[HistoryPoint]:
        """The seconds after this Unix time, oldest first."""
        ...

    async def past(self, since: float, until: float) -> list[HistoryPoint]:
        """The minutes that began in [since, until) (Unix times), oldest first, from the ledger; [] without one."""
        ...

    async def telemetry(self) -> Telemetry:
        """Latencies by group, steps, roofline, bill, costs and devices, now."""
        ...

    async def findings(self) -> list[Finding]:
        """What the doctor finds now, the gravest first."""
        ...

    async def log(self, since: int, limit: int) -> LogPage:
        """At most `limit` log records with a sequence number above `since`, oldest first."""
        ...

    async def models(self) -> list[str]:
        """Names of the models the host could serve."""
        ...

    async def profiles(self) -> list[str]:
        """Names of the profiles the host knows."""
        ...

    async def profile_lines(self) -> list[ProfileLine]:
        """Every profile, with what is wrong with it."""
        ...

    async def profile_text(self, name: str) -> ProfileText:
        """A profile's source."""
        ...

    async def profile_change(self, name: str) -> ProfileChange:
        """What applying this profile to the running engine would do."""
        ...

    async def apply_profile(self, command: ApplyCommand) -> CommandReply:
        """Apply a profile; returns when the change is in force (live) or has been begun (rebuild)."""
        ...

    async def cancel_change(self) -> CommandReply:
        """Give up a change that has not reached the old engine yet."""
        ...

    async def changes(self) -> list[ChangeRecord]:
        """The history of changes since the host started, oldest first."""
        ...

    async def save_profile(self, command: SaveCommand) -> CommandReply:
        """Validate and save a user profile."""
        ...

    async def cancel_requests(self, command: CancelCommand) -> CommandReply:
        """End requests."""
        ...

    async def set_tier(self, command: TierCommand) -> CommandReply:
        """Move requests to another tier."""
        ...

    async def waterfall(self, request_id: str) -> Waterfall:
        """Where a request's time went, also of one that ended a while ago."""
        ...

    async def keys(self) -> list[KeyLine]:
        """Every key with what it has used up."""
        ...

    async def start(self, command: StartCommand) -> CommandReply:
        """Start the engine, or start it again after a failure."""
        ...

    async def set_port(self, command: PortCommand) -> CommandReply:
        """Bind the OpenAI port somewhere else."""
        ...

    async def quit(self) -> CommandReply:
        """Shut the host down."""
        ...

    def chat(self, model: str, messages: Sequence[ChatMessage]) -> AsyncGenerator[ChatChunk]:
        """Stream a reply of the model through the OpenAI port; closing the generator aborts the request."""
        ...

    async def close(self) -> None:
        """Let go of the connections."""
        ...
