"""The Keys screen: the state of each key, what is used of its limits, and how often the host is asked."""

from collections.abc import Callable

import pytest
from harness import Console, screen_text, settle
from stub_host import NOON, StubHost, snapshot

from console.app import ConsoleApp
from console.settings import Settings
from console.theme import DARK
from engine_host.api.contract import HostError


@pytest.mark.parametrize("size", [(80, 24), (120, 40)])
async def test_keys_and_tiers_tell_state_and_use(console: Console, size: tuple[int, int]) -> None:
    async with console(StubHost(), "keys", size) as (app, pilot):
        seen = screen_text(app.screen)
        await pilot.press("end")
        await pilot.pause()
        text = " ".join((seen + screen_text(app.screen)).split())  # narrow spaces too
        for part in (
            "web [chat] · ● active",
            "ops · ● active",
            "掲示板-bot · ● active · default tier",
            "old · ◌ expired",
            "leaked · ✖ revoked",
            "no limits",
            "42 / 60 70 % resets in 22 s",
            "1 240 000 / 20M 6 % resets in 11 h",
            "$5.20 / $5.00 104 %",
            "61 000 / 64 000 95 %",
        ):
            assert part in text
        assert "\x1b" not in text


async def test_the_host_is_asked_every_two_seconds_while_shown_and_its_objection_said_once(console: Console) -> None:
    host = StubHost()
    async with console(host, "keys") as (app, pilot):

        async def at(seconds: float) -> int:
            host.now = snapshot(time=NOON + seconds, gateway=None)
            await app.poll()
            await settle(app, pilot)
            return host.keys_asked

        assert host.keys_asked == 1
        assert [await at(1), await at(2), await at(3)] == [1, 2, 2]
        assert "n/a: the host tells nothing of its tiers." in screen_text(app.screen)
        await pilot.press("0")
        assert await at(9) == 2, "nobody looks"
        host.key_lines = HostError(503, "The keys [can't] be read.")
        await pilot.press("6")
        await settle(app, pilot)
        assert await at(12) == 4
        assert [notification.message for notification in app._notifications] == ["The keys [can't] be read."]
        host.key_lines = []
        await at(15)
        assert "No keys. Make one with: llmconsole key create NAME" in screen_text(app.screen)


def test_keys_screen(snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("console.screens.base.clock_text", lambda snapshot: "12:00:00")
    host = StubHost()
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False)

    async def arrange(pilot) -> None:  # type: ignore[no-untyped-def]
        await settle(app, pilot)
        await pilot.press("6")
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=(120, 40), run_before=arrange)
