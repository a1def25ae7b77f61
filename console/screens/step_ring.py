"""The steps of the engine around a moment: how long each took, with what, and for whom."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Static

from console.step_record import LONG, StepLine, StepRecord, StepShare, read_step_record
from widgets import palette, units
from widgets.request_table import short_id
from widgets.table import Column, Table, beginning
from widgets.text import literal, one_line

if TYPE_CHECKING:
    from console.app import ConsoleApp

NO_RECORD = "The engine writes no flight record."
UNNAMED = "n/a (old)"

SHARE_COLUMNS: tuple[Column[StepShare], ...] = (
    Column("request", 10, 9, lambda share, width: _request(share, width), True, widest=36),
    Column("part", 9, 8, lambda share, width: share.kind, True),
    Column("tokens", 7, 7, lambda share, width: units.count(share.tokens, width)),
    Column("context", 8, 6, lambda share, width: units.count(share.context, width)),
)


def _request(share: StepShare, width: int) -> str:
    return beginning(UNNAMED if share.request is None else short_id(share.request), width)


def open_step_ring(
    app: ConsoleApp, step: int | None = None, request: str | None = None, time: float | None = None
) -> None:
    """Show the ring at this step, else at this moment (Unix time), else at its end; `request` is the one to follow."""
    snapshot = app.snapshot
    if snapshot is None or not snapshot.flight:
        app.say("There is no step ring: the engine isn't running.", "warning")
        return
    app.push_screen(StepRingScreen(snapshot.flight[0].path, step, request, time))


class StepRingScreen(ModalScreen[None]):
    """The ring as it was when it was read, so that the moment looked at doesn't leave it meanwhile."""

    CSS_PATH = "step_ring.tcss"
    HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (110, "-wide")]
    BINDINGS = [
        Binding("escape,q,o", "leave", "Close", id="ring.close", tooltip="Back to the screen"),
        Binding("n", "long(1)", "Long step", id="ring.long", tooltip="The next long step"),
        Binding("N,p", "long(-1)", "Long step before", id="ring.long-before", tooltip="The long step before"),
        Binding("f", "follow", "Follow", id="ring.follow", tooltip="Only the steps of the request, or all of them"),
        Binding("r", "read", "Read anew", id="ring.read", tooltip="Read the ring as it is now"),
    ]

    def __init__(
        self, path: str, step: int | None = None, request: str | None = None, time: float | None = None
    ) -> None:
        """`path` is that of the flight record; the rest is what to look at first."""
        super().__init__()
        self._path = path
        self._step, self._request, self._time = step, request, time
        self._record: StepRecord | None = None
        self._following: str | None = None

    def compose(self) -> ComposeResult:
        """The steps; the requests in the selected one; how it stands."""
        with Vertical(id="ring", classes="dialog") as dialog:
            dialog.border_title = "Step ring"
            yield Static("reading the ring …", id="ring-standing", markup=False)
            with Vertical(id="ring-tables"):
                yield Table(self._columns(), lambda step: step.number, mark=self._mark, id="ring-steps")
                with Vertical(id="ring-requests", classes="panel"):
                    yield Table(
                        SHARE_COLUMNS,
                        lambda share: (share.serial, share.kind),
                        empty="no request is recorded for this step",
                        id="ring-shares",
                    )

    def on_mount(self) -> None:
        """Read the ring."""
        self.query_one("#ring-steps").focus()
        self.action_read()

    @property
    def _steps(self) -> Table[StepLine]:
        return self.query_one("#ring-steps", Table)

    def _columns(self) -> list[Column[StepLine]]:
        return [
            Column("step", 9, 12, lambda step, width: units.count(step.number, width)),
            Column("ago", 9, 9, lambda step, width: self._ago(step, width)),
            Column("took", 8, 11, lambda step, width: units.milliseconds(step.took, width)),
            Column("schedule", 8, 5, lambda step, width: units.milliseconds(step.schedule, width)),
            Column("execute", 8, 6, lambda step, width: units.milliseconds(step.execute, width)),
            Column("update", 8, 4, lambda step, width: units.milliseconds(step.update, width)),
            Column("prefill", 7, 10, lambda step, width: units.count(step.prefill, width)),
            Column("decode", 6, 10, lambda step, width: units.count(step.decode, width)),
            Column("budget", 6, 1, lambda step, width: units.count(step.budget or None, width)),
            Column("running", 7, 3, lambda step, width: units.count(step.running, width)),
            Column("waiting", 7, 3, lambda step, width: units.count(step.waiting, width)),
            Column("preempted", 9, 8, lambda step, width: units.count(step.preempted, width)),
            Column("ended", 5, 0, lambda step, width: units.count(step.finished, width)),
            Column("pages", 7, 2, lambda step, width: units.count(step.used_blocks, width)),
        ]

    def _ago(self, step: StepLine, width: int) -> str:
        return units.duration(max(0.0, self._record.read_at - step.time) if self._record else None, width)

    def _mark(self, step: StepLine) -> tuple[str, str]:
        """The step asked for, a preemption, a long step."""
        if step.number == self._step:
            return "▶", palette.GOOD
        if step.preempted:
            return "✖", palette.BAD
        long = self._record is not None and step.took > self._record.long_from
        return ("▲", palette.WARN) if long else ("", "")

    def action_read(self) -> None:
        """Read the ring as it is now."""
        self.run_worker(self._read(), group="ring", exclusive=True)

    async def _read(self) -> None:
        try:
            self._record = await asyncio.to_thread(read_step_record, self._path)
        except FileNotFoundError:
            self._say(NO_RECORD)
            return
        except Exception as error:
            # Whatever is wrong with the file, the screen says so.
            self._say(str(error) or "The flight record can't be read.")
            return
        self._show_steps()
        at = self._wanted(self._record)
        self._say(self._standing(self._record, at))
        shown = len(self._record.steps) - 1 if at is None else at
        self.call_after_refresh(lambda: self._steps.select(shown, center=True))  # the sentence may take a row more
        self._show_shares()

    def _wanted(self, record: StepRecord) -> int | None:
        """Where in the ring that is which was asked for."""
        if self._step is not None:
            return record.at_step(self._step)
        return record.at_time(self._time) if self._time is not None else None

    def _standing(self, record: StepRecord, at: int | None) -> str:
        if not record.steps:
            return "The engine has made no step yet."
        first, last = record.steps[0], record.steps[-1]
        held = f"the ring holds steps {units.count(first.number)} to {units.count(last.number)}"
        if at is None and self._step is not None:
            gone = "has left the ring" if self._step < first.number else "is not one of this engine's"
            return f"Step {units.count(self._step)} {gone}: {held}."
        if at is None and self._time is not None:
            return f"That moment has left the ring: {held}."
        median = units.milliseconds(record.long_from / LONG)
        steps = f"Steps {units.count(first.number)} to {units.count(last.number)}"
        return f"{steps} · median {median} · ▲ over {LONG:.0f} × that · ✖ preempted"

    def _say(self, sentence: str) -> None:
        self.query_one("#ring-standing", Static).update(Content(literal(one_line(sentence))))
        self._show_hints()

    def _show_steps(self) -> None:
        if self._record is None:
            return
        steps = self._record.steps if self._following is None else self._record.steps_of(self._following)
        self._steps.set_rows(steps, empty="no step")
        self._show_hints()

    def _show_hints(self) -> None:
        dialog = self.query_one("#ring")
        of = "" if self._following is None else f"  steps of {one_line(short_id(self._following))}"
        dialog.border_title = Content(f"Step ring{of}")
        follow = "f follow the request" if self._following is None else "f all steps"
        dialog.border_subtitle = Content(f"n/p long steps · {follow} · r read anew · esc closes")

    @on(Table.Selected, "#ring-steps")
    def _show_shares(self) -> None:
        step = self._steps.selected_row
        shares = self._record.shares(step.number) if self._record is not None and step is not None else []
        self.query_one("#ring-shares", Table).set_rows(shares)
        self.query_one("#ring-requests").border_title = Content(
            "Requests" if step is None else f"Requests of step {units.count(step.number)}"
        )

    def action_long(self, way: int) -> None:
        """Go to the next long step in this direction."""
        if self._record is None:
            return
        rows, longest = self._steps.rows, self._record.long_from
        at = self._steps.cursor + way
        while 0 <= at < len(rows):
            if rows[at].took > longest:
                self._steps.select(at, center=True)
                return
            at += way
        self.notify("No long step is further " + ("on." if way > 0 else "back."), markup=False)

    def action_follow(self) -> None:
        """Show only the steps of the selected request, first of the one asked for; or all steps again."""
        if self._following is not None:
            self._following = None
            self._show_steps()
            return
        shares = self.query_one("#ring-shares", Table)
        names = [share.request for share in shares.rows]
        chosen: StepShare | None = shares.selected_row
        request = self._request if self._request in names and not shares.has_focus else None
        request = request or (chosen.request if chosen is not None else None)
        if request is None:
            self.notify("This step has no request that can be named.", markup=False)
            return
        self._following = request
        self._show_steps()

    def action_leave(self) -> None:
        """Back to the screen."""
        self.dismiss(None)
