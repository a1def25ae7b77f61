"""What the engine is doing, on one screen: the numbers of now, and the past on plots that can be stopped."""

import asyncio
from collections.abc import Iterable
from functools import partial

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical
from textual.events import DescendantBlur, DescendantFocus
from textual.worker import Worker

from console.export import history_csv
from console.flight_feed import FlightFeed, FlightView
from console.screens.base import HostScreen
from console.screens.panels import KvPanel, RequestsPanel, StepsPanel
from console.screens.panels_numbers import CostPanel, DevicePanel, LatencyPanel, LoadPanel, Trend
from console.screens.panels_time import TimePanel, clock
from console.time_axis import LONGEST_S, SECONDS_KEPT, Axis, Past, View
from engine_host.api.contract import HostApi, HostError, HostUnreachable
from engine_host.api.figures import Telemetry
from engine_host.api.types import ChangeRecord, Mark, Snapshot
from widgets.page_map import PageMap
from widgets.request_table import RequestTable

MINUTES_EVERY_S = 15
"""How often the ledger is asked for the minutes since; one that has ended is there soon after."""
HIGH = 38
"""Rows from which there is room for all lines of each tile."""


class OverviewScreen(HostScreen):
    """Tiles of one snapshot, the past from the host's history and ledger, pages and steps from the flight record."""

    CSS_PATH = "overview.tcss"
    VERTICAL_BREAKPOINTS = [*HostScreen.VERTICAL_BREAKPOINTS, (HIGH, "-high")]
    AUTO_FOCUS = ""
    # The page map and the table have arrows, + and - and Home and End of their own while they have the focus.
    BINDINGS = [
        Binding("space", "pause", "Pause", id="axis.pause", key_display="␣", tooltip="Stop the plots, or go on"),
        Binding("m", "measure", "Measure", id="axis.measure", tooltip="Plot the next measure"),
        Binding(
            "plus,equals_sign,right_square_bracket",
            "zoom(-1)",
            "Zoom in",
            id="axis.zoom-in",
            show=False,
            tooltip="A shorter time on the plots",
        ),
        Binding(
            "minus,left_square_bracket",
            "zoom(1)",
            "Zoom out",
            id="axis.zoom-out",
            show=False,
            tooltip="A longer time on the plots, up to a day",
        ),
        Binding(
            "left,comma,h", "scrub(-1)", "Back", id="axis.back", show=False, tooltip="Back by a quarter of the view"
        ),
        Binding("right,full_stop,l", "scrub(1)", "On", id="axis.on", show=False, tooltip="On by a quarter of the view"),
        Binding(
            "home,less_than_sign", "oldest", "Oldest", id="axis.oldest", show=False, tooltip="Where the data begins"
        ),
        Binding(
            "end,greater_than_sign", "newest", "Newest", id="axis.newest", show=False, tooltip="Follow the time again"
        ),
        Binding(
            "e", "export", "Export", id="overview.export", show=False, tooltip="Save the data behind the plots as CSV"
        ),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._past = Past()
        self._axis = Axis()
        self._telemetry: Telemetry | None = None
        self._trends: tuple[Trend, Trend] = ((), ())
        self._changes: tuple[Mark, ...] = ()
        self._flight = FlightFeed()
        self._refreshing: Worker[None] | None = None
        self._asked_second = 0.0
        self._asked_minutes = 0.0
        self._fetched_for = self._axis
        self._steps_until: float | None = None

    def compose_body(self) -> ComposeResult:
        """Pages, steps and requests at the left, the plots and the numbers at the right."""
        with Vertical(id="left"):
            yield KvPanel()
            yield StepsPanel()
            yield RequestsPanel()
        with Vertical(id="right"):
            yield TimePanel()
            yield LatencyPanel()
            yield LoadPanel()
            yield DevicePanel()
            yield CostPanel()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the numbers now; what has to be fetched for them follows when it's there."""
        self.query_one(KvPanel).show(snapshot.kv)
        self._show_requests()
        self.query_one(LatencyPanel).show(snapshot.latency)
        self.query_one(CostPanel).show(snapshot.cost)
        self._show_load(snapshot)
        self._start_fetch(snapshot)

    def _start_fetch(self, snapshot: Snapshot) -> None:
        if self._refreshing is None or self._refreshing.is_finished:
            self._refreshing = self.run_worker(partial(self._fetch, snapshot), group="overview")

    async def _fetch(self, snapshot: Snapshot) -> None:
        """Read the flight record, and once a second what the host measured in it."""
        if snapshot.flight:
            self._show_flight(await asyncio.to_thread(self._flight.read, snapshot.flight[0].path))
        else:
            self.query_one(KvPanel).say("No pages yet: the engine has no KV cache.")
        host = self.console_app.host
        if host is None or snapshot.time - self._asked_second < 1:
            return
        self._asked_second = snapshot.time
        axis = self._axis
        wanted = axis.live or axis != self._fetched_for  # what stands still keeps what it shows, and needs no more
        try:
            if wanted:
                known = self._past.seconds
                since = known[-1].time if known else snapshot.time - SECONDS_KEPT
                self._past.add_seconds(await host.history(since))
            self._show_newest()
            self._show_telemetry(await host.telemetry())
            if wanted:
                await self._fetch_minutes(host)
                self._fetched_for = axis
        except (HostUnreachable, HostError):
            return  # the status bar says so, and the next snapshot tries again

    async def _fetch_minutes(self, host: HostApi) -> None:
        """Ask the ledger now and then for what the seconds don't reach back to, where that is on display."""
        start, _ = self._axis.window(self._now)
        if not self._past.reaches(start) and self._now - self._asked_minutes >= MINUTES_EVERY_S:
            await self._ask_minutes(host)
            self._show_past()

    async def _ask_minutes(self, host: HostApi) -> None:
        """Ask for the minutes since the last one known, and what changed in all that time."""
        now, minutes = self._now, self._past.minutes
        self._past.add_minutes(await host.past(minutes[-1].time + 1 if minutes else now - LONGEST_S, now))
        self._changes = tuple(_mark(change) for change in await host.changes() if change.outcome != "cancelled")
        self._asked_minutes = now

    @property
    def _now(self) -> float:
        """The time up to which the axis goes: that of the newest data while it follows, so that none of it is empty."""
        newest, snapshot = self._past.newest, self.console_app.snapshot
        if self._axis.live and newest is not None:
            return newest
        return snapshot.time if snapshot is not None else 0.0

    @property
    def _limit(self) -> float:
        """How far back the axis goes: to the oldest data, or as long as the ledger hasn't been asked, a day."""
        if not self._asked_minutes:
            return self._now - LONGEST_S
        return self._past.oldest if self._past.oldest is not None else self._now

    def view(self) -> View:
        """The part of the past on display."""
        return self._past.view(self._axis, self._now)

    def _show_newest(self) -> None:
        """Let the plots follow the time, or where they stand still, say for how long."""
        if self._axis.live:
            self._show_past()
        else:
            view = self.view()
            self.query_one(TimePanel).show_axis(view, self._axis, self._now, self._data_note(view))

    def _show_past(self) -> None:
        """Draw the part of the past on display."""
        snapshot = self.console_app.snapshot
        if snapshot is None:
            return
        view = self.view()
        recent = {mark.time for mark in snapshot.marks}
        marks = (*(mark for mark in self._changes if mark.time not in recent), *snapshot.marks)
        self.query_one(TimePanel).show(view, self._axis, self._now, snapshot, marks, self._data_note(view))
        self._trends = view.values("decode_tps"), view.values("prefill_tps")
        self._show_load(snapshot)

    def _show_load(self, snapshot: Snapshot) -> None:
        """What is in part of the snapshot and in part fetched: load and device."""
        telemetry = self._telemetry
        self.query_one(LoadPanel).show(snapshot.load, self._trends)
        self.query_one(LoadPanel).show_fill(telemetry.steps if telemetry is not None else None, snapshot.kv)
        self.query_one(DevicePanel).show(snapshot.device, len(telemetry.devices) if telemetry is not None else 1)

    def _data_note(self, view: View) -> str:
        """How far back there is data, where the view begins before it."""
        oldest = self._past.oldest
        if oldest is None:
            return "no data yet"
        return f"data since {clock(oldest, self._now)}" if view.start < oldest else ""

    def _show_telemetry(self, telemetry: Telemetry) -> None:
        self._telemetry = telemetry
        self.query_one(LatencyPanel).show_parts(telemetry.parts)
        self.query_one(DevicePanel).show_roofline(telemetry.roofline)
        self.query_one(CostPanel).show_bill(telemetry.bill)
        if (snapshot := self.console_app.snapshot) is not None:
            self._show_load(snapshot)

    def _show_requests(self) -> None:
        """Show the rows, each marked in the colour its pages have on the map."""
        snapshot = self.console_app.snapshot
        if snapshot is not None:
            self.query_one(RequestsPanel).show(snapshot.load, snapshot.requests, self.query_one(PageMap))

    def _show_flight(self, flight: FlightView) -> None:
        self.query_one(KvPanel).say(flight.problem)
        if flight.pages is not None:
            pages = flight.pages
            self.query_one(PageMap).set_pages(pages.state, pages.owner, pages.refs, pages.owners)
            self.query_one(KvPanel).show_legend()
            self._show_requests()
        snapshot, end = self.console_app.snapshot, self._axis.end
        if end is None or end != self._steps_until:
            shown = flight if end is None else flight.until(end)
            marks = snapshot.marks if snapshot is not None else ()
            self.query_one(StepsPanel).show(shown, marks, "" if end is None else clock(end, self._now))
            self._steps_until = end

    def _set_axis(self, axis: Axis) -> None:
        """Show another part of the past, and say what keeps showing now."""
        self._axis = axis
        for panel in (self.query_one(KvPanel), self.query_one(RequestsPanel)):
            panel.entitle("" if axis.live else "now")
        self._show_past()
        self._asked_second = 0.0
        if (snapshot := self.console_app.snapshot) is not None:
            self._start_fetch(snapshot)

    def action_pause(self) -> None:
        """Stop the plots, or let them follow the time again."""
        axis = self._axis.toggled(self._now)
        self._fetched_for = axis
        self._set_axis(axis)

    def action_zoom(self, step: int) -> None:
        """Show a longer or a shorter time."""
        self._set_axis(self._axis.zoomed(step))

    def action_scrub(self, quarters: int) -> None:
        """Go back or on."""
        self._set_axis(self._axis.moved(quarters, self._now, self._limit))

    def action_oldest(self) -> None:
        """Go to where the data begins, once the ledger has said where that is."""
        self.run_worker(self._go_to_oldest(), group="axis", exclusive=True)

    async def _go_to_oldest(self) -> None:
        host = self.console_app.host
        if host is not None and not self._asked_minutes:
            try:
                await self._ask_minutes(host)
            except (HostUnreachable, HostError) as error:
                self.console_app.say(str(error), "warning")
        self._set_axis(self._axis.at_oldest(self._now, self._limit))

    def action_newest(self) -> None:
        """Follow the time."""
        self._set_axis(Axis(self._axis.span_s))

    def action_measure(self) -> None:
        """Plot what comes next."""
        self.query_one(TimePanel).show_next()
        self._show_past()

    @on(TimePanel.Roomier)
    def show_past_anew(self) -> None:
        """Fill the plots there is room for."""
        self._show_past()

    def action_export(self) -> None:
        """Save the points on display."""
        self.save_text("csv", partial(history_csv, self.view().points))

    def commands(self) -> Iterable[SystemCommand]:
        """What the keys do, by name."""
        yield SystemCommand("Pause or resume the plots", "Stop the time axis, or follow the time", self.action_pause)
        yield SystemCommand("Plot the next measure", "Latency, tokens, pages, device, cost", self.action_measure)
        yield SystemCommand("Zoom in on the time axis", "A shorter time", partial(self.action_zoom, -1))
        yield SystemCommand("Zoom out on the time axis", "A longer time, up to a day", partial(self.action_zoom, 1))
        yield SystemCommand("Go to the oldest data", "Where the time axis begins", self.action_oldest)
        yield SystemCommand("Go to the newest data", "Follow the time again", self.action_newest)
        yield SystemCommand("Export the plots' data", "As CSV, all points on display", self.action_export)

    @on(RequestTable.RequestSelected)
    @on(DescendantFocus)
    @on(DescendantBlur)
    def highlight_selected(self) -> None:
        """The request under the cursor stands out in the page map while the table has the focus."""
        table = self.query_one(RequestTable)
        request_id = self.query_one(RequestsPanel).full_id(table.selected) if table.has_focus else None
        self.query_one(PageMap).highlight(request_id)


def _mark(change: ChangeRecord) -> Mark:
    """A change as it's marked on the axis."""
    return Mark(change.time, change.kind, "recovery" if change.kind == "recovery" else change.new)
