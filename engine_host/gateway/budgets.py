"""What callers may use up: reserved when a request is admitted, settled when it has ended.

A limit counts in a fixed window, the minute or the day of UTC, so that "until when" has an exact answer.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, Protocol

from engine_host.api.types import UsageLine
from engine_host.gateway.caller import Limits

Window = Literal["minute", "day"]
Measure = Literal["requests", "tokens", "usd"]


@dataclass(frozen=True, slots=True)
class Account:
    """Whose limits are meant: `scope` is `key:<key id>` or `tier:<name>`, unique over all hosts that share a store."""

    scope: str
    limits: Limits


@dataclass(frozen=True, slots=True)
class Grant:
    """What was reserved, to be settled once: for each account, in windows named by their first Unix second.

    `accounts` are those that have a limit. `usage` says, account by account, what was used up right after reserving,
    this request included: what `rate_limit_headers` takes.
    """

    accounts: tuple[Account, ...]
    tokens: int
    usd: float
    minute: int
    day: int
    usage: tuple[tuple[UsageLine, ...], ...] = ()


class Budgets(Protocol):
    """Counts of every account, kept over restarts. All methods may be called at once from many tasks and hosts."""

    async def reserve(self, accounts: Sequence[Account], tokens: int, usd: float) -> Grant:
        """Reserve one request, `tokens` and `usd` in every account, or in none.

        Raises `Refusal` 429 naming the account's limit, how much it allows, what was asked for and until when, with
        `Retry-After` and the rate-limit headers. A request that no empty window could hold is refused with 429 too,
        and says that waiting does not help. 503 where the store can't be reached. Accounts without any limit are not
        counted, and without one that has a limit the store is not asked. Cancelled, it leaves nothing reserved.
        """
        ...

    async def settle(self, grant: Grant, tokens: int, usd: float) -> None:
        """Replace what was reserved by what was used, in the windows it was reserved in. The request stays counted.

        Done also where the caller is cancelled meanwhile. Never raises; without its store what was reserved stays.
        """
        ...

    async def release(self, grant: Grant) -> None:
        """Give all of it back, the request too: it was never begun. Otherwise as `settle`."""
        ...

    async def usage(self, account: Account) -> tuple[UsageLine, ...]:
        """Every limit of the account with what is used up, reservations included; nothing while that is unknown."""
        ...

    async def close(self) -> None:
        """Write what is not written yet, and let go of the store."""
        ...


def open_budgets(store_url: str | None, data_dir: Path, clock: Callable[[], float] = time.time) -> Budgets:
    """Budgets in the Redis at `store_url`, or in `budgets.db` in `data_dir` without one. `clock` is Unix time.

    Nothing is opened or written before the first request that has a limit. Raises `ValueError` for a URL that is none.
    """
    if store_url is not None:
        from engine_host.gateway.budget_redis import RedisBudgets

        return RedisBudgets(store_url, clock)
    from engine_host.gateway.budget_sqlite import SqliteBudgets

    return SqliteBudgets(data_dir / "budgets.db", clock)
