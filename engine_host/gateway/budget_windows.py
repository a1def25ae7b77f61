"""The rules of budgets, over a store that counts.

Used and reserved are one count: a reservation is counted when it is made, and settling adds the difference to what was
used. A host that dies leaves its reservations counted until their windows end; it can lose budget, never give it twice.
"""

import asyncio
import contextlib
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Coroutine, Sequence
from typing import Any

from engine_host.api.types import UsageLine
from engine_host.gateway.budget_limits import (
    SECONDS,
    Ask,
    Counter,
    Counts,
    counters,
    nano_usd,
    refuse_impossible,
    refuse_used_up,
    usage_lines,
    window_start,
)
from engine_host.gateway.budget_store import StoreError, Watch
from engine_host.gateway.budgets import Account, Budgets, Grant
from engine_host.gateway.caller import Limits
from engine_host.gateway.refusal import Refusal

RETRY_AFTER_S = 5.0
"""When a client may ask again while the store can't be reached: about as long as a server takes to come back."""

NO_LIMITS = Limits()


class WindowBudgets(Budgets):
    """Budgets in fixed windows. A store adds `_take`, `_adjust`, `_read` and `_close`, which raise `StoreError`."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._watch = Watch("budgets", "requests with a limit are refused with 503 until it can")
        self._tasks: set[asyncio.Task[Any]] = set()

    async def reserve(self, accounts: Sequence[Account], tokens: int, usd: float) -> Grant:
        """As `Budgets` says; `Refusal` 503 where the store can't be used."""
        limited = tuple(account for account in accounts if account.limits != NO_LIMITS)
        now = self._clock()
        minute, day = window_start(now, SECONDS["minute"]), window_start(now, SECONDS["day"])
        if not limited:
            return Grant((), tokens, usd, minute, day)
        ask = Ask(tokens, usd)
        refuse_impossible(limited, ask)
        if (taken := self._try_at_once(limited, minute, day, ask, now)) is not None:
            return Grant(limited, tokens, usd, minute, day, taken)
        taking = self._spawn(self._watch.bounded(self._try(limited, minute, day, ask, now)))
        try:
            usage = await asyncio.shield(taking)
        except asyncio.CancelledError:
            self._spawn(self._undo(taking, Grant(limited, tokens, usd, minute, day)))
            raise
        except StoreError:
            raise Refusal(
                503,
                "The budget of this request can't be checked, because the store of budgets can't be reached. Send it "
                "again in some seconds; if that does not help, the host's log says what is wrong with the store.",
                retry_after_s=RETRY_AFTER_S,
            ) from None
        return Grant(limited, tokens, usd, minute, day, usage)

    async def settle(self, grant: Grant, tokens: int, usd: float) -> None:
        """As `Budgets` says. Never raises: where the store can't be used, what was reserved stays counted."""
        await self._change(grant, 0, tokens - grant.tokens, nano_usd(usd) - nano_usd(grant.usd))

    async def release(self, grant: Grant) -> None:
        """As `Budgets` says. Never raises, as `settle`."""
        await self._change(grant, -1, -grant.tokens, -nano_usd(grant.usd))

    async def usage(self, account: Account) -> tuple[UsageLine, ...]:
        """As `Budgets` says; nothing where the store can't be used."""
        if account.limits == NO_LIMITS:
            return ()
        now = self._clock()
        windows = counters(account, *(window_start(now, seconds) for seconds in SECONDS.values()))
        try:
            minute, day = await self._watch.bounded(self._read(windows))
        except StoreError:
            return ()
        return usage_lines(account, minute, day, now)

    async def close(self) -> None:
        """Write what is not written yet, and let go of the store."""
        while self._tasks:
            await asyncio.wait(self._tasks)
        await self._close()

    @abstractmethod
    async def _take(self, windows: Sequence[Counter], tokens: int, nano: int) -> list[Counts] | None:
        """Add a request to all windows where none becomes more than its most; the new counts in order, else `None`."""

    @abstractmethod
    async def _adjust(self, windows: Sequence[Counter], requests: int, tokens: int, nano: int) -> None:
        """Add to those of the windows that are still kept; no count falls below 0."""

    def _take_at_once(self, windows: Sequence[Counter], tokens: int, nano: int) -> list[Counts] | None:
        """As `_take`, where it can be done without a wait; `None` where it can't, or a window is full."""
        return None

    def _adjust_at_once(self, windows: Sequence[Counter], requests: int, tokens: int, nano: int) -> bool:
        """As `_adjust`, where it can be done without a wait; whether it was."""
        return False

    @abstractmethod
    async def _read(self, windows: Sequence[Counter]) -> list[Counts]:
        """The counts of the windows in order; 0 where nothing was counted."""

    @abstractmethod
    async def _close(self) -> None: ...

    def _try_at_once(
        self, accounts: Sequence[Account], minute: int, day: int, ask: Ask, now: float
    ) -> tuple[tuple[UsageLine, ...], ...] | None:
        windows = [window for account in accounts for window in counters(account, minute, day)]
        try:
            counts = self._take_at_once(windows, ask.tokens, nano_usd(ask.usd))
        except StoreError:
            return None  # The watched way says what is wrong.
        return _usage(accounts, counts, now) if counts is not None else None

    async def _try(
        self, accounts: Sequence[Account], minute: int, day: int, ask: Ask, now: float
    ) -> tuple[tuple[UsageLine, ...], ...]:
        windows = [window for account in accounts for window in counters(account, minute, day)]
        while True:
            counts = await self._take(windows, ask.tokens, nano_usd(ask.usd))
            fits = counts is not None
            counts = counts or await self._read(windows)
            usage = _usage(accounts, counts, now)
            if fits:
                return usage
            # Where this finds room, another request has given some back in between.
            refuse_used_up(accounts, usage, ask, now)

    async def _change(self, grant: Grant, requests: int, tokens: int, nano: int) -> None:
        if grant.accounts and (requests or tokens or nano):
            windows = [window for each in grant.accounts for window in counters(each, grant.minute, grant.day)]
            with contextlib.suppress(StoreError):  # The watched way says what is wrong.
                if self._adjust_at_once(windows, requests, tokens, nano):
                    return
            await asyncio.shield(self._spawn(self._attempt(self._adjust(windows, requests, tokens, nano))))

    async def _attempt(self, work: Awaitable[None]) -> None:
        with contextlib.suppress(StoreError):  # The watch has said so.
            await self._watch.bounded(work)

    async def _undo(self, taking: "asyncio.Task[Any]", grant: Grant) -> None:
        """Give back what a request reserved that was cancelled meanwhile."""
        try:
            await taking
        except (Refusal, StoreError):
            return
        await self.release(grant)

    def _spawn(self, work: Coroutine[Any, Any, Any]) -> "asyncio.Task[Any]":
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task


def _usage(accounts: Sequence[Account], counts: Sequence[Counts], now: float) -> tuple[tuple[UsageLine, ...], ...]:
    """Each account's limits; `counts` are those of its minute and its day, one account after the other."""
    pairs = zip(accounts, counts[::2], counts[1::2], strict=True)
    return tuple(usage_lines(account, in_minute, in_day, now) for account, in_minute, in_day in pairs)
