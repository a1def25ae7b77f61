"""The Doctor screen and the step ring it opens: evidence, remedy, the steps around a moment, following a request."""

from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest
from harness import Console, screen_text, settle, shown
from ring_record import serving, write_ring
from stub_figures import FINDINGS
from stub_host import NOON, StubHost, snapshot

from console.app import ConsoleApp
from console.screens.step_ring import StepRingScreen, open_step_ring
from console.settings import Settings
from console.step_record import StepRecord, read_step_record
from console.theme import DARK
from engine_host.api.contract import HostError
from engine_host.api.figures import Finding
from engine_host.api.types import FlightFile
from engine_host.flight.layout import RING_STEPS
from widgets.table import Table


def told(app: ConsoleApp) -> str:
    """What stands on the screen, with single spaces."""
    return " ".join(screen_text(app.screen).replace("│", " ").split())


def finding(step: int | None, request: str | None = None, time: float = NOON) -> Finding:
    """A finding about this step."""
    return msgspec.structs.replace(FINDINGS[0], step=step, request=request, time=time)


async def test_findings_are_told_with_evidence_and_remedy(console: Console) -> None:
    host = StubHost()
    host.found = HostError(503, "later")
    async with console(host, "doctor", (80, 24)) as (app, pilot):

        async def later(seconds: float, answer: list[Finding] | Exception) -> str:
            host.found = answer
            host.now = snapshot(time=NOON + seconds)
            await app.poll()
            await settle(app, pilot)
            return told(app)

        assert "n/a: later" in told(app)
        assert "Nothing found" not in told(app), "not before the doctor has looked"
        text = await later(-2, list(FINDINGS))
        for part in (
            "✖ The KV pool is full and requests are",
            "40 s 1 180 7f3a91c0",
            "✖ 1 problem · ▲ 2 warnings",
            "• 512 of 512 pages were in use at step 1180",
            "lower scheduler.max_active below [16].",
        ):
            assert part in text
        await pilot.press("down")
        await settle(app, pilot)
        assert "A long prompt stalls [decode ─" in told(app)
        assert "• step 1120 took 412 ms, 14 times the median of 29 ms" in told(app)
        text = await later(2, HostError(503, "The [doctor] is out."))
        assert "n/a: The [doctor] is out." in text
        assert "A long prompt" in text
        text = await later(4, [])
        assert "Nothing found." in text
        assert "n/a" not in text
        await pilot.press("enter")
        assert len(app.screen_stack) == 1, "there is no moment to look at"


async def test_one_key_opens_the_ring_at_the_step_and_follows_its_request(console: Console, tmp_path: Path) -> None:
    host = StubHost(serving(tmp_path / "flight"))
    host.found = [finding(150, "cmpl-[b44e1b7d2")]
    async with console(host, "doctor", (200, 50)) as (app, pilot):
        await pilot.press("enter")
        await settle(app, pilot)
        assert isinstance(app.screen, StepRingScreen)
        steps = app.screen.query_one("#ring-steps", Table)
        assert steps.selected_row.number == 150
        text = told(app)
        assert "Steps 1 to 200 · median 30 ms · ▲ over 3 × that · ✖ preempted" in text
        for part in ("7f3a91c0 decode 1 562", "[b44e1b7d2 preempted 0 2 048", "n/a (old) decode 1 9"):
            assert part in text
        await pilot.press("n")
        await settle(app, pilot)
        assert steps.selected_row.number == 180
        assert "▲ 180" in told(app)
        assert "413 ms" in told(app)
        await pilot.press("n")
        assert steps.selected_row.number == 180
        await pilot.press("p", "f")
        await settle(app, pilot)
        assert [step.number for step in steps.rows] == [120, 150, 180]
        assert "steps of [b44e1b7d2" in told(app)
        assert steps.selected_row.number == 120, "following doesn't move"
        await pilot.press("f")
        assert len(steps.rows) == 200
        await pilot.press("home", "tab", "f")
        await settle(app, pilot)
        assert {share.request for share in app.screen.query_one("#ring-shares", Table).rows} == {"chatcmpl-7f3a91c0"}
        await pilot.press("escape")
        assert not isinstance(app.screen, StepRingScreen)


async def test_the_ring_says_what_it_no_longer_holds_and_why_it_cannot_be_read(
    console: Console, tmp_path: Path
) -> None:
    path = tmp_path / "flight"
    write_ring(path, RING_STEPS + 10)
    host = StubHost(snapshot(flight=(FlightFile(0, str(path)),)))
    async with console(host, "doctor", (80, 24)) as (app, pilot):

        async def standing(step: int | None = None, time: float | None = None) -> str:
            open_step_ring(app, step, None, time)
            await settle(app, pilot)
            text = " ".join(shown(app.screen.query_one("#ring-standing")).split())
            await pilot.press("escape")
            return text

        held = "the ring holds steps 12 to 4 106."
        assert await standing(5) == f"Step 5 has left the ring: {held}"
        assert await standing(9_999) == f"Step 9 999 is not one of this engine's: {held}"
        assert await standing(time=1.0) == f"That moment has left the ring: {held}"
        path.write_bytes(b"[something] else")
        assert "is no flight record" in await standing(5)
        path.unlink()
        assert await standing(5) == "The engine writes no flight record."
        host.now = snapshot(flight=())
        await app.poll()
        open_step_ring(app)
        await pilot.pause()
        assert [note.message for note in app._notifications] == ["There is no step ring: the engine isn't running."]


def test_a_moment_is_found_by_its_time(tmp_path: Path) -> None:
    write_ring(tmp_path / "flight")
    record = read_step_record(str(tmp_path / "flight"))
    sixty = record.steps[59]
    assert record.at_time(sixty.time + 0.05) == 59
    assert record.at_time(record.steps[0].time - 1) is None
    assert [step.number for step in record.steps if step.took > record.long_from] == [120, 180]
    assert [share.kind for share in record.shares(150)] == ["decode", "preempted", "decode"]
    assert [step.number for step in record.steps_of("cmpl-[b44e1b7d2")] == [120, 150, 180]
    assert StepRecord(0.0, [], record.parts, {}).long_from == float("inf")


@pytest.mark.parametrize(("shows", "size"), [("findings", (80, 24)), ("ring", (80, 24)), ("ring", (120, 40))])
def test_doctor_screen(
    snap_compare: Callable[..., bool],
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    shows: str,
    size: tuple[int, int],
) -> None:
    monkeypatch.setattr("console.screens.base.clock_text", lambda snapshot: "12:00:00")
    monkeypatch.setattr("console.step_record.time", lambda: NOON)
    monkeypatch.setattr("console.step_record.monotonic", lambda: 1_000.0)
    host = StubHost(serving(tmp_path / "flight", now=1_000.0))
    if shows == "ring":
        host.found = [finding(150)]
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False)

    async def arrange(pilot) -> None:  # type: ignore[no-untyped-def]
        await settle(app, pilot)
        await pilot.press("9", *(["enter"] if shows == "ring" else []))
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=arrange)
