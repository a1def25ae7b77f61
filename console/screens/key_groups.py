"""Keys and tiers as groups of bars: what each may use, and what is used of it."""

from collections.abc import Sequence
from datetime import datetime

from engine_host.api.types import KeyLine, TierLine, UsageLine
from widgets import palette, units
from widgets.status_bar import Segment
from widgets.usage_bar import Usage, UsageGroup

NO_LIMITS = "no limits"

_LIMITS = {
    "requests_per_minute": "requests/min",
    "tokens_per_minute": "tokens/min",
    "tokens_per_day": "tokens/day",
    "usd_per_day": "est. USD/day",
}
_STATES = {"active": ("●", palette.GOOD), "expired": ("◌", palette.WARN), "revoked": ("✖", palette.BAD)}


def key_state(key: KeyLine, time: float) -> str:
    """Whether the key opens anything at this Unix time: active, expired or revoked."""
    if key.revoked is not None:
        return "revoked"
    return "expired" if key.expires is not None and key.expires <= time else "active"


def key_groups(keys: Sequence[KeyLine], time: float) -> list[UsageGroup]:
    """The keys that work first, each sort by name."""
    order = list(_STATES)
    rows = sorted(keys, key=lambda key: (order.index(key_state(key, time)), key.name.casefold(), key.id))
    return [UsageGroup(_heading(key, time), _usage(key.usage), "" if key.usage else NO_LIMITS) for key in rows]


def tier_groups(tiers: Sequence[TierLine]) -> list[UsageGroup]:
    """The tiers, in the host's order."""
    return [
        UsageGroup((Segment(tier.name, priority=9),), _usage(tier.usage), "" if tier.usage else NO_LIMITS)
        for tier in tiers
    ]


def _usage(lines: Sequence[UsageLine]) -> tuple[Usage, ...]:
    return tuple(
        Usage(_LIMITS.get(line.limit, line.limit), line.used, line.allowed, line.resets_s, line.limit.startswith("usd"))
        for line in lines
    )


def _heading(key: KeyLine, time: float) -> tuple[Segment, ...]:
    state = key_state(key, time)
    mark, color = _STATES[state]
    used = "never used" if key.last_used is None else f"used {_ago(time - key.last_used)}"
    return (
        Segment(key.name, priority=9),
        Segment(f"{mark} {state}", priority=8, color=color),
        Segment(f"tier {key.tier}" if key.tier else "default tier", key.tier or "", priority=7),
        Segment(used, priority=6),
        Segment(_expiry(key, time), priority=5),
        Segment("admin" if key.admin else "", priority=4, color=palette.WARN),
        Segment(f"models {', '.join(key.models)}" if key.models else "", priority=2),
        Segment(f"id {key.id}", priority=1, color=palette.MUTED),
    )


def _ago(seconds: float) -> str:
    return "just now" if seconds < 1 else f"{units.duration(seconds)} ago"


def _expiry(key: KeyLine, time: float) -> str:
    if key.revoked is not None:
        return f"revoked {_ago(time - key.revoked)}"
    if key.expires is None:
        return "never expires"
    if key.expires <= time:
        return f"expired {_ago(time - key.expires)}"
    return f"expires in {units.duration(key.expires - time)} ({datetime.fromtimestamp(key.expires):%Y-%m-%d})"
