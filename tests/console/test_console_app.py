"""The console as a whole: modes, quitting, help, sizes, and what it says when the host is silent or gone."""

from pathlib import Path

import msgspec
import pytest
from harness import Console, each_mode, screen_text, settle, shown, write_flight_record
from stub_host import StubHost, failed, snapshot, starting
from textual.widgets import Footer, Input, Select, Static
from textual.widgets._footer import FooterKey

from console.screens.engine import EngineScreen
from console.screens.help import HelpScreen
from console.screens.quit import QuitScreen
from engine_host.api.contract import HostUnreachable
from engine_host.api.types import CommandReply, FlightFile, Load, PortCommand, PortInfo, StartCommand
from widgets.meter import Meter
from widgets.status_bar import StatusBar

IDLE = snapshot(load=Load(0, 0, 0.0, 0.0, 10.0, 3, 0), requests=())


async def test_it_starts_on_the_engine_and_goes_to_the_overview_when_ready(console: Console) -> None:
    host = StubHost(starting("weights", 0.4))
    async with console(host) as (app, pilot):
        assert app.current_mode == "engine"
        assert "40 %" in shown(app.screen.query_one("#phase-weights", Meter))
        assert "4.2 s" in shown(app.screen.query_one("#phase-import", Meter))
        host.now = snapshot()
        await app.poll()
        await settle(app, pilot)
        assert app.current_mode == "overview"
        await pilot.press("0")
        await app.poll()
        await settle(app, pilot)
        assert app.current_mode == "engine", "only the first time it's ready"


async def test_digits_change_the_mode(console: Console) -> None:
    async with console(StubHost(IDLE), "overview") as (app, pilot):
        modes = {"3": "log", "4": "profiles", "5": "requests", "6": "keys", "7": "device", "8": "cost", "9": "doctor"}
        modes |= {"0": "engine", "1": "overview", "2": "chat"}
        assert set(modes.values()) == app.MODES.keys()
        for key, mode in modes.items():
            await pilot.press(key)
            assert app.current_mode == mode


async def test_function_keys_change_the_mode_where_digits_are_typed(console: Console) -> None:
    async with console(StubHost(IDLE), "chat") as (app, pilot):
        await pilot.press("1", "q")
        assert (app.current_mode, app.screen.query_one("#prompt").text) == ("chat", "1q")  # type: ignore[attr-defined]
        for key, mode in (
            ("f7", "device"),
            ("f2", "chat"),
            ("f8", "cost"),
            ("f2", "chat"),
            ("f9", "doctor"),
            ("f3", "log"),
        ):
            await pilot.press(key)
            assert app.current_mode == mode


async def test_quit_at_once_when_nothing_runs(console: Console) -> None:
    async with console(StubHost(IDLE), "overview") as (app, pilot):
        await pilot.press("q")
        await pilot.pause()
        assert (app._exit, app.return_code) == (True, 0)


async def test_quit_asks_when_requests_run(console: Console) -> None:
    host = StubHost(IDLE)
    async with console(host, "overview") as (app, pilot):
        host.now = snapshot()  # they came since the last look
        await pilot.press("q")
        await settle(app, pilot)
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("ctrl+q")
        assert isinstance(app.screen, QuitScreen)
        await pilot.press("n")
        assert not app._exit
        assert not isinstance(app.screen, QuitScreen)
        await pilot.press("q")
        await settle(app, pilot)
        await pilot.press("y")
        await pilot.pause()
        assert (app._exit, app.return_code) == (True, 0)


async def test_quit_never_hangs_on_a_silent_host(console: Console) -> None:
    host = StubHost()
    async with console(host, "overview") as (app, pilot):
        host.now = HostUnreachable("The host hasn't answered for 5 s.", gone=False)
        await pilot.press("q")
        await pilot.pause()
        assert app._exit


async def test_ctrl_c_says_how_to_quit(console: Console) -> None:
    async with console(StubHost(IDLE)) as (app, pilot):
        async for mode in each_mode(app, pilot):
            await pilot.press("ctrl+c", "ctrl+c")
            await pilot.pause()
            assert not app._exit, mode
            assert ["Ctrl+Q quits" in notification.message for notification in app._notifications] == [True], mode
            app.clear_notifications()


async def test_every_binding_has_an_id_and_a_tooltip_that_the_help_lists(console: Console) -> None:
    async with console(StubHost(IDLE)) as (app, pilot):
        async for mode in each_mode(app, pilot):
            ours = [binding for _, binding in (*app._bindings, *app.screen._bindings) if binding.id or binding.show]
            assert ours
            assert [binding for binding in ours if not binding.id] == [], mode
            assert [binding.id for binding in ours if binding.show and not binding.tooltip] == [], mode
            if mode == "chat":
                continue  # a question mark types itself
            own = {binding.tooltip for _, binding in app.screen._bindings if binding.id}
            await pilot.press("question_mark")
            assert isinstance(app.screen, HelpScreen), mode
            text = "\n".join(shown(static) for static in app.screen.query(Static))
            assert "What the engine is doing" in text
            assert [tooltip for tooltip in own if tooltip not in text] == [], mode
            await pilot.press("escape")
            assert not isinstance(app.screen, HelpScreen)


async def test_too_small_gives_a_hint_and_comes_back(console: Console) -> None:
    async with console() as (app, pilot):
        async for mode in each_mode(app, pilot):
            for size in ((40, 10), (1, 1), (250, 70), (40, 40), (80, 24)):
                await pilot.resize_terminal(*size)
                await settle(app, pilot)
                small = size[0] < 60 or size[1] < 16
                assert app.screen.query_one("#body").display != small, mode
                assert app.screen.query_one("#too-small").display == small, mode
                assert not small or f"{size[0]}×{size[1]}" in shown(app.screen.query_one("#too-small")), mode


