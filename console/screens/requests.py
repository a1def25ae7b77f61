"""The live requests: who asks, how long they waited, what they hold; ending them and moving them to another tier."""

from collections.abc import Iterable
from functools import partial

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Input

from console.export import requests_csv
from console.screens.base import HostScreen
from console.screens.request_lines import ORDERS, matching, ordered, to_line
from console.screens.request_questions import CancelScreen, TierScreen
from console.screens.request_strip import GatewayStrip
from console.screens.request_waterfall import WaterfallScreen
from engine_host.api.types import CancelCommand, RequestRow, Snapshot, TierCommand
from widgets import units
from widgets.request_table import FULL, RequestTable


class RequestsScreen(HostScreen):
    """Lanes, breaker and tiers above; the table below, filtered and sorted as asked."""

    CSS_PATH = "requests.tcss"
    AUTO_FOCUS = "#table"
    BINDINGS = [
        Binding("slash", "find", "Filter", id="requests.find", key_display="/", tooltip="Show only some requests"),
        Binding("space", "mark", "Mark", id="requests.mark", key_display="␣", tooltip="Mark the request, or unmark it"),
        Binding("a", "mark_all", "All", id="requests.mark-all", show=False, tooltip="Mark all shown, or unmark them"),
        Binding(
            "x,delete", "cancel", "Cancel", id="requests.cancel", tooltip="End the marked requests, or the selected one"
        ),
        Binding("t", "tier", "Tier", id="requests.tier", tooltip="Move the marked or the selected to another tier"),
        Binding("enter", "waterfall", "Waterfall", id="requests.waterfall", tooltip="Where the request's time goes"),
        Binding("s", "sort", "Sort", id="requests.sort", show=False, tooltip="Sort by the next column"),
        Binding("e", "export", "Export", id="requests.export", show=False, tooltip="Save the requests shown as CSV"),
        Binding(
            "escape", "unfilter", "Show all", id="requests.unfilter", show=False, tooltip="Show all requests again"
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._order = next(iter(ORDERS))

    def compose_body(self) -> ComposeResult:
        """The strip, the filter while there is one, the table."""
        yield GatewayStrip(id="strip")
        yield Input(placeholder="tier, key, lane, id or state", id="find", compact=True)
        with Vertical(id="requests", classes="panel"):
            yield RequestTable(FULL, id="table")

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the requests now."""
        self.query_one(GatewayStrip).show(snapshot.gateway, snapshot.time)
        self._show_rows()

    def _show_rows(self) -> None:
        snapshot = self.console_app.snapshot
        if snapshot is None:
            return
        find = self.query_one("#find", Input)
        find.display = bool(find.value) or find.has_focus
        rows = self._rows(snapshot)
        self.query_one(RequestTable).set_requests([to_line(row) for row in rows])
        self._show_counts(len(rows), len(snapshot.requests))

    def _rows(self, snapshot: Snapshot) -> list[RequestRow]:
        """The requests shown, in the order asked for."""
        return ordered(matching(snapshot.requests, self.query_one("#find", Input).value), self._order)

    def _show_counts(self, shown: int, there: int) -> None:
        panel, marked = self.query_one("#requests"), len(self.query_one(RequestTable).marked)
        count = units.count(there) if shown == there else f"{units.count(shown)} of {units.count(there)}"
        panel.border_title = Content(f"Requests  {count}" + (f" · {units.count(marked)} marked" if marked else ""))
        panel.border_subtitle = Content(f"by {self._order} · s sorts · a marks all")

    def action_find(self) -> None:
        """Go to the filter."""
        find = self.query_one("#find", Input)
        find.display = True
        find.focus()

    def action_unfilter(self) -> None:
        """Take the filter away, or with none the marks."""
        find, table = self.query_one("#find", Input), self.query_one(RequestTable)
        if not find.value and not find.has_focus:
            table.clear_marks()
        find.value = ""
        table.focus()
        self._show_rows()

    def on_input_changed(self, event: Input.Changed) -> None:
        """Filter while it's typed."""
        self._show_rows()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter goes to the requests found."""
        self.query_one(RequestTable).focus()
        self._show_rows()

    def action_mark(self) -> None:
        """Mark the selected request or take its mark away."""
        self.query_one(RequestTable).toggle_mark()
        self._show_rows()

    def action_mark_all(self) -> None:
        """Mark all requests shown, or unmark them."""
        self.query_one(RequestTable).toggle_marks()
        self._show_rows()

    def action_sort(self) -> None:
        """Sort by the next of the orders."""
        names = list(ORDERS)
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self._show_rows()

    def action_export(self) -> None:
        """Save the requests shown."""
        snapshot = self.console_app.snapshot
        if snapshot is not None:
            self.save_text("csv", partial(requests_csv, self._rows(snapshot)))

    @property
    def _meant(self) -> tuple[str, ...]:
        """The marked requests, or else the selected one."""
        table = self.query_one(RequestTable)
        return table.marked or ((table.selected,) if table.selected is not None else ())

    def action_cancel(self) -> None:
        """End the requests meant; more than one, or one the cursor came to by itself, only after asking."""
        ids, table = self._meant, self.query_one(RequestTable)
        if not ids:
            return
        if len(ids) == 1 and (table.marked or not table.slid):
            self._cancel(ids)
            return
        self.app.push_screen(CancelScreen(ids), lambda end: self._cancel(ids) if end else None)

    def _cancel(self, ids: tuple[str, ...]) -> None:
        host = self.console_app.host
        if host is not None:
            self.query_one(RequestTable).clear_marks()
            self.run_worker(self.tell(host.cancel_requests(CancelCommand(ids))), group="command")

    def action_tier(self) -> None:
        """Choose another tier for the requests meant."""
        snapshot, ids = self.console_app.snapshot, self._meant
        if not ids:
            return
        if snapshot is None or snapshot.gateway is None or not snapshot.gateway.tiers:
            self.console_app.say("The host doesn't tell which tiers there are.", "warning")
            return
        self.app.push_screen(TierScreen(ids, snapshot.gateway.tiers), lambda tier: self._move(ids, tier))

    def _move(self, ids: tuple[str, ...], tier: str | None) -> None:
        host = self.console_app.host
        if host is not None and tier is not None:
            self.query_one(RequestTable).clear_marks()
            self.run_worker(self.tell(host.set_tier(TierCommand(ids, tier))), group="command")

    def action_waterfall(self) -> None:
        """Show where the selected request's time goes."""
        app, selected = self.console_app, self.query_one(RequestTable).selected
        if app.host is not None and selected is not None:
            app.push_screen(WaterfallScreen(selected, app.host, lambda: app.snapshot))

    def commands(self) -> Iterable[SystemCommand]:
        """What the keys do, by name."""
        yield SystemCommand("Filter the requests", "By tier, key, lane, id or state", self.action_find)
        yield SystemCommand("Mark all requests shown", "To cancel or move them together", self.action_mark_all)
        yield SystemCommand("Cancel requests", "End the marked ones, or the selected one", self.action_cancel)
        yield SystemCommand("Change the tier of requests", "Of the marked ones, or the selected one", self.action_tier)
        yield SystemCommand("Waterfall", "Where the time of the selected request goes", self.action_waterfall)
        yield SystemCommand("Sort the requests", "By the next column", self.action_sort)
        yield SystemCommand("Export the requests", "Those shown, as CSV", self.action_export)
