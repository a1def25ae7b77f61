"""Where the time of one request goes, followed while it runs."""

from collections.abc import Callable
from typing import TYPE_CHECKING, cast

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static
from textual.worker import Worker

from engine_host.api.contract import HostApi, HostError, HostUnreachable
from engine_host.api.types import Snapshot, Waterfall
from widgets import units
from widgets.status_bar import Segment, StatusBar
from widgets.text import one_line
from widgets.waterfall import Part, WaterfallView

if TYPE_CHECKING:
    from console.app import ConsoleApp

POLL_S = 1.0
"""Seconds from one look at the request to the next."""


class WaterfallScreen(ModalScreen[None]):
    """One request: what it is, its bars, and how it stands. Asks the host anew as the snapshots come."""

    BINDINGS = [
        Binding("escape,enter,q", "leave", "Close", id="waterfall.close", tooltip="Back to the table"),
        Binding("z", "zoom", "Zoom", id="waterfall.zoom", tooltip="The time to the first token alone, or all of it"),
        Binding("o", "ring", "Step ring", id="waterfall.ring", tooltip="The scheduler's steps that worked for it"),
    ]

    def __init__(self, request_id: str, host: HostApi, latest: Callable[[], Snapshot | None]) -> None:
        """`latest` answers the last snapshot of the host."""
        super().__init__()
        self._request = request_id
        self._host = host
        self._latest = latest
        self._known: Waterfall | None = None
        self._asked_at = float("-inf")
        self._ended = False
        self._zoomed = False
        self._fetching: Worker[None] | None = None

    def compose(self) -> ComposeResult:
        """What the request is, above the bars; how it stands, below them."""
        with Vertical(classes="dialog", id="waterfall") as dialog:
            dialog.border_title = Content(f"Request {one_line(self._request)}")
            yield StatusBar(id="what")
            yield WaterfallView(id="bars")
            yield Static("asking the host …", id="standing", markup=False)

    def on_mount(self) -> None:
        """Look now, and with the snapshots."""
        self.query_one(WaterfallView).focus()
        self._show_keys()
        self.watch(self.app, "snapshot", self._look, init=False)
        self._look()

    def _look(self) -> None:
        snapshot = self._latest()
        time = snapshot.time if snapshot is not None else 0.0
        busy = self._fetching is not None and not self._fetching.is_finished
        if self._ended or busy or abs(time - self._asked_at) < POLL_S:
            return
        self._asked_at = time
        self._fetching = self.run_worker(self._fetch(), group="waterfall")

    async def _fetch(self) -> None:
        standing = self.query_one("#standing", Static)
        try:
            self._known = await self._host.waterfall(self._request)
        except HostUnreachable as error:
            standing.update(Content(one_line(str(error))))  # the next snapshot tries again
            return
        except HostError as error:
            self._ended = True
            standing.update(Content(one_line(str(error))))
            return
        self._ended = self._known.finish_reason is not None or any(span.name == "done" for span in self._known.spans)
        self.query_one("#what", StatusBar).set_segments(_what(self._known))
        standing.update(_standing(self._known, self._ended))
        self._draw()

    def _draw(self) -> None:
        known = self._known
        if known is None:
            return
        snapshot = self._latest()
        ages = [row.age_s for row in snapshot.requests if row.id == known.id] if snapshot is not None else []
        parts = [Part(span.name, span.start, span.end, span.tokens, span.note) for span in known.spans]
        first = [span.start for span in known.spans if span.name == "decode"]
        self.query_one(WaterfallView).set_parts(
            parts,
            0.0 if self._ended else max(ages, default=0.0),
            known.chunks,
            first[0] if self._zoomed and first else None,
        )

    def action_zoom(self) -> None:
        """Show the time to the first token alone, or all of it again."""
        self._zoomed = not self._zoomed
        self._show_keys()
        self._draw()

    def _show_keys(self) -> None:
        zoom = "z all of it" if self._zoomed else "z to the first token"
        self.query_one("#waterfall").border_subtitle = Content(f"{zoom} · o its steps · esc closes")

    def action_ring(self) -> None:
        """Show the steps that worked for the request."""
        from console.screens.step_ring import open_step_ring

        open_step_ring(cast("ConsoleApp", self.app), request=self._request)

    def action_leave(self) -> None:
        """Back to the table."""
        self.dismiss(None)


def _what(known: Waterfall) -> list[Segment]:
    return [
        Segment(f"tier {known.tier or units.NOT_AVAILABLE}", priority=5),
        Segment(f"key {known.key or units.NOT_AVAILABLE}", priority=4),
        Segment(f"lane {known.lane or units.NOT_AVAILABLE}", priority=3),
        Segment(f"prompt {units.count(known.prompt_tokens)} tokens", f"prompt {units.count(known.prompt_tokens)}", 6),
        Segment(f"generated {units.count(known.output_tokens)} tokens", f"{units.count(known.output_tokens)} out", 7),
        Segment(f"{units.count(len(known.chunks))} prefill steps" if known.chunks else "", priority=1),
    ]


def _standing(known: Waterfall, ended: bool) -> Content:
    if ended:
        return Content(f"Ended: {one_line(known.finish_reason or 'the host does not say why')}.")
    return Content("Running; looked at once a second.")
