"""The limits of an account: in which window each counts, what is left of it, and what a refused client is told."""

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import NamedTuple

from engine_host.api.types import UsageLine
from engine_host.gateway.budgets import Account, Measure, Window
from engine_host.gateway.rate_headers import rate_limit_headers
from engine_host.gateway.refusal import Refusal

SECONDS: dict[Window, int] = {"minute": 60, "day": 86_400}
"""Length of the windows; Unix time has no leap seconds, so that both begin at its multiples."""

LIMITS: tuple[tuple[str, Window, Measure], ...] = (
    ("requests_per_minute", "minute", "requests"),
    ("tokens_per_minute", "minute", "tokens"),
    ("tokens_per_day", "day", "tokens"),
    ("usd_per_day", "day", "usd"),
)
"""Every limit by its name in `Limits`, in the order shown."""

NANO = 1_000_000_000
MOST = 2**53
"""Largest count: integers above it are not exact in Redis' scripts."""


def nano_usd(usd: float) -> int:
    """Money as a whole number of 1e-9 USD, so that sums are exact. A token costs hundreds of them."""
    return min(round(usd * NANO), MOST)


class Counts(NamedTuple):
    """What is used and reserved in one window."""

    requests: int = 0
    tokens: int = 0
    nano_usd: int = 0


class Counter(NamedTuple):
    """One window of one account, `start` being its first Unix second, and the most that each count may become."""

    scope: str
    seconds: int
    start: int
    most_requests: int | None
    most_tokens: int | None
    most_nano_usd: int | None


@dataclass(frozen=True, slots=True)
class Ask:
    """What one request needs."""

    tokens: int
    usd: float

    def of(self, measure: Measure) -> float:
        """The amount of one measure."""
        return 1 if measure == "requests" else self.tokens if measure == "tokens" else self.usd


def window_start(now: float, seconds: int) -> int:
    """First Unix second of the window that `now` lies in."""
    return int(now // seconds) * seconds


def counters(account: Account, minute: int, day: int) -> tuple[Counter, Counter]:
    """The account's two windows. Both are always counted, so that a limit set later knows what came before."""
    limits = account.limits
    tokens_per_minute = None if limits.tokens_per_minute is None else min(limits.tokens_per_minute, MOST)
    tokens_per_day = None if limits.tokens_per_day is None else min(limits.tokens_per_day, MOST)
    usd = None if limits.usd_per_day is None else nano_usd(limits.usd_per_day)
    return (
        Counter(account.scope, SECONDS["minute"], minute, limits.requests_per_minute, tokens_per_minute, None),
        Counter(account.scope, SECONDS["day"], day, None, tokens_per_day, usd),
    )


def usage_lines(account: Account, minute: Counts, day: Counts, now: float) -> tuple[UsageLine, ...]:
    """Every limit of the account with what is used up."""
    lines = []
    for name, window, measure in LIMITS:
        allowed = getattr(account.limits, name)
        if allowed is not None:
            counts = minute if window == "minute" else day
            used = counts.nano_usd / NANO if measure == "usd" else getattr(counts, measure)
            seconds = SECONDS[window]
            lines.append(UsageLine(name, float(used), float(allowed), window_start(now, seconds) + seconds - now))
    return tuple(lines)


def refuse_impossible(accounts: Sequence[Account], ask: Ask) -> None:
    """Raises `Refusal` 429 for a request that no empty window could hold."""
    for account in accounts:
        for name, window, measure in LIMITS:
            allowed = getattr(account.limits, name)
            if allowed is not None and _exceeds(0, ask.of(measure), allowed, measure):
                raise Refusal(
                    429,
                    f"This request may need {_amount(ask.of(measure), measure)}, more than the "
                    f"{_amount(allowed, measure)} that {_who(account)} may use in a {window}, so that waiting doesn't "
                    "help. Ask for a shorter reply (max_tokens), or send a shorter prompt.",
                    # Clients made for OpenAI's API try a 429 again unless this tells them not to.
                    headers={"x-should-retry": "false"},
                )


def refuse_used_up(accounts: Sequence[Account], usage: Sequence[tuple[UsageLine, ...]], ask: Ask, now: float) -> None:
    """Raises `Refusal` 429 where the request doesn't fit; names the limit in its way that lasts longest."""
    in_the_way = [
        (line.resets_s, account, line, window, measure)
        for account, lines in zip(accounts, usage, strict=True)
        for line, window, measure in _with_terms(lines)
        if _exceeds(line.used, ask.of(measure), line.allowed, measure)
    ]
    if not in_the_way:
        return
    resets_s, account, line, window, measure = max(in_the_way, key=lambda each: each[0])
    until = datetime.fromtimestamp(now + resets_s, UTC)
    raise Refusal(
        429,
        f"The limit of {_amount(line.allowed, measure)} a {window} of {_who(account)} is used up: "
        f"{_amount(line.used, measure)} are used or reserved, and this request may need "
        f"{_amount(ask.of(measure), measure)}. Send it again at {until:%H:%M:%S} UTC, in {math.ceil(resets_s)} s.",
        retry_after_s=resets_s,
        headers=rate_limit_headers(usage),
    )


def _with_terms(lines: Sequence[UsageLine]) -> Iterator[tuple[UsageLine, Window, Measure]]:
    terms = {name: (window, measure) for name, window, measure in LIMITS}
    for line in lines:
        yield line, *terms[line.limit]


def _exceeds(used: float, asked: float, allowed: float, measure: Measure) -> bool:
    if measure == "usd":  # As the stores compare it: floats may differ from that in the last digit.
        return nano_usd(used) + nano_usd(asked) > nano_usd(allowed)
    return used + asked > allowed


def _who(account: Account) -> str:
    return account.scope.replace(":", " ", 1)


def _amount(value: float, measure: Measure) -> str:
    if measure == "usd":
        return f"{value:.6g} USD"
    return f"{int(value)} {measure[:-1] if value == 1 else measure}"
