"""The overview's tiles of what is live: pages, steps, requests. None knows of the others."""

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.containers import Vertical
from textual.content import Content
from textual.widgets import Static

from console.screens.request_lines import to_line
from engine_host.api.types import KvCache, Load, Mark, RequestRow
from widgets import marks, palette, units
from widgets.page_map import CACHED, FREE, USED, PageMap
from widgets.request_table import RequestLine, RequestTable, short_id
from widgets.status_bar import Segment, StatusBar
from widgets.steps import StepBars
from widgets.text import literal

if TYPE_CHECKING:
    from console.flight_feed import FlightView

_LEGEND_REQUESTS = 8
_SMALLEST_KV = 8
_KV_FRAME = 4  # border, totals and legend
_LEGEND_STATES = (
    ("#", "shared", palette.SHARED_PAGE),
    ("░", "cached", palette.CACHED_PAGE),
    ("·", "free", palette.FREE_PAGE),
)
"""How the map draws a page without colour, what it is, and its colour."""
_PAGE_STATES = {FREE: "free", USED: "used", CACHED: "cached"}


class Panel(Vertical):
    """A framed tile."""

    def __init__(self, title: str, *, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self._title = Content(title)
        self.border_title = self._title

    def entitle(self, what: str, color: str = "$foreground-muted") -> None:
        """Say something about the tile behind its title; nothing where it's empty."""
        self.border_title = Content.assemble(self._title, (f"  {what}", color)) if what else self._title


def events(drawn: Sequence[Mark], times: Sequence[float]) -> list[marks.Event]:
    """The marks as events on an axis of these Unix times (rising), each at the first time not before it.

    One that lies outside is left out.
    """
    found = [(bisect_left(times, mark.time), mark) for mark in drawn if times and mark.time >= times[0]]
    return [marks.Event(at, mark.label, mark.kind) for at, mark in found if at < len(times)]


class KvPanel(Panel):
    """The page map and its totals."""

    def __init__(self) -> None:
        super().__init__("KV pages", id="kv")

    def compose(self) -> ComposeResult:
        """Totals above the map; a sentence in the map's place while there is none."""
        yield StatusBar(id="kv-totals")
        yield PageMap(id="pages")
        yield StatusBar(id="kv-legend")
        yield Static("", id="kv-problem", classes="problem", markup=False)

    def show(self, kv: KvCache | None) -> None:
        """Show the totals; `n/a` while the engine has no cache."""
        self.query_one("#kv-totals", StatusBar).set_segments(_kv_totals(kv))
        # No taller than the map needs, with two pages a cell; the steps and the requests have use for the rest.
        width = max(1, self.content_size.width)
        rows = 0 if kv is None else -(-kv.pages // (2 * width))
        self.styles.max_height = max(_SMALLEST_KV, rows + _KV_FRAME)

    def show_legend(self) -> None:
        """Name the requests that hold most pages, as many as fit, and what the other marks mean."""
        plain = self.app.no_color
        holders = [
            Segment(
                f"{holder.letter if plain else '■'} {short_id(holder.request_id)[:8]} {units.count(holder.pages)}",
                priority=-rank,
                color=holder.color,
            )
            for rank, holder in enumerate(self.query_one(PageMap).holders()[:_LEGEND_REQUESTS])
        ]
        states = [
            Segment(f"{mark if plain else '■'} {name}", priority=-_LEGEND_REQUESTS - rank, color=color)
            for rank, (mark, name, color) in enumerate(_LEGEND_STATES)
        ]
        self.query_one("#kv-legend", StatusBar).set_segments([*holders, *states])

    @on(PageMap.PageSelected)
    def tell_page(self, event: PageMap.PageSelected) -> None:
        """Say what the page pointed at holds."""
        pages = f"page {units.count(event.page)}"
        if event.pages > 1:
            pages = f"pages {units.count(event.page)}–{units.count(event.page + event.pages - 1)}"
        held = ", ".join(short_id(owner)[:8] for owner in event.owners[:3]) or _PAGE_STATES[event.state]
        shared = f" · held by {event.refs}" if event.refs > 1 else ""
        self.border_subtitle = Content(literal(f"{pages} · {held}{shared}"))

    def say(self, problem: str) -> None:
        """Show why there is no map, or (empty) the map."""
        note = self.query_one("#kv-problem", Static)
        note.update(Content(literal(problem)))
        note.display = bool(problem)
        self.query_one(PageMap).display = not problem
        self.query_one("#kv-legend").display = not problem


def _kv_totals(kv: KvCache | None) -> list[Segment]:
    if kv is None:
        return [Segment("n/a · no KV cache yet", color=palette.MUTED)]
    segments = [
        Segment(f"{units.percent(kv.used / kv.pages)} used", priority=9),
        Segment(f"{units.percent(kv.cached / kv.pages)} cached", priority=6),
        Segment(f"{units.percent(kv.free / kv.pages)} free", priority=5),
        Segment(f"hit {units.percent(kv.hit_ratio)}", priority=7),
        Segment(f"{units.count(kv.pages)} × {kv.page_tokens} tokens", f"{units.count(kv.pages)} pages", priority=4),
    ]
    if kv.page_bytes is not None:
        segments.append(Segment(units.bytes_(kv.pages * kv.page_bytes), priority=1))
    return segments


class StepsPanel(Panel):
    """Prefill and decode tokens of each step."""

    def __init__(self) -> None:
        super().__init__("Tokens per step", id="steps")
        self.border_title = Content.assemble(
            "Tokens per step  ", ("▲ prefill", palette.series(1)), "  ", ("▼ decode", palette.series(0))
        )

    def compose(self) -> ComposeResult:
        """The bars."""
        yield StepBars()

    def show(self, flight: "FlightView", drawn: Sequence[Mark], stopped: str = "") -> None:
        """Show the steps, and which kinds of marks are among them; `stopped` is the time they end at, where not now."""
        bars = self.query_one(StepBars)
        bars.set_steps(flight.prefill, flight.decode, flight.budget, events(drawn, flight.time.tolist()))
        kinds = marks.legend(bars.events_in_view)
        if stopped:
            kinds.insert(0, (f"until {stopped}" if len(flight.time) else f"none kept before {stopped}", palette.WARN))
        self.border_subtitle = Content("  ").join(Content.styled(*kind) for kind in kinds)


class RequestsPanel(Panel):
    """The live requests."""

    def __init__(self) -> None:
        super().__init__("Requests", id="requests")
        self._ids: dict[str, str] = {}

    def compose(self) -> ComposeResult:
        """The table."""
        yield RequestTable()

    def show(self, load: Load, rows: Sequence[RequestRow], pages: PageMap) -> None:
        """Show the rows, marked in the colours of their pages."""
        self._ids = {short_id(row.id): row.id for row in rows}
        colors = {short: pages.owner_color(full) for short, full in self._ids.items()}
        self.query_one(RequestTable).set_requests([_line(row) for row in rows], colors)
        self.border_subtitle = Content(f"{load.running} running · {load.waiting} waiting")

    def full_id(self, shown: str | None) -> str | None:
        """The request that a row of the table stands for."""
        return self._ids.get(shown) if shown is not None else None


def _line(row: RequestRow) -> RequestLine:
    return to_line(row)._replace(id=short_id(row.id))
