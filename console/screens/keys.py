"""The keys and the tiers, and how much of their limits is used up."""

import asyncio

from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.worker import Worker

from console.screens.base import HostScreen
from console.screens.key_groups import key_groups, tier_groups
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import Snapshot
from widgets import units
from widgets.usage_bar import UsageBars, UsageGroup

POLL_S = 2.0
"""Seconds from one look at the keys to the next, while they are on display."""

NO_KEYS = "No keys. Make one with: llmconsole key create NAME"
NO_TIERS = "n/a: the host tells nothing of its tiers."


class KeysScreen(HostScreen):
    """The keys with a bar a limit, and the same for the tiers. Keys are made and revoked on the command line."""

    CSS_PATH = "keys.tcss"
    AUTO_FOCUS = "#key-bars"

    def __init__(self) -> None:
        super().__init__()
        self._asked_at = float("-inf")
        self._fetching: Worker[None] | None = None
        self._problem = ""

    def compose_body(self) -> ComposeResult:
        """Keys, then tiers."""
        with Vertical(id="keys", classes="panel") as keys:
            keys.border_title = "Keys"
            yield UsageBars(id="key-bars")
        with Vertical(id="tiers", classes="panel") as tiers:
            tiers.border_title = "Tiers"
            yield UsageBars(id="tier-bars")

    def on_screen_suspend(self) -> None:
        """Look at once when it's shown again."""
        self._asked_at = float("-inf")

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the tiers; ask for the keys when it is time to."""
        tiers = snapshot.gateway.tiers if snapshot.gateway is not None else ()
        self.query_one("#tier-bars", UsageBars).set_groups(tier_groups(tiers) or [UsageGroup((), (), NO_TIERS)])
        busy = self._fetching is not None and not self._fetching.is_finished
        if not busy and abs(snapshot.time - self._asked_at) >= POLL_S:
            self._asked_at = snapshot.time
            self._fetching = self.run_worker(self._fetch(snapshot.time), group="keys")

    async def _fetch(self, time: float) -> None:
        """Ask for the keys; what the host objects to is said once, not at every look."""
        app = self.console_app
        if app.host is None:
            return
        try:
            keys = await app.host.keys()
        except (HostUnreachable, HostError) as error:
            if str(error) != self._problem:
                self._problem = str(error)
                app.say(self._problem, "error")
            return
        self._problem = ""
        groups = await asyncio.to_thread(key_groups, keys, time)  # 1 000 keys take 50 ms
        self.query_one("#key-bars", UsageBars).set_groups(groups or [UsageGroup((), (), NO_KEYS)])
        self.query_one("#keys").border_subtitle = Content(f"{units.count(len(keys))} keys" if keys else "")
