"""What the port needs from the host, and what it gets back from vLLM's serving classes.

Nothing here imports vLLM: the port is bound and answers before vLLM is there.
"""

from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Protocol

from engine_host.api.types import EngineState
from engine_host.gateway.prompts import TemplateCost
from profiles.schema import Profile

if TYPE_CHECKING:
    from engine_host.gateway.sessions import SessionBook
    from engine_host.port.stream import OpenStreams

Message = MutableMapping[str, Any]
AsgiApp = Callable[
    [Message, Callable[[], Awaitable[Message]], Callable[[Message], Awaitable[None]]],
    Awaitable[None],
]


class Outlet(Protocol):
    """Where a stream puts its chunks. What was put is written when the stream next waits for something."""

    @property
    def full(self) -> bool:
        """Whether the client reads more slowly than the stream produces: `drain` before going on."""

    def put(self, chunk: bytes) -> None:
        """Add one finished piece of the body."""

    async def drain(self) -> None:
        """Wait until the client has taken most of what was put."""


@dataclass(frozen=True)
class JsonReply:
    """A whole reply: the JSON `body` and its true HTTP status."""

    status: int
    body: bytes
    headers: Mapping[str, str] = field(default_factory=dict)


class StreamReply(Protocol):
    """A server-sent-event body whose beginning is known to be good, so that its status is 200."""

    async def deliver(self, outlet: Outlet) -> None:
        """Put every chunk, in order. Cancelling it aborts the request in the engine."""

    async def aclose(self) -> None:
        """Abort what is left in the engine; harmless when everything was delivered."""


class Serving(Protocol):
    """vLLM's serving classes over one engine."""

    @property
    def api_keys(self) -> frozenset[str]:
        """Keys of which a client must send one; empty: the port is open."""

    @property
    def streaming_paths(self) -> frozenset[str]:
        """Paths that `call` serves; everything else is for `asgi`."""

    @property
    def asgi(self) -> AsgiApp:
        """vLLM's own application, with every route it has for this model."""

    @property
    def context_length(self) -> int:
        """Most tokens of a prompt and its reply."""

    @property
    def longest_token_chars(self) -> int | None:
        """Characters of the longest entry of the vocabulary; `None` where there is no tokenizer."""

    async def count_tokens(self, path: str, body: Mapping[str, Any]) -> int | None:
        """Tokens of the longest prompt of a request on one of `streaming_paths`; `None` where it can't be rendered."""

    async def template_cost(self) -> TemplateCost | None:
        """What the chat template adds to a prompt; `None` where there is none."""

    def message_tokens(self, message: Mapping[str, Any]) -> int:
        """About the tokens of one chat message. May be called from any thread."""

    def cors_headers(self, origin: str | None) -> dict[str, str]:
        """What a reply of `call` must say for a browser on a page of `origin` to hand it over; empty: it won't."""

    async def call(self, path: str, body: dict[str, Any], headers: Mapping[str, str]) -> JsonReply | StreamReply:
        """Serve one request. Never raises for a fault of the request or the engine: that is a `JsonReply` too."""


class PortHost(Protocol):
    """The host, as the port sees it. All but `admission` answers at once, whatever the engine does."""

    @property
    def streams(self) -> "OpenStreams":
        """Where streams being delivered are counted."""

    def rules(self) -> Profile:
        """The profile in force."""

    def sessions(self) -> "SessionBook | None":
        """The conversations that are kept, if any are."""

    async def admission(self) -> None:
        """Wait while requests must not be begun, since the engine is being rebuilt."""

    def engine_state(self) -> EngineState:
        """Where the engine is in its life."""

    def serving(self) -> Serving | None:
        """The serving classes, `None` until the engine is ready."""

    def retry_after_s(self) -> int:
        """Seconds after which a client that was told 503 should ask again; at least 1."""

    async def metrics_text(self) -> bytes:
        """Our own metrics in Prometheus's text format."""

    async def check_health(self) -> str | None:
        """`None` when requests can be served, else the sentence saying why not."""
