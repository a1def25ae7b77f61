"""The Requests screen: what it shows, filtering, marking, cancelling, moving to a tier, and a request's waterfall."""

from collections.abc import Callable

import msgspec
import pytest
from harness import Console, screen_text, settle, shown
from stub_host import GATEWAY, NOON, REQUESTS, WATERFALL, StubHost, snapshot
from textual.widgets import Input

from console.app import ConsoleApp
from console.screens.help import HelpScreen
from console.screens.request_questions import CancelScreen, TierScreen
from console.screens.request_waterfall import WaterfallScreen
from console.screens.step_ring import StepRingScreen
from console.settings import Settings
from console.theme import DARK
from engine_host.api.contract import HostError
from engine_host.api.types import CancelCommand, CommandReply, RequestRow, Span, TierCommand
from widgets.request_table import RequestTable
from widgets.waterfall import WaterfallView

FIRST, SECOND, THIRD, FOURTH = (row.id for row in REQUESTS)


def said(app: ConsoleApp) -> list[str]:
    """The sentences in the corner."""
    return [notification.message for notification in app._notifications]


def table(app: ConsoleApp) -> RequestTable:
    """The table, under any question."""
    return app.screen_stack[0].query_one(RequestTable)


async def test_gateway_and_requests_are_told_with_what_is_unknown(console: Console) -> None:
    row = RequestRow(
        "x\x1b[31m[/b]", "held", 9, None, 3, None, 70.0, None, None, None, "掲示板掲示板", "[red]k\x07", "l", 2.0
    )
    host = StubHost(snapshot(requests=(*REQUESTS, row)))
    async with console(host, "requests", (200, 50)) as (app, pilot):
        text = screen_text(app.screen).replace("\u202f", " ")
        for part in (
            "long 2 waiting, oldest 1 240 ms · admits 3.2 req/s",
            "✖ open · turns away best-effort · for 12 s · Requests wait 2.1 s, over the target of 500 ms.",
            "1 active · 0 waiting · 0 held · TTFT p99 82 ms ≤ 100 ms · TTL p99 44 ms ≤ 50 ms",
            "TTFT p99 340 ms > 250 ms · TTL p99 41 ms · 2 refused",
            "✖ shed · 0 active · 1 waiting · 0 held · TTFT p99 n/a · TTL p99 n/a · 9 refused · 3 set aside",
            "est. cost",
        ):
            assert part in text
        header, oldest, *_, newest = (table(app).render_line(y).text for y in range(6))
        assert newest.split()[:5] == ["0be57f10", "best-effort", "n/a", "throughput", "queued"]
        assert newest.split()[5:] == ["100", "ms", "100", "ms", "640", "0", "n/a", "n/a", "n/a", "n/a"]
        assert "x[/b]" in oldest, "no markup, no control characters"
        assert "[red]k␇" in oldest
        ahead = oldest.index("掲示板掲示板")
        assert oldest.index("[red]k") + 6 == header.index("key"), "wide characters take two cells"
        assert ahead == header.index("tier")
        for width, titles in (
            (120, ["lane", "prompt", "est. cost", "age"]),
            (80, ["tier", "waited", "TTL p99", "pages"]),
        ):
            await pilot.resize_terminal(width, 24)
            await settle(app, pilot)
            header = table(app).render_line(0).text
            assert [title for title in titles if title not in header] == []
        assert "lane" not in header
        host.now = snapshot(gateway=None, requests=())
        await app.poll()
        await settle(app, pilot)
        assert "lanes, tiers and breaker n/a" in screen_text(app.screen)
        await pilot.press("x", "t", "enter", "space")
        assert len(app.screen_stack) == 1, "with no request there is nothing to do"


async def test_filter_mark_and_cancel(console: Console) -> None:
    host = StubHost()
    async with console(host, "requests") as (app, pilot):
        await pilot.press("slash", *"STANDARD dec", "enter")
        await settle(app, pilot)
        assert table(app).selected == SECOND
        assert "1 of 4" in screen_text(app.screen)
        await pilot.press("x")
        await settle(app, pilot)
        assert isinstance(app.screen, CancelScreen), "the cursor came there by itself"
        await pilot.press("n")
        assert host.commands == []
        await pilot.press("escape", "home", "x")
        await settle(app, pilot)
        assert host.commands.pop() == CancelCommand((FIRST,)), "one needs no question"
        await pilot.press("slash", *"standard", "enter", "a")
        await settle(app, pilot)
        assert table(app).marked == (SECOND, THIRD)
        assert "2 marked" in screen_text(app.screen)
        await pilot.press("escape", "end", "space", "delete")
        await settle(app, pilot)
        assert "End 3 requests?" in screen_text(app.screen)
        await pilot.press("escape")
        assert host.commands == []
        await pilot.press("x")
        host.reply = CommandReply(False, "Request [7f3a] has ended already.")
        await pilot.press("y")
        await settle(app, pilot)
        assert host.commands == [CancelCommand((SECOND, THIRD, FOURTH))]
        assert said(app) == ["Request [7f3a] has ended already."]
        assert table(app).marked == ()
        assert app.screen.query_one("#find", Input).display is False


