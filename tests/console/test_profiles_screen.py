"""Profiles: what each would change, applying with a reason, progress, cancelling, history, roll back, editing."""

import msgspec
import pytest
from harness import Console, screen_text, settle, shown
from stub_host import HISTORY, NOON, StubHost, snapshot
from textual.pilot import Pilot
from textual.widgets import Input, OptionList

from console.app import ConsoleApp
from console.screens.profile_apply import ApplyScreen
from console.screens.profile_editor import EditorScreen, Row
from console.screens.profile_history import ProfileHistory
from engine_host.api.contract import HostError
from engine_host.api.types import ApplyCommand, CommandReply, EngineState, SaveCommand, SwapProgress

DRAINING = snapshot(
    state=EngineState("swapping", NOON - 4),
    swap=SwapProgress(4, "draining", "balanced", NOON - 4.2, waiting_for=3, held=2, cancellable=True),
)
BUILDING = msgspec.structs.replace(
    DRAINING,
    state=EngineState("swapping", NOON - 9, "weights", 0.4),
    swap=SwapProgress(4, "building", "balanced", NOON - 9, held=5),
)


async def select(app: ConsoleApp, pilot: Pilot[None], name: str) -> None:
    """Put the cursor on a profile of the list."""
    names = [line.name for line in app.screen._lines]  # type: ignore[attr-defined]
    app.screen.query_one("#profiles", OptionList).highlighted = names.index(name)
    await settle(app, pilot)


def enabled(app: ConsoleApp, key: str) -> bool:
    """Whether a key does something now."""
    return key in app.screen.active_bindings and app.screen.active_bindings[key].enabled


def said(app: ConsoleApp) -> list[str]:
    """The sentences in the corner."""
    return [notification.message for notification in app._notifications]


async def test_the_list_says_which_runs_which_are_yours_and_which_are_broken(console: Console) -> None:
    async with console(mode="profiles") as (app, pilot):
        text = screen_text(app.screen)
        assert "● cpu-tiny  built-in" in text
        assert "  quick [b]  yours" in text
        assert "✖ broken [/b  yours" in text
        assert "This is the running profile." in text
        await select(app, pilot, "broken [/b")
        assert "broken.toml:3: scheduler.token_bugdet: unknown key." in shown(app.screen.query_one("#detail-text"))
        assert not enabled(app, "a")


