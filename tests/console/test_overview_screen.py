"""The overview: every number where it belongs, `n/a` with a reason, and the pages of the selected request."""

from pathlib import Path

import msgspec
import pytest
from harness import Console, screen_text, settle, shown, write_flight_record
from stub_figures import NOTHING_KNOWN, PARTS, TELEMETRY
from stub_host import NOON, StubHost, history, snapshot, starting
from textual.pilot import Pilot
from textual.screen import Screen

from console.app import ConsoleApp
from console.screens.panels_time import MEASURES
from engine_host.api.contract import HostError
from engine_host.api.types import ChangeRecord, Cost, FlightFile, Load, Mark, RequestRow, Snapshot
from widgets.meter import Meter
from widgets.page_map import PageMap
from widgets.plot import LinePlot
from widgets.request_table import RequestTable
from widgets.stat import Stat
from widgets.status_bar import StatusBar
from widgets.steps import StepBars


@pytest.fixture
def serving(tmp_path: Path) -> StubHost:
    """A host at work, with a past and a flight record."""
    write_flight_record(tmp_path / "flight")
    host = StubHost(snapshot(flight=(FlightFile(0, str(tmp_path / "flight")),)))
    host.points = history()
    return host


async def test_the_numbers(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview", (160, 50)) as (app, _):
        screen = app.screen
        totals = shown(screen.query_one("#kv-totals", StatusBar))
        assert tuple(totals.split(" · ")[:4]) == ("17 % used", "22 % cached", "61 % free", "hit 83 %")
        assert "p50 82 ms  p99 240 ms" in shown(screen.query_one("#ttft", Stat))
        assert "p50 31 ms  p99 48 ms" in shown(screen.query_one("#ttl", Stat))
        assert "58 tok/s" in shown(screen.query_one("#decode", Stat))
        assert "412 tok/s" in shown(screen.query_one("#prefill", Stat))
        assert "3 running · 1 waiting" in shown(screen.query_one("#counts", Stat))
        assert "CPU busy" in shown(screen.query_one("#utilization", Meter))
        assert "2.9 GB / 25 GB" in shown(screen.query_one("#memory", Meter))
        assert "n/a" in shown(screen.query_one("#power", Stat))
        assert "no RAPL domain readable" in shown(screen.query_one("#power", Stat))
        assert "$0.57" in shown(screen.query_one("#per-million", Stat))
        bar = shown(screen.query_one("#status", StatusBar))
        assert all(part in bar for part in ("SmolLM2-135M-Instruct", "cpu-tiny", "● ready", "127.0.0.1:8000"))


async def test_what_is_unknown_is_not_zero(console: Console) -> None:
    host = StubHost(msgspec.structs.replace(starting(), cost=Cost(None, "no price set", None, 60.0)))
    async with console(host, "overview", (160, 50)) as (app, _):
        assert "n/a" in shown(app.screen.query_one("#kv-totals", StatusBar))
        for name in ("ttft", "ttl"):
            assert shown(app.screen.query_one(f"#{name}", Stat)).split()[1:] == ["n/a", "no", "sample"]
        assert "n/a  no price set" in shown(app.screen.query_one("#per-million", Stat))
        assert "no KV cache" in screen_text(app.screen)


async def test_a_stale_reading_says_so(console: Console) -> None:
    device = snapshot().device
    busy = msgspec.structs.replace(device.utilization, stale=True)
    host = StubHost(snapshot(device=msgspec.structs.replace(device, utilization=busy, problem="The GPU [0] is lost.")))
    async with console(host, "overview", (160, 50)) as (app, _):
        assert "stale" in shown(app.screen.query_one("#utilization", Meter))
        assert "The GPU [0] is lost." in screen_text(app.screen)


async def test_the_page_map_shows_the_record(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview", (160, 50)) as (app, _):
        held = {holder.request_id: holder.pages for holder in app.screen.query_one(PageMap).holders()}
        assert held == {"cmpl-44e1b7d2": 58, "chatcmpl-7f3a91c0": 17, "chatcmpl-91c0aa12": 12}
        legend = shown(app.screen.query_one("#kv-legend", StatusBar))
        assert legend.startswith("■ 44e1b7d2 58 · ■ 7f3a91c0 17 · ■ 91c0aa12 12")


MARKS = (
    Mark(NOON - 45, "live", "short [steps"),
    Mark(NOON - 20, "rebuild", "balanced"),
    Mark(NOON - 5, "recovery", "recovered"),
    Mark(NOON - 5_000, "live", "long ago"),
)


def rendered(widget: LinePlot | StepBars) -> list[str]:
    return [widget.render_line(y).text for y in range(widget.size.height)]


async def test_changes_are_marked_on_every_time_axis(
    console: Console, serving: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.flight_feed._unix_of_monotonic", lambda: NOON - 200)  # a step a second, up to now
    serving.now = snapshot(flight=serving.now.flight, marks=MARKS)  # type: ignore[union-attr]
    async with console(serving, "overview", (160, 50)) as (app, _):
        for plot in app.screen.query(LinePlot):
            legend, top, *_ = rendered(plot)
            assert "◇ live ◆ rebuild ✚ recovery" in legend
            assert "short [steps" in top
            assert "balanced◆" in top, "where the label at its right has no room"
            assert "✚" in top
            assert "long ago" not in top
        top = rendered(app.screen.query_one(StepBars))[0]
        newest_first = top[::-1]
        assert [newest_first.index(glyph) for glyph in "✚◆◇"] == [4, 19, 44], "steps after each change"
        assert "◇ live  ◆ rebuild  ✚ recovery" in screen_text(app.screen)


async def test_the_steps_before_a_rebuild_stay(
    console: Console, serving: StubHost, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.flight_feed._unix_of_monotonic", lambda: NOON - 400)
    marked = (Mark(NOON - 200.5, "rebuild", "balanced"),)
    async with console(serving, "overview", (120, 40)) as (app, pilot):
        write_flight_record(tmp_path / "next", began=200.0)
        serving.now = snapshot(flight=(FlightFile(0, str(tmp_path / "next")),), marks=marked)
        await app.poll()
        await settle(app, pilot)
        bars = app.screen.query_one(StepBars)
        assert len(bars._prefill) == 400
        assert [event.at for event in bars._events] == [200]


@pytest.mark.parametrize("content", [None, b"not a record", b""])
async def test_a_record_that_cannot_be_read_is_said(console: Console, tmp_path: Path, content: bytes | None) -> None:
    path = tmp_path / "flight"
    if content is not None:
        path.write_bytes(content)
    host = StubHost(snapshot(flight=(FlightFile(0, str(path)),)))
    async with console(host, "overview") as (app, pilot):
        assert "flight record" in shown(app.screen.query_one("#kv-problem"))
        path.unlink(missing_ok=True)
        write_flight_record(path)
        await app.poll()
        await settle(app, pilot)
        assert not app.screen.query_one("#kv-problem").display
        assert app.screen.query_one(PageMap).holders()


async def test_selecting_a_request_highlights_its_pages(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview") as (app, pilot):
        lit: list[str | None] = []
        app.screen.query_one(PageMap).highlight = lit.append  # type: ignore[method-assign]
        app.screen.query_one(RequestTable).focus()
        await settle(app, pilot)
        await pilot.press("down")
        await settle(app, pilot)
        assert lit[-1] == "chatcmpl-91c0aa12"
        app.screen.set_focus(None)
        await settle(app, pilot)
        assert lit[-1] is None


async def test_the_past_is_asked_for_once(console: Console, serving: StubHost) -> None:
    asked: list[float] = []
    whole = serving.history

    async def history_since(since: float):  # type: ignore[no-untyped-def]
        asked.append(since)
        return await whole(since)

    serving.history = history_since  # type: ignore[method-assign]
    async with console(serving, "overview") as (app, pilot):
        serving.now = snapshot(time=NOON + 2, flight=serving.now.flight)  # type: ignore[union-attr]
        await app.poll()
        await settle(app, pilot)
        assert asked == [NOON - 600, NOON - 1]


async def test_two_thousand_requests_and_nothing_cut(console: Console, serving: StubHost) -> None:
    rows = tuple(RequestRow(f"chatcmpl-{n:08x}", "decode", n, 0, n, None, 1.0, 0.1, 0.05, 3) for n in range(2_000))
    serving.now = snapshot(requests=rows, flight=serving.now.flight)  # type: ignore[union-attr]
    async with console(serving, "overview", (80, 24)) as (app, pilot):
        app.screen.query_one(RequestTable).focus()
        await pilot.press("end")
        assert "000007cf" in screen_text(app.screen)


def axis(screen: Screen[object]) -> str:
    """What the plots say of the time they show."""
    return shown(screen.query_one("#axis", StatusBar))


def plotted(screen: Screen[object]) -> list[list[float | None]]:
    """The values of the first plot's lines."""
    return [list(line.values) for line in screen.query_one(LinePlot)._series]


async def later(host: StubHost, app: ConsoleApp, pilot: Pilot[None], seconds: int) -> None:
    """Let time pass on the host, a point a second, and ask it."""
    assert isinstance(host.now, Snapshot)
    last = host.points[-1]
    host.points += [msgspec.structs.replace(last, time=last.time + n + 1, ttft_p99=0.7) for n in range(seconds)]
    host.now = msgspec.structs.replace(host.now, time=host.now.time + seconds)
    await app.poll()
    await settle(app, pilot)


async def test_a_pause_holds_the_plots_and_nothing_else(
    console: Console, serving: StubHost, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("console.flight_feed._unix_of_monotonic", lambda: NOON - 200)
    async with console(serving, "overview", (160, 50)) as (app, pilot):
        screen = app.screen
        await pilot.press("space")
        before, steps = plotted(screen), rendered(screen.query_one(StepBars))
        serving.now = msgspec.structs.replace(serving.now, load=Load(9, 0, 1.0, 777.0, 10.0, 1, 0))
        await later(serving, app, pilot, 100)
        assert "paused at 12:00:00 · 1 min ago · 2 min" in axis(screen)
        assert plotted(screen) == before
        assert rendered(screen.query_one(StepBars)) == steps
        assert "until 12:00:00" in screen_text(screen)
        assert "777 tok/s" in shown(screen.query_one("#decode", Stat))
        await later(serving, app, pilot, 900)
        assert plotted(screen) == before, "though the host has forgotten those seconds"
        await pilot.press("m", *["m"] * (len(MEASURES) // 2))
        assert plotted(screen) == before
        assert "Requests  now" in screen_text(screen)
        assert "KV pages  now" in screen_text(screen)
        await pilot.press("space")
        await settle(app, pilot)
        assert axis(screen).startswith("last 2 min")
        assert plotted(screen)[0][-100:] == [0.7] * 100
        assert "Requests  now" not in screen_text(screen)


async def test_the_axis_zooms_and_scrubs_through_the_ledger(console: Console, serving: StubHost) -> None:
    quiet = range(100, 130)
    serving.minutes = [
        msgspec.structs.replace(history(1)[0], time=NOON - 60 * n, ttft_p99=0.2, span_s=60.0, decode_tps=float(n))
        for n in range(600, 0, -1)
        if n not in quiet
    ]
    serving.change_records = [ChangeRecord(1, NOON - 8_000, "rebuild", "a", "old one", "", "", "done")]
    async with console(serving, "overview", (200, 50)) as (app, pilot):
        screen = app.screen
        await pilot.press("plus")
        assert len(plotted(screen)[0]) == 60
        assert "by the minute" not in axis(screen)
        for key in ("minus", "minus", "minus", "minus", "minus", "minus"):
            await pilot.press(key)
        await later(serving, app, pilot, 1)
        assert axis(screen) == "last 3 h · by the minute"
        first = plotted(screen)[0]
        known = [value is not None for value in first[::2]]
        assert len(known) == 180
        assert known.count(False) == len(quiet), "a gap stays a gap"
        assert "old one" in screen_text(screen)
        await pilot.press("left", "h", "comma", "left")
        assert "paused at 09:00:01 · 3 h ago · 3 h · by the minute" in axis(screen)
        await pilot.press("home")
        await settle(app, pilot)
        assert "paused at 05:00:00" in axis(screen)
        assert "02:00:00" in screen_text(screen)
        await pilot.press("left")
        assert "paused at 05:00:00" in axis(screen), "there is nothing before it"
        await pilot.press("end")
        assert axis(screen).startswith("last 3 h")


async def test_without_a_ledger_the_axis_says_how_far_back_it_knows(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview", (160, 50)) as (app, pilot):
        assert "data since 11:59:00" in axis(app.screen)
        await pilot.press("home")
        await settle(app, pilot)
        await pilot.press("left")
        assert "paused at 12:00:00" in axis(app.screen)
        serving.points = []
    async with console(StubHost(snapshot(flight=())), "overview") as (app, pilot):
        await pilot.press("space", "minus", "left", "home")
        await settle(app, pilot)
        assert "no data yet" in axis(app.screen)


async def test_the_measures_take_turns_on_the_plots(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview", (80, 24)) as (app, pilot):
        seen = []
        for _ in MEASURES:
            seen.append(axis(app.screen).split(" · ")[0])
            await pilot.press("m")
        assert len(set(seen)) == len(MEASURES)
        assert axis(app.screen).startswith("TTFT")
        await pilot.resize_terminal(200, 50)
        await settle(app, pilot)
        assert [str(line.name) for plot in app.screen.query(LinePlot) for line in plot._series] == [
            "TTFT p99", "TTFT p50", "TTL p99", "TTL p50",
        ]  # fmt: skip
        assert "premium 100 ms" in screen_text(app.screen)


async def test_what_was_measured(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview", (200, 50)) as (app, pilot):
        screen = app.screen
        for text in (
            "mean 82 ms", "■ queue 22 ms", "■ prefill 41 ms", "■ first decode 16 ms", "■ delivery 2.0 ms",
            "41 % · KV hit 83 %", "compute-bound 42 %  of peak FLOP/s", "bandwidth-bound 67 %  of peak bandwidth",
            "$0.12/h · $0.002/min", "idle 27 %", "■ idle $0.37", "est., built-in price",
        ):  # fmt: skip
            assert text in screen_text(screen), text
        quiet = msgspec.structs.replace(PARTS[0], count=0)
        serving.figures = msgspec.structs.replace(TELEMETRY, parts=(quiet, PARTS[1]))
        await later(serving, app, pilot, 1)
        assert "mean 90 ms · 10 min" in screen_text(screen)
        serving.figures = NOTHING_KNOWN
        await later(serving, app, pilot, 1)
        for name in ("parts", "bill"):
            assert "n/a" in shown(screen.query_one(f"#{name}"))
            assert "■" not in shown(screen.query_one(f"#{name}"))
        assert "n/a · KV hit 83 %" in shown(screen.query_one("#fill", Stat))
        for phase in ("prefill", "decode"):
            assert "n/a  no steps in the window" in shown(screen.query_one(f"#roofline-{phase}", Stat))
        serving.figures = HostError(404, "An old host.")
        await later(serving, app, pilot, 1)
        assert "58 tok/s" in shown(screen.query_one("#decode", Stat))


async def test_no_tile_is_cut_off(console: Console, serving: StubHost) -> None:
    async with console(serving, "overview", (80, 24)) as (app, pilot):
        for size in ((80, 24), (80, 32), (109, 38), (120, 32), (120, 40), (200, 50)):
            await pilot.resize_terminal(*size)
            await settle(app, pilot)
            right = app.screen.query_one("#right")
            assert right.max_scroll_y == 0, size
            assert all(
                line.region.bottom <= right.region.bottom for line in right.query("#right > * > *") if line.display
            )
            assert "…" not in screen_text(app.screen), size