async def test_a_silent_host_is_said_and_the_last_numbers_stay(console: Console) -> None:
    host = StubHost()
    async with console(host, "overview", (160, 50)) as (app, pilot):
        host.now = HostUnreachable("The host hasn't answered for 5 s.", gone=False)
        await app.poll()
        await settle(app, pilot)
        bar = shown(app.screen.query_one("#status", StatusBar))
        assert "host silent" in bar
        assert "ready" in bar
        host.now = snapshot()
        await app.poll()
        await settle(app, pilot)
        assert "host silent" not in shown(app.screen.query_one("#status", StatusBar))


async def test_before_the_host_is_up_the_screen_waits(console: Console) -> None:
    host = StubHost()
    host.now = HostUnreachable("No host answers at /run/x.sock.", gone=True)
    async with console(host) as (app, pilot):
        assert isinstance(app.screen, EngineScreen)
        assert not app._exit
        host.now = starting()
        await app.poll()
        await settle(app, pilot)
        assert "weights" in shown(app.screen.query_one("#status", StatusBar))


async def test_a_host_that_is_gone_ends_the_console(console: Console) -> None:
    host, clock = StubHost(), [0.0]
    async with console(host, "overview", clock=lambda: clock[-1]) as (app, pilot):
        host.now = HostUnreachable("No host answers.", gone=True)
        for now in (1.0, 4.0, 7.0):
            assert not app._exit
            clock.append(now)
            await app.poll()
            await pilot.pause()
        assert app._exit
        assert app.return_code == 3
        assert "gone" in str(app._exit_renderables)


async def test_a_failed_start_shows_why_and_offers_another(console: Console) -> None:
    reason = 'The model [/red] needs 9 GB for its KV cache; 2 GB are free. {"b": [true]} [b \x1b[31m\x00'
    host = StubHost(failed(reason, "Choose a profile with a shorter context."))
    async with console(host) as (app, pilot):
        screen = app.screen
        assert "needs 9 GB for its KV cache" in shown(screen.query_one("#reason"))
        assert "[/red]" in shown(screen.query_one("#reason"))
        assert "shorter context" in shown(screen.query_one("#hint"))
        screen.query_one("#model", Select).value = "other [/red] model"
        screen.query_one("#profile", Select).value = "odd [b name"
        await pilot.click("#start-engine")
        await settle(app, pilot)
        assert host.commands == [StartCommand("other [/red] model", "odd [b name")]
        host.now = starting()
        await app.poll()
        await settle(app, pilot)
        assert not screen.query_one("#failure").display


async def test_a_refused_start_says_why(console: Console) -> None:
    host = StubHost(failed("No."))
    host.reply = CommandReply(False, "The engine is [already] starting.")
    async with console(host) as (app, pilot):
        await pilot.click("#start-engine")
        await settle(app, pilot)
        assert [note.message for note in app._notifications] == ["The engine is [already] starting."]
        assert host.commands == [StartCommand(None, None)]


async def test_a_taken_port_offers_another_and_the_console_goes_on(console: Console) -> None:
    taken = PortInfo("127.0.0.1", 8000, False, "Port 8000 is taken by [python] (pid 12).")
    host = StubHost(msgspec.structs.replace(starting(), port=taken))
    async with console(host, size=(80, 24)) as (app, pilot):
        assert "[python]" in shown(app.screen.query_one("#port-problem"))
        address = app.screen.query_one("#address", Input)
        assert address.value == "127.0.0.1:8001"
        address.focus()
        address.value = "127.0.0.1:nonsense"
        await pilot.press("enter")
        assert host.commands == []
        address.value = "0.0.0.0:8010"
        await pilot.press("enter")
        await settle(app, pilot)
        assert host.commands == [PortCommand("0.0.0.0", 8010)]
        host.now = snapshot(port=taken)
        await app.poll()
        await settle(app, pilot)
        assert app.current_mode == "engine", "the question about the port stays"
        app.screen.set_focus(None)
        await pilot.press("3")
        assert app.current_mode == "log"


async def test_the_palette_has_our_commands(console: Console) -> None:
    async with console(mode="chat") as (app, _):
        titles = {command.title for command in app.get_system_commands(app.screen)}
        assert {"Go to Overview", "New chat", "Regenerate", "System prompt", "Quit", "Help"} <= titles


async def test_the_footer_has_room_for_every_key_and_for_the_modes_names_where_it_can(console: Console) -> None:
    names = ["Overview", "Chat", "Log", "Profiles", "Requests", "Keys", "Device", "Cost", "Doctor"]
    async with console(StubHost(IDLE), size=(80, 24)) as (app, pilot):
        async for mode in each_mode(app, pilot):
            for width in (80, 160):
                await pilot.resize_terminal(width, 24)
                await settle(app, pilot)
                keys = list(app.screen.query_one(Footer).query(FooterKey))
                told = [key.description for key in keys if key.action.startswith("switch_mode")]
                assert told in ([""] * len(names), names) if width == 80 else told == names, mode
                assert {"Help", "Quit"} <= {key.description for key in keys}, mode
                assert max(key.region.right for key in keys) <= width, mode


async def test_without_colour_states_are_told_by_shape(
    console: Console, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    write_flight_record(tmp_path / "flight")
    host = StubHost(snapshot(flight=(FlightFile(0, str(tmp_path / "flight")),)))
    async with console(host, "overview", (160, 50)) as (app, _):
        text = screen_text(app.screen)
        assert "● ready" in text
        assert "# shared · ░ cached · · free" in text
        letter = text.split(" 44e1b7d2 58")[0][-1]
        assert letter * 20 in text, "the map draws its pages with that letter"
