"""The store that the profile names, opened again when it names another."""

from collections.abc import Callable
from pathlib import Path

from engine_host.gateway.budgets import Budgets, open_budgets


class Stores:
    """Where budgets are kept; `url` reads the profile, `data_dir` has the files where it names no Redis.

    One that was left stays open, so that what was reserved there can be settled there.
    """

    def __init__(self, url: Callable[[], str | None], data_dir: Path) -> None:
        self._url = url
        self._data_dir = data_dir
        self._budgets: dict[str | None, Budgets] = {}

    def budgets(self) -> Budgets:
        """The budgets in force."""
        url = self._url()
        if url not in self._budgets:
            self._budgets[url] = open_budgets(url, self._data_dir)
        return self._budgets[url]

    async def close(self) -> None:
        """Close all that were opened."""
        for budgets in self._budgets.values():
            await budgets.close()
