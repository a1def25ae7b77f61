"""What callers may use up: reserved when a request is admitted, settled when it has ended.

A limit counts in a fixed window, the minute or the day of UTC, so that "until when" has an exact answer.
"""

from collections.abc import Sequence
from dataclasses import dataclass
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
    """What was reserved, to be settled once: for each account, in windows named by their first Unix second."""

    accounts: tuple[Account, ...]
    tokens: int
    usd: float
    minute: int
    day: int


class Budgets(Protocol):
    """Counts of every account, kept over restarts. All methods may be called at once from many tasks and hosts."""

    async def reserve(self, accounts: Sequence[Account], tokens: int, usd: float) -> Grant:
        """Reserve one request, `tokens` and `usd` in every account, or in none.

        Raises `Refusal` 429 naming the account's limit, how much it allows, what was asked for and until when, with
        `Retry-After` and the rate-limit headers. A request that no empty window could hold is refused with 429 too,
        and says that waiting does not help.
        """
        ...

    async def settle(self, grant: Grant, tokens: int, usd: float) -> None:
        """Replace what was reserved by what was used, in the windows it was reserved in. The request stays counted."""
        ...

    async def release(self, grant: Grant) -> None:
        """Give all of it back, the request too: it was never begun."""
        ...

    async def usage(self, account: Account) -> tuple[UsageLine, ...]:
        """Every limit of the account with what is used up, reservations included."""
        ...

    async def close(self) -> None:
        """Write what is not written yet, and let go of the store."""
        ...
