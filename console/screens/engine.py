"""The engine's life: how far the start is, why it failed and what to start instead, and where the port is.

The first screen to be painted, so it imports nothing heavy.
"""

from textual.app import ComposeResult
from textual.containers import Center, Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.widgets import Button, Input, Label, Select, Static

from console.screens.base import HostScreen
from console.status import BUILDING, PHASE_NAMES, state_text
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import PHASES, EngineState, PortCommand, Snapshot, StartCommand
from widgets import palette, units
from widgets.meter import Meter
from widgets.text import literal

_LABEL_WIDTH = 10


class EngineScreen(HostScreen):
    """Start-up progress; after a failure the reason with a choice; a form for the port when it could not be bound."""

    CSS_PATH = "engine.tcss"
    AUTO_FOCUS = ""

    def __init__(self) -> None:
        super().__init__()
        self._offered = False

    def compose_body(self) -> ComposeResult:
        """A column in the middle."""
        with Center(), VerticalScroll(id="column", can_focus=False):
            with Vertical(id="port-form", classes="panel") as port:
                port.border_title = "Port"
                yield Static("", id="port-problem", markup=False)
                with Horizontal(classes="field"):
                    yield Label("address")
                    yield Input(placeholder="127.0.0.1:8001", id="address", select_on_focus=True, compact=True)
                with Horizontal(classes="field"):
                    yield Label("")
                    yield Button("Use this address", id="use-port", variant="primary", compact=True)
            with Vertical(id="start", classes="panel") as start:
                start.border_title = "Engine"
                yield Static("Connecting to the host …", id="headline", markup=False)
                for phase in PHASES:
                    yield Meter(PHASE_NAMES[phase], label_width=_LABEL_WIDTH, id=f"phase-{phase}")
            with Vertical(id="failure", classes="panel") as failure:
                failure.border_title = "The engine did not start"
                yield Static("", id="reason", markup=False)
                yield Static("", id="hint", classes="muted", markup=False)
                with Horizontal(classes="field"):
                    yield Label("model")
                    yield Select[str]([], id="model", allow_blank=True, prompt="the same model", compact=True)
                with Horizontal(classes="field"):
                    yield Label("profile")
                    yield Select[str]([], id="profile", allow_blank=True, prompt="the same profile", compact=True)
                with Horizontal(classes="field"):
                    yield Label("")
                    yield Button("Start", id="start-engine", variant="primary", compact=True)
            with Vertical(id="facts-panel", classes="panel") as facts:
                facts.border_title = "Serving"
                yield Static("", id="facts", markup=False)

    def on_mount(self) -> None:
        """Nothing is known yet."""
        super().on_mount()
        for panel in ("failure", "port-form", "facts-panel"):
            self.query_one(f"#{panel}").display = False

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Progress, failure, port and facts, each where it applies."""
        state = snapshot.state
        self.query_one("#headline", Static).update(Content(self._headline(snapshot)))
        self._show_phases(state)
        self._show_failure(state)
        self._show_port(snapshot)
        serves = state.name in ("ready", "swapping", "recovering")
        self.query_one("#facts-panel").display = serves
        if serves:
            self.query_one("#facts", Static).update(_facts(snapshot))

    def _headline(self, snapshot: Snapshot) -> str:
        spent = snapshot.time - snapshot.state.since
        name = literal(snapshot.model.name)
        if snapshot.state.name == "starting":
            return f"Starting {name} with profile {literal(snapshot.profile)} · {units.duration(spent)}"
        if snapshot.swap is not None and snapshot.swap.target != snapshot.profile:
            name += f" · {literal(snapshot.profile)} → {literal(snapshot.swap.target)}"
        return f"{state_text(snapshot)} · {name} · {units.duration(spent)}"

    def _show_phases(self, state: EngineState) -> None:
        reached = PHASES.index(state.phase) if state.phase in PHASES else None
        for number, phase in enumerate(PHASES):
            meter = self.query_one(f"#phase-{phase}", Meter)
            seconds = state.phase_seconds.get(phase)
            took = units.duration(seconds) if seconds is not None else ""
            if state.name in BUILDING and number == reached:
                known = state.progress
                meter.set(known, units.percent(known) if known is not None else "working …")
            elif seconds is not None or (reached is not None and number < reached) or state.name == "ready":
                meter.set(1.0, took or "done")
            elif reached is None and state.name in ("swapping", "recovering"):
                meter.set(None, "before")
            else:
                meter.set(0.0, "not reached" if state.name == "failed" else "to come")

    def _show_failure(self, state: EngineState) -> None:
        broken = state.name in ("failed", "stopped")
        self.query_one("#failure").display = broken
        self.query_one("#start").display = not broken
        if not broken:
            self._offered = False
            return
        self.query_one("#reason", Static).update(Content(literal(state.reason or "The engine is stopped.")))
        self.query_one("#hint", Static).update(Content(literal(state.hint or "")))
        if not self._offered:
            self._offered = True
            self.run_worker(self._offer_choices(), group="choices", exclusive=True)

    def _show_port(self, snapshot: Snapshot) -> None:
        port = snapshot.port
        form = self.query_one("#port-form")
        if port.error and not form.display:
            self.query_one("#address", Input).value = f"{port.host}:{port.port + 1}"
        form.display = bool(port.error)
        self.query_one("#port-problem", Static).update(Content(literal(port.error or "")))

    async def _offer_choices(self) -> None:
        """Fill the two lists with what the host could start."""
        host = self.console_app.host
        if host is None:
            return
        try:
            models, profiles = await host.models(), await host.profiles()
        except (HostUnreachable, HostError) as error:
            self.console_app.say(str(error), "error")
            return
        for list_id, names in (("model", models), ("profile", profiles)):
            choice = self.query_one(f"#{list_id}", Select)
            choice.set_options([(Content(literal(name)), name) for name in names])
        self.query_one("#model", Select).focus()

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """Send the command that belongs to the button."""
        if event.button.id == "start-engine":
            self.run_worker(self._start(), group="command", exclusive=True)
        elif event.button.id == "use-port":
            self._use_port()

    def on_input_submitted(self, event: Input.Submitted) -> None:
        """Enter in the address does what its button does."""
        self._use_port()

    async def _start(self) -> None:
        model, profile = self.query_one("#model", Select).value, self.query_one("#profile", Select).value
        command = StartCommand(model if isinstance(model, str) else None, profile if isinstance(profile, str) else None)
        host = self.console_app.host
        if host is not None:
            await self.tell(host.start(command))

    def _use_port(self) -> None:
        address, host = self.query_one("#address", Input).value.strip(), self.console_app.host
        name, _, number = address.rpartition(":")
        if not number.isdecimal() or not 0 < int(number) < 65536:
            self.console_app.say("An address is a host and a port up to 65535, like 127.0.0.1:8001.", "error")
        elif host is not None:
            command = PortCommand(name.strip("[]") or "127.0.0.1", int(number))
            self.run_worker(self.tell(host.set_port(command)), group="command", exclusive=True)


def _facts(snapshot: Snapshot) -> Content:
    """What is served, one fact a line."""
    model, port = snapshot.model, snapshot.port
    facts = {
        "model": literal(model.name),
        "from": literal(model.path),
        "dtype": model.dtype or units.NOT_AVAILABLE,
        "context": f"{units.count(model.max_model_len)} tokens" if model.max_model_len else units.NOT_AVAILABLE,
        "profile": literal(snapshot.profile),
        "OpenAI API": f"http://{port.host}:{port.port}/v1" if port.bound else "not bound",
        "host up": units.duration(snapshot.uptime_s),
    }
    return Content("\n").join(
        Content.assemble((name.ljust(_LABEL_WIDTH + 2), palette.MUTED), text) for name, text in facts.items()
    )
