"""The overview: every number where it belongs, `n/a` with a reason, and the pages of the selected request."""

from pathlib import Path

import msgspec
import pytest
from harness import Console, screen_text, settle, shown, write_flight_record
from stub_host import NOON, StubHost, history, snapshot, starting

from engine_host.api.types import Cost, FlightFile, Mark, RequestRow
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
            assert "◇short [steps" in top
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
        assert asked == [NOON - 120, NOON - 1]


async def test_two_thousand_requests_and_nothing_cut(console: Console, serving: StubHost) -> None:
    rows = tuple(RequestRow(f"chatcmpl-{n:08x}", "decode", n, 0, n, None, 1.0, 0.1, 0.05, 3) for n in range(2_000))
    serving.now = snapshot(requests=rows, flight=serving.now.flight)  # type: ignore[union-attr]
    async with console(serving, "overview", (80, 24)) as (app, pilot):
        app.screen.query_one(RequestTable).focus()
        await pilot.press("end")
        assert "000007cf" in screen_text(app.screen)
