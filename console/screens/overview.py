"""What the engine is doing, on one screen."""

import asyncio
from collections import deque
from functools import partial

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.events import DescendantBlur, DescendantFocus
from textual.worker import Worker

from console.flight_feed import FlightFeed, FlightView
from console.screens.base import HostScreen
from console.screens.panels import (
    CostPanel,
    DevicePanel,
    KvPanel,
    LatencyPanel,
    LoadPanel,
    RequestsPanel,
    StepsPanel,
)
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import HistoryPoint, Snapshot
from widgets.page_map import PageMap
from widgets.request_table import RequestTable

HISTORY_S = 120
"""Seconds of the past on the plots."""


class OverviewScreen(HostScreen):
    """Tiles of one snapshot, the past from the host's history, pages and steps from the flight record."""

    CSS_PATH = "overview.tcss"
    AUTO_FOCUS = ""

    def __init__(self) -> None:
        super().__init__()
        self._past: deque[HistoryPoint] = deque(maxlen=HISTORY_S)
        self._flight = FlightFeed()
        self._refreshing: Worker[None] | None = None

    def compose_body(self) -> ComposeResult:
        """Pages, steps and requests at the left, the numbers at the right."""
        with Vertical(id="left"):
            yield KvPanel()
            yield StepsPanel()
            yield RequestsPanel()
        with Vertical(id="right"):
            yield LatencyPanel()
            yield LoadPanel()
            yield DevicePanel()
            yield CostPanel()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show the numbers now; what has to be fetched for them follows when it's there."""
        self.query_one(KvPanel).show(snapshot.kv)
        self._show_requests()
        self.query_one(LatencyPanel).show(snapshot, self._past)
        self.query_one(LoadPanel).show(snapshot.load, self._past)
        self.query_one(DevicePanel).show(snapshot.device)
        self.query_one(CostPanel).show(snapshot.cost)
        if self._refreshing is None or self._refreshing.is_finished:
            self._refreshing = self.run_worker(partial(self._fetch, snapshot), group="overview")

    async def _fetch(self, snapshot: Snapshot) -> None:
        """Read the flight record and the past second."""
        if snapshot.flight:
            self._show_flight(await asyncio.to_thread(self._flight.read, snapshot.flight[0].path))
        else:
            self.query_one(KvPanel).say("No pages yet: the engine has no KV cache.")
        host = self.console_app.host
        since = self._past[-1].time if self._past else snapshot.time - HISTORY_S
        if host is None or snapshot.time - since < 1:
            return
        try:
            points = await host.history(since)
        except (HostUnreachable, HostError):
            return  # the status bar says so, and the next snapshot tries again
        if points:
            self._past.extend(points)
            self.query_one(LatencyPanel).show(snapshot, self._past)
            self.query_one(LoadPanel).show(snapshot.load, self._past)

    def _show_requests(self) -> None:
        """Show the rows, each marked in the colour its pages have on the map."""
        snapshot = self.console_app.snapshot
        if snapshot is not None:
            self.query_one(RequestsPanel).show(snapshot.load, snapshot.requests, self.query_one(PageMap))

    def _show_flight(self, view: FlightView) -> None:
        self.query_one(KvPanel).say(view.problem)
        if view.pages is not None:
            pages = view.pages
            self.query_one(PageMap).set_pages(pages.state, pages.owner, pages.refs, pages.owners)
            self.query_one(KvPanel).show_legend()
            self._show_requests()
        snapshot = self.console_app.snapshot
        self.query_one(StepsPanel).show(view, snapshot.marks if snapshot is not None else ())

    @on(RequestTable.RequestSelected)
    @on(DescendantFocus)
    @on(DescendantBlur)
    def highlight_selected(self) -> None:
        """The request under the cursor stands out in the page map while the table has the focus."""
        table = self.query_one(RequestTable)
        request_id = self.query_one(RequestsPanel).full_id(table.selected) if table.has_focus else None
        self.query_one(PageMap).highlight(request_id)
