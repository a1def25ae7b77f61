"""What a profile says of requests: who may ask, how much, how long they may take, and in what order they go."""

from typing import Any, Literal

from pydantic import model_validator

from profiles.section import MAX_TOKENS, Bytes, Section, knob

Rule = Literal["open", "key", "admin"]
Lane = Literal["short", "throughput"]


class Prompts(Section):
    """How long prompts and replies may be."""

    hard_limit: int | None = knob(
        None, "live", "tokens", "Longest prompt; unset takes the context length", ge=1, le=MAX_TOKENS
    )
    over_hard: Literal[400, 413] = knob(400, "live", "status", "HTTP status of a prompt over the hard limit")
    soft_limit: int | None = knob(
        None, "live", "tokens", "Prompt length from which over_soft applies; unset is none", ge=1, le=MAX_TOKENS
    )
    over_soft: Literal["allow", "long-queue", "reject", "compress"] = knob(
        "allow", "live", None, "What becomes of a prompt between the soft and the hard limit"
    )
    compress_to: int | None = knob(
        None, "live", "tokens", "Length to compress to; unset takes the soft limit", ge=1, le=MAX_TOKENS
    )
    max_tokens: int | None = knob(
        None, "live", "tokens", "Longest reply a request may ask for; unset is no cap", ge=1, le=MAX_TOKENS
    )
    over_max_tokens: Literal["clamp", "refuse"] = knob(
        "clamp", "live", None, "Whether a request for a longer reply is shortened to the cap or refused"
    )

    @model_validator(mode="after")
    def _limits_in_order(self) -> "Prompts":
        if self.soft_limit is not None and self.hard_limit is not None and self.soft_limit > self.hard_limit:
            raise ValueError("soft_limit must not be above hard_limit")
        if self.over_soft != "allow" and self.soft_limit is None:
            raise ValueError(f'over_soft = "{self.over_soft}" needs a soft_limit')
        if self.compress_to is not None and self.soft_limit is not None and self.compress_to > self.soft_limit:
            raise ValueError("compress_to must not be above soft_limit")
        return self


class Lanes(Section):
    """The queue in front of the engine."""

    short_window_ms: float = knob(
        10.0, "live", "ms", "Requests that come on the heels of another are gathered for at most this long", ge=0
    )
    throughput_window_ms: float = knob(50.0, "live", "ms", "The same for tiers of the throughput lane", ge=0)
    long_prompt: int = knob(
        2048, "live", "tokens", "Prompts longer than this wait in the long-prompt lane", ge=1, le=MAX_TOKENS
    )
    long_prefill: int = knob(
        8192, "live", "tokens", "Long prompts' tokens in prefill at once; a longer prompt goes alone", ge=1
    )
    max_queued: int = knob(
        1024, "live", "requests", "Requests of a tier and those above it that may wait; more are told 429", ge=1
    )
    reserve: float = knob(
        0.0, "live", "fraction", "Share of the engine's slots and pages kept for the tier of highest weight", ge=0, lt=1
    )
    checkpoint: bool = knob(
        True, "live", None, "At a full engine, set the youngest preemptible request aside for one of a higher tier"
    )


class Clients(Section):
    """What is borne of a client."""

    max_body: Bytes = knob(32 * 2**20, "live", "bytes", "Largest request body", ge=1024)
    max_depth: int = knob(64, "live", "levels", "Deepest nesting of a request's JSON", ge=4, le=500)
    max_items: int = knob(1_000_000, "live", "items", "Most values in a request's JSON, all levels together", ge=100)
    headers_s: float = knob(15.0, "live", "s", "A new connection must have sent its first request's headers by then",
                            gt=0)  # fmt: skip
    body_s: float = knob(30.0, "live", "s", "A request's body must have arrived within this time", gt=0)
    stall_s: float = knob(30.0, "live", "s", "A client that takes nothing of what was sent for this long is cut off",
                          gt=0)  # fmt: skip


class Breaker(Section):
    """When load is shed."""

    queue_delay_s: float | None = knob(
        None,
        "live",
        "s",
        "Wait in the queue above which the engine counts as saturated; unset is no breaker",
        gt=0,
    )
    after_s: float = knob(5.0, "live", "s", "How long it must be so before the next group of tiers is shed", gt=0)
    hold_s: float = knob(5.0, "live", "s", "How long a group is shed before one of its requests is let in to probe",
                         gt=0)  # fmt: skip


