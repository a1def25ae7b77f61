"""What the screens of figures share: they ask the host for its telemetry once a second while they are on display."""

from textual.app import ComposeResult
from textual.widgets import Static
from textual.worker import Worker

from console.screens.base import HostScreen
from engine_host.api.contract import HostApi, HostError, HostUnreachable
from engine_host.api.figures import Telemetry
from engine_host.api.types import Snapshot
from widgets.text import one_line

ASKING = "asking the host …"


class MeasuredScreen(HostScreen):
    """A screen of figures. Subclasses fill `compose_figures` and `show_figures`.

    Where they can't be had, a line above says why, and what was shown before stays.
    """

    POLL_S = 1.0
    """Seconds from one look to the next."""

    DEFAULT_CSS = """
    MeasuredScreen #trouble { height: auto; color: $text-warning; padding: 0 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self.figures: Telemetry | None = None
        self._asked_at = float("-inf")
        self._fetching: Worker[None] | None = None

    def compose_body(self) -> ComposeResult:
        """The trouble, if there is any, above the figures."""
        yield Static(ASKING, id="trouble", markup=False)
        yield from self.compose_figures()

    def compose_figures(self) -> ComposeResult:
        """The screen's own widgets."""
        yield from ()

    def show_figures(self, figures: Telemetry) -> None:
        """Show these figures."""

    async def fetch(self, host: HostApi) -> None:
        """Ask the host, and show what it says."""
        self.figures = await host.telemetry()
        self.show_figures(self.figures)

    def on_screen_suspend(self) -> None:
        """Look at once when it's shown again."""
        self._asked_at = float("-inf")

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Ask for the figures when it is time to."""
        busy = self._fetching is not None and not self._fetching.is_finished
        if not busy and abs(snapshot.time - self._asked_at) >= self.POLL_S:
            self._asked_at = snapshot.time
            self._fetching = self.run_worker(self._fetch(), group="figures")

    async def _fetch(self) -> None:
        host = self.console_app.host
        if host is None:
            return
        trouble = self.query_one("#trouble", Static)
        try:
            await self.fetch(host)
        except (HostUnreachable, HostError) as error:
            trouble.update(f"n/a: {one_line(str(error))}")
            trouble.display = True
            return
        trouble.display = False
