"""Which connections wait for a request, and closing those that wait too long or are too many."""

import asyncio
from collections.abc import Callable

from aiohttp.web_protocol import RequestHandler

IDLE_TIMEOUT_S = 75.0
"""Longer than the 60 s after which common proxies drop an idle connection: the peer should close first."""

MAX_IDLE = 512
"""Idle connections kept; a file descriptor each, out of the usual 1024."""

SWEEP_S = 5.0


class Doorkeeper:
    """The connections of one site that have no request in progress.

    A connection that never sends its headers counts as idle, and has `headers_s` to send its first. `clock` is the
    running loop's, in seconds.
    """

    def __init__(
        self,
        clock: Callable[[], float],
        max_idle: int = MAX_IDLE,
        timeout_s: float = IDLE_TIMEOUT_S,
        headers_s: Callable[[], float] = lambda: IDLE_TIMEOUT_S,
    ) -> None:
        self._clock = clock
        self._headers_s = headers_s
        self._new: set[RequestHandler] = set()
        self._max_idle = max_idle
        self._timeout_s = timeout_s
        self._idle_since: dict[RequestHandler, float] = {}

    def opened(self, connection: RequestHandler) -> None:
        """A connection was opened."""
        self._new.add(connection)
        self.idle(connection)

    def idle(self, connection: RequestHandler) -> None:
        """A connection's request has been answered."""
        self._idle_since.pop(connection, None)
        self._idle_since[connection] = self._clock()

    def busy(self, connection: RequestHandler) -> None:
        """A request has come in."""
        self._new.discard(connection)
        self._idle_since.pop(connection, None)

    def sweep(self) -> int:
        """Close what has waited too long, and the longest-waiting above the limit; returns how many were closed."""
        now = self._clock()
        # `dict` keeps the order in which they became idle. A connection just accepted isn't connected yet.
        self._idle_since = {
            connection: since
            for connection, since in self._idle_since.items()
            if connection.connected or now - since < SWEEP_S
        }
        self._new &= self._idle_since.keys()
        excess = len(self._idle_since) - self._max_idle
        closed = 0
        for connection, since in list(self._idle_since.items()):
            limit = min(self._timeout_s, self._headers_s()) if connection in self._new else self._timeout_s
            if closed >= excess and now - since < limit:
                continue
            connection.force_close()
            del self._idle_since[connection]
            closed += 1
        return closed

    async def run(self) -> None:
        """Sweep for ever."""
        while True:
            await asyncio.sleep(min(SWEEP_S, self._headers_s()))
            self.sweep()
