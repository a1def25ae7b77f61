"""Who asks: what a key, or its absence, entitles a request to."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Limits:
    """What may be used up in a minute or a day; `None` is no limit. Tokens are prompt and output together."""

    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    tokens_per_day: int | None = None
    usd_per_day: float | None = None


@dataclass(frozen=True, slots=True)
class Caller:
    """One holder of a key; `key_id` is public and never the secret.

    `tier` is `None` where the profile decides; `models` are the served names it may ask for, `None` for all.
    """

    key_id: str
    name: str
    tier: str | None = None
    models: frozenset[str] | None = None
    limits: Limits = field(default_factory=Limits)
    admin: bool = False


ANONYMOUS = Caller("anonymous", "no key")
"""Requests without a key, where none is asked for."""

CONSOLE = Caller("console", "console", admin=True)
"""The host's own screens: whoever may open its Unix socket."""
