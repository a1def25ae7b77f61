"""The console: one screen a mode, all of them fed by one snapshot of the host at a time."""

import asyncio
import importlib
import time
from collections.abc import Callable, Iterable

from rich.text import Text
from textual.app import App, SystemCommand
from textual.binding import Binding
from textual.reactive import reactive
from textual.screen import Screen

from console.garbage import CHECK_S, IdleCollector
from console.screens.base import HostScreen
from console.screens.engine import EngineScreen
from console.settings import Settings, save_theme
from console.theme import THEMES, suitable_theme
from engine_host.api.contract import HostApi, HostError, HostUnreachable
from engine_host.api.types import Snapshot

GONE_AFTER_S = 5.0
"""A host that once answered and whose socket refuses for this long is gone."""

HOST_GONE_CODE = 3
HOST_GONE = "The host of this console is gone; the console ends."


def _overview() -> Screen[None]:
    from console.screens.overview import OverviewScreen

    return OverviewScreen()


def _chat() -> Screen[None]:
    from console.screens.chat import ChatScreen

    return ChatScreen()


def _log() -> Screen[None]:
    from console.screens.log import LogScreen

    return LogScreen()


def _profiles() -> Screen[None]:
    from console.screens.profiles import ProfilesScreen

    return ProfilesScreen()


def _requests() -> Screen[None]:
    from console.screens.requests import RequestsScreen

    return RequestsScreen()


def _keys() -> Screen[None]:
    from console.screens.keys import KeysScreen

    return KeysScreen()


def _device() -> Screen[None]:
    from console.screens.device import DeviceScreen

    return DeviceScreen()


def _cost() -> Screen[None]:
    from console.screens.cost import CostScreen

    return CostScreen()


def _doctor() -> Screen[None]:
    from console.screens.doctor import DoctorScreen

    return DoctorScreen()