async def test_selecting_shows_every_knob_and_the_plan(console: Console) -> None:
    async with console(mode="profiles") as (app, pilot):
        for size in ((80, 24), (120, 40), (200, 50)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            await select(app, pilot, "quick [b]")
            await select(app, pilot, "balanced")
            words = " ".join(shown(app.screen.query_one("#detail-text")).split())
            for part in (
                "◆ rebuild engine.kv_cache_memory 537 MB → 1.1 GB",
                "◆ rebuild engine.block_size 32 → 16 tokens pages are laid out when the engine starts",
                "◇ live scheduler.token_budget 1024 → 4096 tokens",
                "◇ live scheduler.policy fcfs → priority",
                "KV pages 728 pages 1\u202f456 pages".replace("\u202f", " "),
                "activations est. 61 MB est. 122 MB",
                "free on the device n/a n/a",
            ):
                assert part in words, size


async def test_apply_sends_the_profile_and_the_reason(console: Console) -> None:
    host = StubHost()
    async with console(host, "profiles") as (app, pilot):
        await select(app, pilot, "balanced")
        await pilot.press("a")
        assert isinstance(app.screen, ApplyScreen)
        assert "Requests are kept" in screen_text(app.screen)
        await pilot.press(*"TTL", "enter")
        await settle(app, pilot)
        await select(app, pilot, "quick [b]")
        await pilot.press("enter")
        assert "No request is touched" in screen_text(app.screen)
        await pilot.press("enter")
        await settle(app, pilot)
        assert host.commands == [ApplyCommand("balanced", why="TTL"), ApplyCommand("quick [b]")]
        await pilot.press("a", "escape")
        await settle(app, pilot)
        assert len(host.commands) == 2, "escape applies nothing"


async def test_what_is_refused_cannot_be_applied(console: Console) -> None:
    host = StubHost()
    async with console(host, "profiles") as (app, pilot):
        await select(app, pilot, "throughput")
        assert "9.0 GB for a context of 131 072 tokens" in " ".join(shown(app.screen.query_one("#detail-text")).split())
        assert not enabled(app, "a")
        await pilot.press("a", "enter")
        await settle(app, pilot)
        assert not isinstance(app.screen, ApplyScreen)
        assert host.commands == []
        assert any("At most 30 000 fit" in sentence for sentence in said(app))


async def test_a_refusal_and_a_failure_of_the_host_are_sentences(console: Console) -> None:
    host = StubHost()
    host.reply = CommandReply(False, "The engine is [already] being rebuilt.")
    host.changes_of["balanced"] = HostError(409, "The engine has not started [yet].")
    async with console(host, "profiles") as (app, pilot):
        await select(app, pilot, "quick [b]")
        await pilot.press("a", "enter")
        await settle(app, pilot)
        assert said(app) == ["The engine is [already] being rebuilt."]
        await select(app, pilot, "balanced")
        assert "The engine has not started [yet]." in screen_text(app.screen)
        assert not enabled(app, "a")


async def test_progress_is_shown_and_can_be_cancelled_until_the_engine_goes_down(console: Console) -> None:
    host = StubHost(DRAINING)
    async with console(host, "profiles") as (app, pilot):
        progress = shown(app.screen.query_one("#swap"))
        assert "balanced · 4.2 s · 2 held" in progress
        assert "✓ checking  ▸ draining 3  · stopping  · building  · resuming   c cancels" in progress
        assert "◑ swapping · draining 3" in shown(app.screen.query_one("#status"))
        await select(app, pilot, "quick [b]")
        assert not enabled(app, "a"), "one change at a time"
        await pilot.press("c")
        await settle(app, pilot)
        assert host.commands == ["cancel"]
        host.now = BUILDING
        await app.poll()
        await settle(app, pilot)
        assert not enabled(app, "c")
        assert "cancels" not in shown(app.screen.query_one("#swap"))
        assert "◑ swapping · building · weights 40 %" in shown(app.screen.query_one("#status"))


async def test_the_end_of_a_change_refreshes_the_list_and_the_history(console: Console) -> None:
    host = StubHost(BUILDING)
    async with console(host, "profiles") as (app, pilot):
        host.lines = [msgspec.structs.replace(line, active=line.name == "balanced") for line in host.lines]
        host.change_records = list(HISTORY)
        host.now = snapshot(profile="balanced")
        await app.poll()
        await settle(app, pilot)
        assert not app.screen.query_one("#swap").display
        assert "● balanced" in screen_text(app.screen)
        assert "quick [b] → throughput" in screen_text(app.screen)


async def test_the_history_tells_who_why_and_what_came_of_it(console: Console) -> None:
    host = StubHost()
    host.change_records = list(HISTORY)
    async with console(host, "profiles") as (app, pilot):
        for size in ((80, 24), (120, 40)):
            await pilot.resize_terminal(*size)
            await pilot.press("h")
            await settle(app, pilot)
            text = screen_text(app.screen)
            assert "◆ rebuild · quick [b] → throughput · ↩ rolled-back" in text
            assert "95 ms → 101 ms" in text
            assert "61 tok/s → 60 tok/s" in text
            assert "by console: TTL [too] high" in text
            assert "9.0 GB asked, 2.1 GB free" in text
            assert "n/a → n/a" in text
            await pilot.press("h")
            await settle(app, pilot)
            assert app.screen.query_one("#profiles").has_focus


async def test_roll_back_applies_the_profile_before_that_change(console: Console) -> None:
    host = StubHost()
    host.change_records = list(HISTORY)
    async with console(host, "profiles") as (app, pilot):
        await pilot.press("r")
        await settle(app, pilot)
        assert not isinstance(app.screen, ApplyScreen), "only in the history"
        await pilot.press("h", "down", "down")
        selected = app.screen.query_one(ProfileHistory).selected
        assert selected is not None
        assert (selected.id, selected.old) == (1, "balanced")
        await pilot.press("r")
        await settle(app, pilot)
        await pilot.press("enter")
        await settle(app, pilot)
        assert host.commands == [ApplyCommand("balanced", why="roll back of #1")]


async def edit(app: ConsoleApp, pilot: Pilot[None], path: str, text: str) -> Row:
    """Type a value into a row of the editor."""
    row = next(row for row in app.screen.query(Row) if row.path == path)
    row.query_one(Input).value = text
    await settle(app, pilot)
    return row


async def test_an_invalid_value_is_said_beside_it_and_not_saved(console: Console) -> None:
    host = StubHost()
    async with console(host, "profiles", (80, 24)) as (app, pilot):
        await pilot.press("e")
        await settle(app, pilot)
        assert isinstance(app.screen, EditorScreen)
        row = await edit(app, pilot, "scheduler.token_budget", "0")
        assert "Must be greater than or equal to 1, not 0." in shown(row.query_one(".wrong"))
        await pilot.press("ctrl+s")
        await settle(app, pilot)
        assert row.query_one(Input).has_focus
        assert host.commands == []
        await edit(app, pilot, "scheduler.token_budget", "8")
        assert "max_active (16) must not be above" in shown(app.screen.query_one("#whole"))


async def test_only_what_was_changed_is_saved_under_the_name(console: Console) -> None:
    host = StubHost()
    async with console(host, "profiles") as (app, pilot):
        await pilot.press("e")
        await settle(app, pilot)
        await edit(app, pilot, "scheduler.token_budget", "512")
        await edit(app, pilot, "engine.kv_cache_memory", "")
        await edit(app, pilot, "engine.kv_cache_dtype", "fp8")
        await edit(app, pilot, "name", "mine")
        host.reply = CommandReply(False, "The file can't be [written].")
        await pilot.press("ctrl+s")
        await settle(app, pilot)
        assert "The file can't be [written]." in shown(app.screen.query_one("#whole"))
        host.reply = CommandReply(True)
        host.lines = [*host.lines, msgspec.structs.replace(host.lines[3], name="mine")]
        await pilot.press("ctrl+s")
        await settle(app, pilot)
        values = {"scheduler.token_budget": "512", "engine.kv_cache_memory": "", "engine.kv_cache_dtype": "fp8"}
        assert host.commands == [SaveCommand("mine", "cpu-tiny", values)] * 2
        assert not isinstance(app.screen, EditorScreen)
        assert app.screen._selected.name == "mine"  # type: ignore[attr-defined]


async def test_a_source_that_is_no_toml_cannot_be_edited(console: Console) -> None:
    host = StubHost()
    host.source = "[engine\n"
    async with console(host, "profiles") as (app, pilot):
        await pilot.press("e")
        await settle(app, pilot)
        assert not isinstance(app.screen, EditorScreen)
        assert "not valid TOML" in said(app)[0]


@pytest.mark.parametrize("state", ["swapping", "recovering"])
async def test_the_engine_screen_names_the_state_and_its_stage(console: Console, state: str) -> None:
    host = StubHost(msgspec.structs.replace(BUILDING, state=EngineState(state, NOON - 9, "weights", 0.4)))  # type: ignore[arg-type]
    async with console(host, "engine") as (app, _):
        headline = shown(app.screen.query_one("#headline"))
        assert f"{state} · building · weights 40 %" in headline
        assert "cpu-tiny → balanced" in headline
        assert "40 %" in shown(app.screen.query_one("#phase-weights"))