async def test_the_cursor_stays_on_its_request_and_never_ends_another_unasked(console: Console) -> None:
    host = StubHost()
    async with console(host, "requests") as (app, pilot):
        await pilot.press("down", "space", "down")  # marks the second, and stands on the fourth
        assert table(app).selected == FOURTH
        older = [msgspec.structs.replace(REQUESTS[0], id=f"cmpl-{n}", age_s=99.0 + n) for n in range(50)]
        host.now = snapshot(requests=(REQUESTS[3], *older, REQUESTS[1]))
        await app.poll()
        await settle(app, pilot)
        assert table(app).selected == FOURTH
        assert table(app).marked == (SECOND,)
        top = table(app).scroll_offset.y
        assert top <= 51 < top + table(app).size.height, "and in view"
        host.now = snapshot(requests=REQUESTS[:3])
        await app.poll()
        await pilot.press("escape", "x")
        await settle(app, pilot)
        assert host.commands == []
        assert "44e1b7d2" in screen_text(app.screen)
        await pilot.press("n", "s", "up", "x")
        await settle(app, pilot)
        assert "by tier" in screen_text(app.screen)
        assert host.commands == [CancelCommand((SECOND,))]


async def test_requests_move_to_a_chosen_tier(console: Console) -> None:
    odd = msgspec.structs.replace(GATEWAY.tiers[0], name="odd [b tier", shed=True)
    host = StubHost(snapshot(gateway=msgspec.structs.replace(GATEWAY, tiers=(*GATEWAY.tiers, odd))))
    async with console(host, "requests", (80, 24)) as (app, pilot):
        await pilot.press("t")
        await settle(app, pilot)
        assert isinstance(app.screen, TierScreen)
        assert "odd [b tier  1 active, 0 waiting  ✖ shed" in screen_text(app.screen)
        await pilot.press("escape", "a", "t", "end", "enter")
        await settle(app, pilot)
        assert host.commands == [TierCommand((FIRST, SECOND, THIRD, FOURTH), "odd [b tier")]
        host.now = snapshot(gateway=None)
        await app.poll()
        await pilot.press("t")
        assert said(app) == ["The host doesn't tell which tiers there are."]


async def test_the_waterfall_is_followed_until_the_request_ends_or_is_forgotten(console: Console) -> None:
    host = StubHost()
    async with console(host, "requests") as (app, pilot):
        await pilot.press("home", "enter")
        await settle(app, pilot)
        assert isinstance(app.screen, WaterfallScreen)
        text = screen_text(app.screen).replace("\u202f", " ")
        assert "key web [chat]" in text
        assert "2 400 ms  108 tokens" in text, "from its start to the age of the request"
        assert "behind [long] prompts" in text
        await pilot.press("z")
        assert app.screen.query_one(WaterfallView).span == 1.9
        await pilot.press("o")
        await settle(app, pilot)
        assert isinstance(app.screen, StepRingScreen)
        await pilot.press("escape")
        ended = msgspec.structs.replace(
            WATERFALL, finish_reason="stop", spans=(*WATERFALL.spans[:6], Span("done", 3.1, 3.1))
        )
        host.waterfalls[FIRST] = ended
        host.now = snapshot(time=NOON + 0.5)
        await app.poll()
        await settle(app, pilot)
        assert "Running" in shown(app.screen.query_one("#standing")), "not before a second has passed"
        host.now = snapshot(time=NOON + 1)
        await app.poll()
        await settle(app, pilot)
        assert shown(app.screen.query_one("#standing")) == "Ended: stop."
        await pilot.press("escape", "down", "enter")
        await settle(app, pilot)
        assert shown(app.screen.query_one("#standing")) == "The host [no longer] knows this request."
        host.waterfalls[SECOND] = HostError(500, "asked again")
        host.now = snapshot(time=NOON + 9)
        await app.poll()
        await settle(app, pilot)
        assert "no longer" in shown(app.screen.query_one("#standing"))
        await pilot.press("escape", "question_mark")
        assert isinstance(app.screen, HelpScreen)
        text = screen_text(app.screen)
        ours = [binding for _, binding in app.screen_stack[0]._bindings if binding.show or binding.id]
        assert [binding for binding in ours if not binding.id or not binding.tooltip] == []
        assert [binding.tooltip for binding in ours if binding.tooltip not in text] == []


@pytest.mark.parametrize(
    ("shows", "size"), [("table", (80, 24)), ("table", (120, 40)), ("table", (200, 50)), ("waterfall", (120, 40))]
)
def test_requests_screen(
    snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, shows: str, size: tuple[int, int]
) -> None:
    monkeypatch.setattr("console.screens.base.clock_text", lambda snapshot: "12:00:00")
    host = StubHost()
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False)

    async def arrange(pilot) -> None:  # type: ignore[no-untyped-def]
        await settle(app, pilot)
        await pilot.press("5")
        await settle(app, pilot)
        await pilot.press(*(["enter"] if shows == "waterfall" else ["space", "down"]))
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=arrange)
