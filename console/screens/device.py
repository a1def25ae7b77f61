"""The devices read in full, and what the engine makes of them: roofline and steps."""

from collections.abc import Iterable

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Static

from console.screens.device_facts import (
    device_facts,
    events_text,
    memory_fact,
    peaks_text,
    phase_facts,
    process_facts,
    step_facts,
    verdict,
)
from console.screens.measured import MeasuredScreen
from console.screens.reading_text import to_fact, troubling, value_text
from engine_host.api.figures import Roofline, StepFigures, Telemetry
from engine_host.api.types import Device
from widgets import units
from widgets.core_bars import CoreBars
from widgets.facts import Fact, Facts
from widgets.table import Column, Table, beginning
from widgets.text import one_line

_MOST_DEVICES = 5
"""Rows of the list of devices before it scrolls."""


def _state(device: Device) -> str:
    """What is wrong with it, else what holds its clocks down."""
    held = device.more.get("throttle")
    stale = "stale" if device.utilization.stale else ""
    return one_line(device.problem or (held.text if held is not None and troubling(held) else "") or stale)


COLUMNS: tuple[Column[Device], ...] = (
    Column("#", 3, 9, lambda device, width: str(device.index) if device.kind == "gpu" else "CPU", left=True),
    Column("device", 16, 7, lambda device, width: beginning(device.name, width), left=True, widest=32),
    Column("busy", 5, 8, lambda device, width: units.percent(device.utilization.value, width)),
    Column("by", 12, 4, lambda device, width: device.utilization.label, left=True, widest=20),
    Column("memory", 16, 6, lambda device, width: memory_fact(device).value),
    Column("power", 6, 3, lambda device, width: value_text(device.power)),
    Column("temp", 6, 2, lambda device, width: value_text(device.temperature)),
    Column("state", 12, 1, lambda device, width: _state(device), left=True, widest=60),
)