class ConsoleApp(App[None], inherit_bindings=False):
    """The operator's console of one host.

    Data flows one way: the app asks the host for a snapshot a few times a second and sets `snapshot`; the screen on
    display shows it. Commands go to `host`. The app never starts a process.
    """

    TITLE = "llmconsole"
    CSS_PATH = "console.tcss"
    MODES = {
        "engine": EngineScreen,
        "overview": _overview,
        "chat": _chat,
        "log": _log,
        "profiles": _profiles,
        "requests": _requests,
        "keys": _keys,
        "device": _device,
        "cost": _cost,
        "doctor": _doctor,
    }
    DEFAULT_MODE = "engine"
    # A digit types itself where text is typed; the function key works there too.
    BINDINGS = [
        Binding("0,f10", "switch_mode('engine')", "Engine", id="mode.engine", show=False, tooltip="State and port"),
        Binding("1,f1", "switch_mode('overview')", "Overview", id="mode.overview", tooltip="What the engine is doing"),
        Binding("2,f2", "switch_mode('chat')", "Chat", id="mode.chat", tooltip="Talk to the model"),
        Binding("3,f3", "switch_mode('log')", "Log", id="mode.log", tooltip="What host and engine print"),
        Binding(
            "4,f4", "switch_mode('profiles')", "Profiles", id="mode.profiles", tooltip="Tuning profiles, old and new"
        ),
        Binding(
            "5,f5", "switch_mode('requests')", "Requests", id="mode.requests", tooltip="Live requests, lanes and tiers"
        ),
        Binding("6", "switch_mode('keys')", "Keys", id="mode.keys", tooltip="Keys, and what is used of their limits"),
        # A text area would select a line.
        Binding(
            "f6",
            "switch_mode('keys')",
            "Keys",
            id="mode.keys.always",
            priority=True,
            tooltip="Keys, and what is used of their limits",
        ),
        Binding("7", "switch_mode('device')", "Device", id="mode.device", tooltip="The devices, read in full"),
        # A text area would select all.
        Binding(
            "f7",
            "switch_mode('device')",
            "Device",
            id="mode.device.always",
            priority=True,
            tooltip="The devices, read in full",
        ),
        Binding("8,f8", "switch_mode('cost')", "Cost", id="mode.cost", tooltip="The bill, and who caused it"),
        Binding("9,f9", "switch_mode('doctor')", "Doctor", id="mode.doctor", tooltip="What is wrong, and what to do"),
        Binding("question_mark", "help", "Help", id="help", key_display="?", tooltip="All keys of this screen"),
        Binding("f12", "help", "Help", id="help.always", tooltip="All keys of this screen"),
        Binding("q", "quit", "Quit", id="quit", tooltip="Stop the engine and leave"),
        Binding("ctrl+q", "quit", "Quit", id="quit.always", priority=True, tooltip="Stop the engine and leave"),
        Binding("ctrl+c", "help_quit", "How to quit", id="quit.hint", show=False, system=True),
    ]

    snapshot: reactive[Snapshot | None] = reactive(None, init=False, always_update=True)
    """The last answer of the host."""
    problem: reactive[str] = reactive("", init=False)
    """Why the host doesn't answer now, in a sentence; empty while it does."""

    def __init__(
        self,
        connect: Callable[[], HostApi],
        settings: Settings | None = None,
        *,
        notice: str = "",
        live: bool = True,
        clock: Callable[[], float] = time.monotonic,
        when_ready: Callable[[], None] = lambda: None,
    ) -> None:
        """`connect` is called once, after the first paint; `notice` is said at the start; a console that
        isn't `live` asks the host only when `poll()` is called; `clock` counts seconds; `when_ready` is called when
        the engine is first seen to serve."""
        super().__init__()
        self.settings = settings or Settings()
        self.host: HostApi | None = None
        self._connect = connect
        self._notice = notice
        self._live = live
        self._clock = clock
        self._seen_ready = False
        self._when_ready = when_ready
        self._refused_since: float | None = None
        self._event_loop: asyncio.AbstractEventLoop | None = None
        for theme in THEMES:
            self.register_theme(theme)
        known = self.settings.theme in self.available_themes
        self.theme = self.settings.theme if known else suitable_theme(self.console.color_system)

    async def on_mount(self) -> None:
        """Leave everything heavy until the first screen is painted."""
        self.theme_changed_signal.subscribe(self, lambda theme: self._keep_theme(theme.name))
        self._event_loop = asyncio.get_running_loop()
        if self._notice:
            self.say(self._notice, "warning")
        self.call_after_refresh(self.run_worker, self._follow_host(), name="host")
        if self._live:
            self._collector = IdleCollector(self._clock())
            self.set_interval(CHECK_S, self._collect_garbage)

    def _collect_garbage(self) -> None:
        load = self.snapshot.load if self.snapshot is not None else None
        self._collector.tick(self._clock(), busy=load is not None and load.running > 0)

    async def on_unmount(self) -> None:
        """Let go of the host."""
        if self.host is not None:
            await self.host.close()

    def say(self, sentence: str, severity: str = "information") -> None:
        """Show a sentence in the corner, as plain text."""
        level = {"warning": "warning", "error": "error"}.get(severity, "information")
        self.notify(sentence, severity=level, markup=False, timeout=8)  # type: ignore[arg-type]

    async def _follow_host(self) -> None:
        """Connect, then ask for snapshots until the app ends."""
        for module in ("engine_host.api.client", "console.screens.overview", "console.screens.chat"):
            await asyncio.to_thread(importlib.import_module, module)
        self.host = self._connect()
        await self.poll()
        while self._live:
            await asyncio.sleep(1 / self.settings.refresh_hz)
            await self.poll()

    async def poll(self) -> None:
        """Ask the host once. A snapshot that can't be had leaves the old one on screen and says so."""
        if self.host is None:
            return
        try:
            now = await self.host.snapshot()
        except (HostUnreachable, HostError) as error:
            self.problem = str(error)
            self._note_refusal(isinstance(error, HostUnreachable) and error.gone)
            return
        self._refused_since = None
        self.problem = ""
        self.snapshot = now

    def _note_refusal(self, gone: bool) -> None:
        if not gone or self.snapshot is None:
            self._refused_since = None  # not up yet, or only slow
            return
        now = self._clock()
        if self._refused_since is None:
            self._refused_since = now
        if now - self._refused_since > GONE_AFTER_S:
            self.leave(HOST_GONE_CODE, HOST_GONE)

    def leave(self, code: int, why: str = "") -> None:
        """Leave the terminal in order and end with this code, saying why. Safe to call from threads and signals."""
        if self._event_loop is not None:
            self._event_loop.call_soon_threadsafe(
                lambda: self.exit(return_code=code, message=Text(why) if why else None)
            )

    def watch_snapshot(self, before: Snapshot | None, now: Snapshot | None) -> None:
        """Say what changed for the worse, and go to the overview once the engine serves."""
        if now is None:
            return
        if now.port.error and (before is None or before.port.error != now.port.error):
            self.say(f"{now.port.error} Press 0 to choose another port.", "error")
        failed = now.state.name == "failed" and (before is None or before.state != now.state)
        if failed and self.current_mode != "engine":
            self.say(f"{now.state.reason} Press 0 to choose what to start.", "error")
        if now.state.name == "ready" and not self._seen_ready:
            self._seen_ready = True
            self._when_ready()
            if self.current_mode == "engine" and not now.port.error:
                self.switch_mode("overview")

    async def action_quit(self) -> None:
        """Quit; with requests in the engine only after asking."""
        await self.poll()
        load = self.snapshot.load if self.snapshot is not None and not self.problem else None
        if load is None or load.running + load.waiting == 0:
            self.exit(return_code=0)
            return
        from console.screens.quit import QuitScreen

        if not isinstance(self.screen, QuitScreen):
            self.push_screen(QuitScreen(load.running, load.waiting), self._quit_answered)

    def _quit_answered(self, leave: bool | None) -> None:
        if leave:
            self.exit(return_code=0)

    def action_help_quit(self) -> None:
        """Ctrl+C: say how to quit."""
        self.clear_notifications()
        self.say("Ctrl+Q quits. In the chat Esc stops a reply.")

    def action_help(self) -> None:
        """List the keys of the screen on display."""
        from console.screens.help import HelpScreen

        if isinstance(self.screen, HostScreen):
            self.push_screen(HelpScreen.of(self.screen))

    def get_system_commands(self, screen: Screen[object]) -> Iterable[SystemCommand]:
        """The palette: every command of the app and of the screen on display."""
        for mode in (
            "overview",
            "chat",
            "log",
            "profiles",
            "requests",
            "keys",
            "device",
            "cost",
            "doctor",
            "engine",
        ):
            what = mode.capitalize()
            yield SystemCommand(f"Go to {what}", f"Show the {what} screen", lambda mode=mode: self.switch_mode(mode))
        if isinstance(screen, HostScreen):
            yield from screen.commands()
            yield SystemCommand("Save the view", "The screen as SVG and PNG", screen.action_save_view)
        yield SystemCommand("Help", "List the keys of this screen", self.action_help)
        yield SystemCommand("Change theme", "Pick the colours", self.action_change_theme)
        yield SystemCommand("Quit", "Stop the engine and leave", self.action_quit)

    def _keep_theme(self, name: str) -> None:
        if not self._live or name == (self.settings.theme or suitable_theme(self.console.color_system)):
            return
        try:
            save_theme(name)
        except (OSError, ValueError) as error:
            self.say(f"The theme is set, but can't be remembered: {error}", "warning")
