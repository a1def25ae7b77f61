"""Where the money goes, and on its other side where the time goes: the bill, costs and latencies of groups."""

from collections.abc import Iterable

from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.screens import cost_lines, latency_lines
from console.screens.latency_lines import WINDOW_NAMES, LatencyRow
from console.screens.measured import MeasuredScreen
from engine_host.api.figures import WINDOWS, Telemetry
from widgets import units
from widgets.facts import Facts
from widgets.split_bar import SplitBar
from widgets.status_bar import Segment, StatusBar
from widgets.table import Table

NO_COSTS = "n/a: no request has ended yet"
NO_LATENCIES = "n/a: the host tells no latencies"


class CostScreen(MeasuredScreen):
    """Two sides, of money and of time; the same keys group and sort both."""

    CSS_PATH = "cost.tcss"
    AUTO_FOCUS = "#costs"
    BINDINGS = [
        Binding("v", "side", "Latency/bill", id="cost.side", tooltip="The other side: latencies, or the bill"),
        Binding("g", "group", "Group", id="cost.group", tooltip="Group by the next of tier, key, model, profile, hour"),
        Binding("o", "sort", "Sort", id="cost.sort", tooltip="Sort the costs by the next column"),
        Binding("w", "window", "Window", id="cost.window", tooltip="The next window of the latencies"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._latency = False
        self._groups = [0, 0]
        self._order = "spent"
        self._window = 1

    def compose_figures(self) -> ComposeResult:
        """Both sides; one is on display."""
        with Vertical(id="money"):
            with Vertical(id="bill", classes="panel") as bill:
                bill.border_title = "Bill"
                yield StatusBar(id="bill-total")
                yield Static("", id="bill-price", markup=False)
                yield SplitBar(id="bill-split")
                yield StatusBar(id="bill-kinds")
                yield StatusBar(id="bill-also")
            with Vertical(id="costs-panel", classes="panel"):
                yield Table(
                    cost_lines.COLUMNS,
                    lambda line: (line.kind, line.name),
                    empty=NO_COSTS,
                    id="costs",
                )
        with Vertical(id="time"):
            with Vertical(id="latency-panel", classes="panel"):
                yield Table(
                    latency_lines.COLUMNS,
                    lambda row: (row.kind, row.name),
                    empty=NO_LATENCIES,
                    id="latencies",
                )
            with VerticalScroll(id="where", can_focus=False):
                with Vertical(id="ttft-panel", classes="panel") as parts:
                    parts.border_title = "TTFT, by parts"
                    yield SplitBar(id="ttft-split")
                with Vertical(id="length-panel", classes="panel") as lengths:
                    lengths.border_title = "Prefill p99, by prompt tokens"
                    lengths.border_subtitle = "last 10 min"
                    yield Facts(id="lengths")

    def on_mount(self) -> None:
        """Show the bill first."""
        super().on_mount()
        self._show_side()

    def show_figures(self, figures: Telemetry) -> None:
        """Show both sides, so that turning costs nothing."""
        self._show_bill(figures)
        kind = cost_lines.GROUPS[self._groups[0]]
        column = cost_lines.ORDERS[self._order][0] if self._order in cost_lines.ORDERS else "group"
        self.query_one("#costs", Table).set_rows(cost_lines.grouped(figures.costs, kind, self._order), column)
        panel = self.query_one("#costs-panel")
        panel.border_title = Content(f"Cost by {kind}")
        panel.border_subtitle = Content(f"by {self._order} · o sorts · g groups")
        self._show_latencies(figures)

    def _show_bill(self, figures: Telemetry) -> None:
        bill, time = figures.bill, figures.time
        self.query_one("#bill").border_subtitle = Content(
            f"since start, {units.duration(max(0.0, time - bill.since))} ago"
        )
        self.query_one("#bill-total", StatusBar).set_segments(cost_lines.total_segments(bill))
        self.query_one("#bill-price", Static).update(cost_lines.price_text(bill))
        self.query_one("#bill-split", SplitBar).set_parts(
            cost_lines.bill_parts(bill), "n/a: no device has been paid for"
        )
        self.query_one("#bill-kinds", StatusBar).set_segments(cost_lines.kind_segments(bill))
        saved = next((line.saved_usd for line in figures.costs if line.kind == "all"), None)
        self.query_one("#bill-also", StatusBar).set_segments(
            [
                Segment(f"idle costs {cost_lines.idle_text(bill, time)}", priority=2),
                Segment(f"the prefix cache saved est. {units.usd(saved)}", f"cache saved est. {units.usd(saved)}", 1),
                *cost_lines.ledger_segments(figures.ledger),
            ]
        )

    def _show_latencies(self, figures: Telemetry) -> None:
        kind, window = latency_lines.GROUPS[self._groups[1]], WINDOWS[self._window]
        rows: list[LatencyRow] = latency_lines.latency_rows(figures.latencies, kind, window)
        self.query_one("#latencies", Table).set_rows(rows)
        panel = self.query_one("#latency-panel")
        panel.border_title = Content(f"Latency by {kind} · {WINDOW_NAMES[window]}")
        panel.border_subtitle = Content("w another window · g groups")
        parts = next((each for each in figures.parts if each.window == window), None)
        told = latency_lines.ttft_text(parts)
        self.query_one("#ttft-split", SplitBar).set_parts(latency_lines.ttft_split(parts), told)
        self.query_one("#ttft-panel").border_subtitle = Content(told if parts is not None else WINDOW_NAMES[window])
        self.query_one("#lengths", Facts).set_facts(latency_lines.length_facts(figures.prefill_by_length))

    def _show_side(self) -> None:
        self.query_one("#money").display = not self._latency
        self.query_one("#time").display = self._latency
        self.query_one("#latencies" if self._latency else "#costs").focus()
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Sorting is for costs, windows are for latencies."""
        return {"sort": not self._latency, "window": self._latency}.get(action, True) or None

    def action_side(self) -> None:
        """Turn to latencies, or back to the bill."""
        self._latency = not self._latency
        self._show_side()

    def action_group(self) -> None:
        """Group by the next kind."""
        kinds = latency_lines.GROUPS if self._latency else cost_lines.GROUPS
        self._groups[self._latency] = (self._groups[self._latency] + 1) % len(kinds)
        self._show_again()

    def action_sort(self) -> None:
        """Sort the costs by the next column, or by name."""
        names = [*cost_lines.ORDERS, cost_lines.BY_NAME]
        self._order = names[(names.index(self._order) + 1) % len(names)]
        self._show_again()

    def action_window(self) -> None:
        """Show the latencies of the next window."""
        self._window = (self._window + 1) % len(WINDOWS)
        self._show_again()

    def _show_again(self) -> None:
        if self.figures is not None:
            self.show_figures(self.figures)

    def commands(self) -> Iterable[SystemCommand]:
        """What the keys do, by name."""
        yield SystemCommand("Latencies, or the bill", "Turn the Cost screen to its other side", self.action_side)
        yield SystemCommand("Group", "By the next of tier, key, model, profile, hour", self.action_group)
        if self._latency:
            yield SystemCommand("Another window", "Of the latencies", self.action_window)
        else:
            yield SystemCommand("Sort the costs", "By the next column", self.action_sort)