class DeviceScreen(MeasuredScreen):
    """A list where there are several, and everything of the selected one."""

    CSS_PATH = "device.tcss"
    AUTO_FOCUS = "#device-list, #detail"
    BINDINGS = [
        Binding("r", "roofline", "Roofline", id="device.roofline", tooltip="Go to the roofline and the steps"),
        Binding("u", "top", "Utilization", id="device.top", tooltip="Go back to the utilization"),
        Binding("pagedown", "page(1)", "Page down", id="device.page-down", show=False, tooltip="On in the detail"),
        Binding("pageup", "page(-1)", "Page up", id="device.page-up", show=False, tooltip="Back in the detail"),
    ]

    def compose_figures(self) -> ComposeResult:
        """The list; the hardware; what it is used for."""
        with Vertical(id="devices", classes="panel") as devices:
            devices.border_title = "Devices"
            yield Table(
                COLUMNS,
                lambda device: (device.kind, device.index, device.uuid),
                mark=lambda device: ("✖", "") if device.problem else ("", ""),
                id="device-list",
            )
        with VerticalScroll(id="detail"):
            with Vertical(id="hardware"):
                with Vertical(id="use"):
                    with Vertical(id="busy-panel", classes="panel"):
                        yield Static("", id="device-problem", markup=False)
                        yield Facts(id="busy")
                        yield CoreBars(id="cores")
                    with _panel("Processes", "processes-panel"):
                        yield Facts(id="processes")
                with Vertical(id="condition"):
                    with _panel("Power, heat and clocks", "power-panel"):
                        yield Facts(id="power")
                    with _panel("Links", "links-panel"):
                        yield Facts(id="links")
                    with _panel("Health", "health-panel"):
                        yield Facts(id="health")
                        yield Static("", id="events", markup=False)
            with Vertical(id="work"):
                with _panel("Roofline", "roofline-panel"):
                    for phase in ("prefill", "decode"):
                        yield Static(phase, classes="phase")
                        yield Facts(id=f"{phase}-roofline")
                        yield Static("", id=f"{phase}-verdict", markup=False)
                    yield Static("", id="peaks", markup=False)
                with _panel("Steps", "steps-panel"):
                    yield Facts(id="steps")
                    yield Facts(id="sampler")

    def show_figures(self, figures: Telemetry) -> None:
        """Show the devices and the selected one's detail."""
        several = len(figures.devices) > 1
        self.query_one("#devices").display = several
        self.query_one("#devices").styles.height = min(len(figures.devices), _MOST_DEVICES) + 3
        table = self._table
        table.set_rows(figures.devices)
        if not several and self.focused is table:
            self.query_one("#detail").focus()
        self._show_device(table.selected_row, figures.time)
        self._show_roofline(figures.roofline)
        self._show_steps(figures.steps)
        self.query_one("#sampler", Facts).set_facts([_of_a_core(to_fact(figures.sampler_cost))])

    @property
    def _table(self) -> Table[Device]:
        return self.query_one("#device-list", Table)

    @on(Table.Selected)
    def show_selected(self) -> None:
        """Another device is looked at."""
        if self.figures is not None:
            self._show_device(self._table.selected_row, self.figures.time)

    def _show_device(self, device: Device | None, now: float) -> None:
        problem = self.query_one("#device-problem", Static)
        said = "n/a: the host reads no device." if device is None else one_line(device.problem or "")
        problem.update(said)
        problem.display = bool(said)
        self.query_one("#busy-panel").border_title = Content(
            "Device"
            if device is None
            else f"{device.index if device.kind == 'gpu' else 'CPU'}  {one_line(device.name)}"
        )
        facts = device_facts(device) if device is not None else {"busy": [], "power": [], "links": [], "health": []}
        for group, lines in facts.items():
            self.query_one(f"#{group}", Facts).set_facts(lines)
        self.query_one("#cores", CoreBars).set_shares(device.cores if device is not None else ())
        processes = process_facts(device) if device is not None else []
        events = events_text(device, now) if device is not None else ""
        self.query_one("#processes", Facts).set_facts(processes)
        self.query_one("#events", Static).update(events)
        self.query_one("#events").display = bool(events)
        for panel, there in (
            ("power", device is not None),
            ("links", bool(facts["links"])),
            ("health", bool(facts["health"] or events)),
            ("processes", bool(processes)),
        ):
            self.query_one(f"#{panel}-panel").display = there

    def _show_roofline(self, roofline: Roofline) -> None:
        panel = self.query_one("#roofline-panel")
        panel.border_subtitle = Content(f"est. · last {units.duration(roofline.window_s)}")
        for phase in (roofline.prefill, roofline.decode):
            self.query_one(f"#{phase.phase}-roofline", Facts).set_facts(phase_facts(phase))
            self.query_one(f"#{phase.phase}-verdict", Static).update(verdict(phase))
        self.query_one("#peaks", Static).update(peaks_text(roofline))

    def _show_steps(self, steps: StepFigures) -> None:
        panel = self.query_one("#steps-panel")
        panel.border_subtitle = Content(f"{units.count(steps.steps)} in the last {units.duration(steps.window_s)}")
        self.query_one("#steps", Facts).set_facts(step_facts(steps))

    def action_roofline(self) -> None:
        """Bring roofline and steps into view."""
        self.query_one("#detail", VerticalScroll).scroll_to_widget(self.query_one("#work"), top=True, animate=False)

    def action_top(self) -> None:
        """Bring the utilization into view."""
        self.query_one("#detail", VerticalScroll).scroll_home(animate=False)

    def action_page(self, pages: int) -> None:
        """Move the detail by a screenful."""
        detail = self.query_one("#detail", VerticalScroll)
        detail.scroll_relative(y=pages * max(1, detail.size.height - 1), animate=False)

    def commands(self) -> Iterable[SystemCommand]:
        """What the keys do, by name."""
        yield SystemCommand("Roofline and steps", "What the engine makes of the device", self.action_roofline)


def _panel(title: str, name: str) -> Vertical:
    panel = Vertical(id=name, classes="panel")
    panel.border_title = Content(title)
    return panel


def _of_a_core(fact: Fact) -> Fact:
    """The sampler's own cost, in words."""
    return Fact("sampler", fact.value, fact.note or "of a CPU core, its own cost", level=fact.level)
