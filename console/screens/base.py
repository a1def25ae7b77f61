"""What all screens of the console share: the bar, the footer, the feed of snapshots, and the smallest size."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable
from typing import TYPE_CHECKING, cast

from textual import events
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import Screen
from textual.widgets import Static

from console import save
from console.footer import ConsoleFooter
from console.status import clock_text, status_segments
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import CommandReply, Snapshot
from widgets.status_bar import StatusBar

if TYPE_CHECKING:
    from console.app import ConsoleApp

MIN_WIDTH = 60
MIN_HEIGHT = 16
ROOMY_WIDTH = 110
"""Cells from which tiles stand side by side."""


class HostScreen(Screen[None]):
    """A mode of the console. Subclasses fill `compose_body` and `show_snapshot`."""

    # Where `s` has another meaning, or text is typed, there is the other key and the palette.
    BINDINGS = [
        Binding("s", "save_view", "Save", id="view.save", show=False, tooltip="Save the view as SVG and PNG"),
        Binding(
            "S,f11", "save_view", "Save", id="view.save.always", show=False, tooltip="Save the view as SVG and PNG"
        ),
    ]
    HORIZONTAL_BREAKPOINTS = [(0, "-tiny"), (MIN_WIDTH, "-narrow"), (ROOMY_WIDTH, "-wide"), (170, "-broad")]
    VERTICAL_BREAKPOINTS = [(0, "-flat"), (MIN_HEIGHT, "-short"), (32, "-tall")]

    DEFAULT_CSS = """
    HostScreen #too-small { display: none; content-align: center middle; text-align: center; height: 1fr; }
    HostScreen.-tiny #too-small, HostScreen.-flat #too-small { display: block; }
    HostScreen.-tiny #body, HostScreen.-flat #body { display: none; }
    HostScreen #body { height: 1fr; }
    """

    @property
    def console_app(self) -> "ConsoleApp":
        """The app, by its own type."""
        return cast("ConsoleApp", self.app)

    def compose(self) -> ComposeResult:
        """Bar, body, footer; the hint takes the body's place on a terminal that's too small."""
        yield StatusBar(id="status")
        with Vertical(id="body"):
            yield from self.compose_body()
        yield Static("", id="too-small")
        yield ConsoleFooter()

    def compose_body(self) -> ComposeResult:
        """The screen's own widgets."""
        yield from ()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show what the host says now. Called only while this screen is on display."""

    def commands(self) -> Iterable[SystemCommand]:
        """This screen's own commands for the palette."""
        return ()

    def action_save_view(self) -> None:
        """Save what is on display as SVG and PNG."""
        what, svg = self._mode, self.app.export_screenshot()
        self._save_file(lambda: " and ".join(str(path) for path in save.save_view(what, svg)))

    def save_text(self, extension: str, make: Callable[[], str]) -> None:
        """Save what `make` returns (it's called in a thread) in a file of this screen."""
        what = self._mode
        self._save_file(lambda: str(save.save_text(what, extension, make())))

    @property
    def _mode(self) -> str:
        return self.app.current_mode or "screen"

    def _save_file(self, write: Callable[[], str]) -> None:
        """Call `write` in a thread, and say where the file is that it names."""

        async def saving() -> None:
            try:
                where = await asyncio.to_thread(write)
            except (OSError, ValueError) as error:
                self.console_app.say(f"It can't be saved in {save.saved_dir()}: {error}", "error")
            else:
                self.console_app.say(f"Saved as {where}")

        self.run_worker(saving(), group="save")

    async def tell(self, asked: Awaitable[CommandReply]) -> None:
        """Wait for the host's answer to a command, and say what it objects to."""
        app = self.console_app
        try:
            reply = await asked
        except (HostUnreachable, HostError) as error:
            app.say(str(error), "error")
            return
        if not reply.ok:
            app.say(reply.message, "error")
        elif reply.message:
            app.say(reply.message)
        await app.poll()

    def on_mount(self) -> None:
        """Follow the app's snapshots."""
        self.watch(self.app, "snapshot", self._refresh_from_app, init=False)
        self.watch(self.app, "problem", self._refresh_from_app, init=False)

    def on_screen_resume(self) -> None:
        """Catch up with what happened while another screen was on display."""
        self._refresh_from_app()

    def on_resize(self, event: events.Resize) -> None:
        """Name the size in the hint."""
        size = f"{event.size.width}×{event.size.height}"
        hint = f"The terminal is too small: {size}.\nThe console needs {MIN_WIDTH}×{MIN_HEIGHT}."
        self.query_one("#too-small", Static).update(Content(hint))

    def _refresh_from_app(self) -> None:
        if self.app.current_mode is None or self not in self.app.screen_stack or not self.is_mounted:
            return
        app = self.console_app
        self.query_one("#status", StatusBar).set_segments(
            status_segments(app.snapshot, app.problem), clock_text(app.snapshot)
        )
        if app.snapshot is not None:
            self.show_snapshot(app.snapshot)
