"""What is wrong with the engine and the machine, what shows it, and what to do about it."""

from collections.abc import Iterable

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.screens.measured import MeasuredScreen
from console.screens.step_ring import open_step_ring
from engine_host.api.contract import HostApi
from engine_host.api.figures import Finding
from widgets import palette, units
from widgets.request_table import short_id
from widgets.table import Column, Table, beginning
from widgets.text import one_line

NOTHING = "Nothing found."

_MARKS = {"problem": ("✖", palette.BAD), "warning": ("▲", palette.WARN)}


class DoctorScreen(MeasuredScreen):
    """The findings, the gravest first, and everything about the selected one."""

    POLL_S = 2.0
    CSS_PATH = "doctor.tcss"
    AUTO_FOCUS = "#findings"
    BINDINGS = [
        Binding("enter,o", "ring", "Step ring", id="doctor.ring", tooltip="The engine's steps at that moment"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._now = 0.0

    def compose_figures(self) -> ComposeResult:
        """The list, and the selected one in words."""
        with Vertical(id="findings-panel", classes="panel") as panel:
            panel.border_title = "Findings"
            yield Table(
                self._columns(),
                lambda finding: (finding.rule, finding.title),
                mark=lambda finding: _MARKS[finding.severity],
                empty="n/a: the doctor hasn't been asked yet",
                id="findings",
            )
        with VerticalScroll(id="finding-panel", classes="panel"):
            yield Static("", id="finding", markup=False)

    def _columns(self) -> list[Column[Finding]]:
        return [
            Column("what", 30, 9, lambda finding, width: beginning(finding.title, width), True, widest=90),
            Column("ago", 12, 8, lambda finding, width: units.duration(max(0.0, self._now - finding.time), width)),
            Column("step", 9, 7, lambda finding, width: units.count(finding.step, width)),
            Column("request", 10, 6, lambda finding, width: _request(finding, width), True, widest=12),
        ]

    async def fetch(self, host: HostApi) -> None:
        """Ask for the findings."""
        findings = await host.findings()
        snapshot = self.console_app.snapshot
        self._now = snapshot.time if snapshot is not None else 0.0
        self.query_one("#findings", Table).set_rows(findings, empty=NOTHING)
        self.query_one("#findings-panel").border_subtitle = Content(
            " · ".join(part for part in (_tally(findings, "problem"), _tally(findings, "warning")) if part)
        )
        self._show_selected()

    @property
    def _selected(self) -> Finding | None:
        tables = self.query("#findings").results(Table)
        found: Finding | None = next((table.selected_row for table in tables), None)
        return found

    @on(Table.Selected)
    def _show_selected(self) -> None:
        finding = self._selected
        panel = self.query_one("#finding-panel")
        panel.display = finding is not None
        self.refresh_bindings()
        if finding is None:
            return
        panel.border_title = Content(one_line(finding.title))
        panel.border_subtitle = Content(f"rule {one_line(finding.rule)} · enter opens the step ring")
        self.query_one("#finding", Static).update(_in_words(finding))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Without a finding there is no moment to look at."""
        return True if action != "ring" or self._selected is not None else None

    def action_ring(self) -> None:
        """Open the step ring at the step of the selected finding, or at its moment."""
        finding = self._selected
        if finding is not None:
            open_step_ring(self.console_app, finding.step, finding.request, finding.time)

    def commands(self) -> Iterable[SystemCommand]:
        """What the keys do, by name."""
        yield SystemCommand("Step ring", "The engine's steps at the moment of the finding", self.action_ring)


def _tally(findings: Iterable[Finding], severity: str) -> str:
    count = sum(finding.severity == severity for finding in findings)
    return f"{_MARKS[severity][0]} {count} {severity}{'s' * (count > 1)}" if count else ""


def _request(finding: Finding, width: int) -> str:
    return beginning(short_id(finding.request), width) if finding.request else units.NOT_AVAILABLE


def _in_words(finding: Finding) -> Content:
    evidence = Content("\n").join(Content(f"• {one_line(sentence)}") for sentence in finding.evidence)
    return Content.assemble(
        ("What shows it", "bold"), "\n", evidence, "\n\n", ("What to do", "bold"), "\n", one_line(finding.remedy)
    )
