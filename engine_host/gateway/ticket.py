"""One request as the gateway sees it, from its acceptance to its end."""

import asyncio
from dataclasses import dataclass, field

from engine_host.gateway.caller import Caller
from engine_host.gateway.refusal import Refusal

LONG_LANE = "long"

ASSUMED_OUTPUT = 512
"""Output tokens a request is charged in the fair queue when it is let in, at most: what it may ask for is often the
whole context. Corrected when it has ended."""


@dataclass(eq=False, slots=True)
class Ticket:
    """`tier` and `lane` are names; `prompt_tokens` its prompt, `max_tokens` the most it may produce in each of its
    `sequences`. Times are seconds of `time.monotonic`, `None` until they come."""

    request_id: str
    caller: Caller
    tier: str
    lane: str
    prompt_tokens: int
    max_tokens: int
    arrived: float
    sequences: int = 1
    began: float = 0.0
    """When its first byte had been read."""
    queued: float | None = None
    """When it came to the queue."""
    entered: float | None = None
    """When its present wait in the queue began: it waits again when it was set aside."""
    first_admitted: float | None = None
    admitted: float | None = None
    scheduled: float | None = None
    first_token: float | None = None
    last_token: float | None = None
    ended: float | None = None
    output_tokens: int = 0
    waited: float = 0.0
    """Seconds in the queue so far, all waits together."""
    held: list[tuple[float, float | None]] = field(default_factory=list)
    """When it was off the engine after it had begun."""
    resumes: int = 0
    """How often it was set aside for a higher tier."""
    charged: int = 0
    weight: float = 1.0
    """Its tier's, when it was charged."""
    finish_reason: str | None = None
    refusal: Refusal | None = None
    """Why it is being ended, once it is."""
    client_id: str = ""
    """The `X-Request-Id` of the HTTP request it came in."""
    path: str = ""
    """Of the URL it came by."""
    profile: str = ""
    """In force when it came."""
    shared_prefix: int | None = None
    """Most tokens that its prompt and one of those just before it begin with alike."""
    traceparent: str | None = None
    """Of its client's trace."""
    computed: float | None = None
    """When the engine had its first token, before it was handed over."""
    prompt_text: str | None = None
    reply_text: list[str] | None = None
    """Kept only where the profile says so."""
    turn: asyncio.Future[None] | None = None
    """Done when it may go into the engine."""

    @property
    def cost(self) -> int:
        """Tokens it counts for in the fair queue until its end tells the true number."""
        return self.prompt_tokens + self.sequences * min(self.max_tokens, ASSUMED_OUTPUT)

    @property
    def tokens(self) -> int:
        """Most tokens it can use up."""
        return self.prompt_tokens + self.sequences * self.max_tokens

    @property
    def long(self) -> bool:
        """Whether it waits in the long-prompt lane."""
        return self.lane == LONG_LANE

    @property
    def is_held(self) -> bool:
        """Whether the host keeps it off the engine."""
        return bool(self.held) and self.held[-1][1] is None

    def held_since(self, since: float, now: float) -> float:
        """Seconds after `since` in which the host held it off the engine."""
        return sum(max(0.0, (end if end is not None else now) - max(begin, since)) for begin, end in self.held)
