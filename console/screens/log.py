"""Everything the host and the engine print, filtered by level and text."""

from collections.abc import Iterable
from typing import get_args

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal
from textual.widgets import Input, Static
from textual.worker import Worker

from console.screens.base import HostScreen
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import LogLevel, Snapshot
from widgets import units
from widgets.log_view import LogLine, LogView

LEVELS: tuple[LogLevel, ...] = get_args(LogLevel)
PAGE_RECORDS = 2_000
"""Records asked for at once: a full ring arrives in a few answers, none of which takes long to decode."""


class LogScreen(HostScreen):
    """The log ring, followed while on display."""

    CSS_PATH = "log.tcss"
    AUTO_FOCUS = "LogView"
    BINDINGS = [
        Binding("slash", "find", "Find", id="log.find", key_display="/", tooltip="Show only lines with a text"),
        Binding("l", "next_level", "Level", id="log.level", tooltip="Show only lines of a higher level"),
        Binding("escape", "unfilter", "All", id="log.unfilter", show=False, tooltip="Show all lines again"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._level = 0
        self._last = 0
        self._dropped = 0
        self._fetched: Worker[None] | None = None

    def compose_body(self) -> ComposeResult:
        """The filter line above the lines."""
        with Horizontal(id="filter"):
            yield Static("", id="level", markup=False)
            yield Input(placeholder="text to find (/)", id="find", compact=True)
            yield Static("", id="dropped", markup=False)
        yield LogView(id="lines")

    def on_mount(self) -> None:
        """Start unfiltered."""
        super().on_mount()
        self._apply()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Each snapshot is an occasion to fetch what was printed since."""
        if self._fetched is None or self._fetched.is_finished:
            self._fetched = self.run_worker(self._fetch, group="log")

    async def _fetch(self) -> None:
        """Add every record that's new, a page at a time."""
        host = self.console_app.host
        while host is not None:
            try:
                page = await host.log(self._last, PAGE_RECORDS)
            except (HostUnreachable, HostError):
                return  # the status bar says so, and the next snapshot tries again
            self._dropped += page.dropped
            if self._dropped:
                self.query_one("#dropped", Static).update(f"{units.count(self._dropped)} older lines have left")
            if not page.records:
                return
            self._last = page.records[-1].sequence
            lines = (LogLine(record.time, record.level, record.source, record.text) for record in page.records)
            self.query_one(LogView).extend(lines)
            if len(page.records) < PAGE_RECORDS:
                return

    def action_find(self) -> None:
        """Go to the text field."""
        self.query_one("#find", Input).focus()

    def action_next_level(self) -> None:
        """Raise the least level shown, and from the highest go back to all."""
        self._level = (self._level + 1) % len(LEVELS)
        self._apply()

    def action_unfilter(self) -> None:
        """Show everything and go back to the lines."""
        self._level = 0
        self.query_one("#find", Input).value = ""
        self._apply()
        self.query_one(LogView).focus()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it's typed."""
        self._apply()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the lines found."""
        self.query_one(LogView).focus()

    def commands(self) -> Iterable[SystemCommand]:
        """Find and level, by name."""
        yield SystemCommand("Find in the log", "Show only lines with a text", self.action_find)
        for number, level in enumerate(LEVELS):
            yield SystemCommand(
                f"Log level {level}", f"Show lines from {level} up", lambda number=number: self._set_level(number)
            )

    def _set_level(self, number: int) -> None:
        self._level = number
        self._apply()

    def _apply(self) -> None:
        level = LEVELS[self._level]
        self.query_one("#level", Static).update("all levels" if self._level == 0 else f"{level} and up")
        self.query_one(LogView).set_filter(level, self.query_one("#find", Input).value)
