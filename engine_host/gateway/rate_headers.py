"""The `x-ratelimit-*` headers that OpenAI's API sends, made of what a budget has left."""

import math
from collections.abc import Sequence

from engine_host.api.types import UsageLine


def rate_limit_headers(usage: Sequence[Sequence[UsageLine]]) -> dict[str, str]:
    """Limit, remaining and reset of requests and of tokens; nothing where neither is limited.

    `usage` has one entry for each account, the key's before the tier's: the first one that limits a measure is told.
    Of its limits of one measure that is the one with least left. Resets are when the window ends.
    """
    headers = {}
    for measure in ("requests", "tokens"):
        for lines in usage:
            limits = [line for line in lines if line.limit.startswith(f"{measure}_")]
            if limits:
                line = min(limits, key=lambda line: line.allowed - line.used)
                headers[f"x-ratelimit-limit-{measure}"] = str(int(line.allowed))
                headers[f"x-ratelimit-remaining-{measure}"] = str(max(0, int(line.allowed - line.used)))
                headers[f"x-ratelimit-reset-{measure}"] = duration(line.resets_s)
                break
    return headers


def duration(seconds: float) -> str:
    """Whole seconds, rounded up, as OpenAI writes them: `1s`, `6m0s`, `23h0m5s`."""
    minutes, rest = divmod(max(0, math.ceil(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours}h{minutes}m{rest}s"
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