class Sessions(Section):
    """Conversations kept for clients that send only the new turn (`X-Session-Id`)."""

    enabled: bool = knob(False, "live", None, "Keep conversations, and with them prompts and replies, on this host")
    ttl_s: float = knob(86_400.0, "live", "s", "A conversation unused for this long is deleted", gt=0)
    window: int | None = knob(
        None, "live", "tokens", "Most tokens of a conversation sent to the model; unset leaves half the context for it",
        ge=1, le=MAX_TOKENS,
    )  # fmt: skip
    max_bytes: Bytes = knob(2**20, "live", "bytes", "Largest conversation; its oldest turns go", ge=1024)
    max_sessions: int = knob(10_000, "live", "sessions", "Most conversations; the longest unused go", ge=1)


class GatewaySection(Section):
    """The rules that every request passes, in front of the engine."""

    prompts: Prompts = Prompts()
    lanes: Lanes = Lanes()
    clients: Clients = Clients()
    breaker: Breaker = Breaker()
    sessions: Sessions = Sessions()
    store: str | None = knob(
        None, "live", None, "Redis that holds budgets and conversations of several hosts (redis://…); unset uses files",
        pattern=r"^rediss?://",
    )  # fmt: skip


class KeysSection(Section):
    """Who needs a key, and what one may do that says nothing of its own."""

    required: Literal["auto", "always", "never"] = knob(
        "auto", "live", None, "Whether the port asks for a key; auto does once there is one"
    )
    tier: str = knob("standard", "live", None, "Tier of a request without a key, and of keys that name none")
    requests_per_minute: int | None = knob(None, "live", "requests/min", "Requests of one key; unset is no limit", ge=1)
    tokens_per_minute: int | None = knob(None, "live", "tokens/min", "Prompt and output tokens of one key", ge=1)
    tokens_per_day: int | None = knob(None, "live", "tokens/day", "Prompt and output tokens of one key", ge=1)
    usd_per_day: float | None = knob(None, "live", "USD/day", "Cost of one key (est.)", gt=0)
    metrics: Rule = knob("key", "live", None, "Who may read /metrics where keys are asked for")
    docs: Rule = knob("key", "live", None, "Who may read /docs and /openapi.json where keys are asked for")


class Tier(Section):
    """One service level."""

    weight: float = knob(4.0, "live", "share", "Share of admitted tokens while other tiers wait too", gt=0)
    priority: int = knob(0, "live", None, "Place in vLLM's own queue; lower goes first", ge=-1000, le=1000)
    lane: Lane = knob("short", "live", None, "Lane in which its short prompts wait")
    ttft_target_ms: float | None = knob(None, "live", "ms", "Target for the time to first token", gt=0)
    ttl_target_ms: float | None = knob(None, "live", "ms", "Target for the token-to-token latency", gt=0)
    ttft_deadline_s: float | None = knob(
        None, "live", "s", "A request without a first token by then is ended; unset never is", gt=0
    )
    ttl_deadline_s: float | None = knob(
        None, "live", "s", "A request without another token for this long is ended; unset never is", gt=0
    )
    max_active: int | None = knob(None, "live", "requests", "Requests in the engine at once; unset is no limit", ge=1)
    max_queued: int | None = knob(None, "live", "requests", "Requests that may wait; unset is what all may", ge=1)
    tokens_per_second: float | None = knob(
        None, "live", "tokens/s", "Prompt and granted output tokens admitted a second; unset is no limit", gt=0
    )
    requests_per_minute: int | None = knob(
        None, "live", "requests/min", "Requests of the tier; unset is no limit", ge=1
    )
    tokens_per_minute: int | None = knob(None, "live", "tokens/min", "Prompt and output tokens of the tier", ge=1)
    tokens_per_day: int | None = knob(None, "live", "tokens/day", "Prompt and output tokens of the tier", ge=1)
    usd_per_day: float | None = knob(None, "live", "USD/day", "Cost of the tier (est.)", gt=0)
    preemptible: bool = knob(False, "live", None, "May be set aside for a higher tier, and goes on later")
    shed: int = knob(2, "live", "order", "When load is shed: 1 goes first, then 2 …; 0 never", ge=0, le=9)


BUILT_IN_TIERS: dict[str, dict[str, Any]] = {
    "premium": {"weight": 16.0, "priority": -10, "shed": 0},
    "standard": {},
    "best-effort": {"weight": 1.0, "priority": 10, "lane": "throughput", "preemptible": True, "shed": 1},
}
"""Tiers that are always there; a profile's `[tiers.NAME]` changes them key by key, or adds others."""
