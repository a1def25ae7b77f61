"""The store that the profile names, opened again when it names another."""

from collections.abc import Callable
from pathlib import Path

from engine_host.gateway.budgets import Budgets, open_budgets
from engine_host.gateway.session_turns import Message
from engine_host.gateway.sessions import SESSIONS_FILE, SessionBook, open_sessions
from profiles.gateway import GatewaySection


class Stores:
    """Where budgets and conversations are kept; `rules` reads the profile, `data_dir` has the files.

    `context_length` and `count` are the served model's, as `SessionBook` has them. A store that was left stays open,
    so that what was reserved there can be settled there.
    """

    def __init__(
        self,
        rules: Callable[[], GatewaySection],
        data_dir: Path,
        context_length: Callable[[], int | None],
        count: Callable[[Message], int],
    ) -> None:
        self._rules = rules
        self._data_dir = data_dir
        self._context_length = context_length
        self._count = count
        self._budgets: dict[str | None, Budgets] = {}
        self._sessions: dict[str | None, SessionBook] = {}

    def budgets(self) -> Budgets:
        """The budgets in force."""
        url = self._rules().store
        if url not in self._budgets:
            self._budgets[url] = open_budgets(url, self._data_dir)
        return self._budgets[url]

    def sessions(self) -> SessionBook | None:
        """The conversations that are kept, `None` while the profile keeps none."""
        return self._book(self._rules().store) if self._rules().sessions.enabled else None

    async def sweep(self) -> None:
        """Forget conversations past their time, also in a file from when the profile still kept them."""
        if (self._data_dir / SESSIONS_FILE).exists():
            self._book(None)
        for sessions in tuple(self._sessions.values()):
            await sessions.sweep()

    def _book(self, url: str | None) -> SessionBook:
        if url not in self._sessions:
            self._sessions[url] = open_sessions(
                url, self._data_dir, lambda: self._rules().sessions, self._context_length, self._count
            )
        return self._sessions[url]

    async def close(self) -> None:
        """Close all that were opened."""
        for budgets in self._budgets.values():
            await budgets.close()
        for sessions in self._sessions.values():
            await sessions.close()
