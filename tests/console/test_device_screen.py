"""The Device screen: every reading under its label, what can't be read and why, several devices, roofline and steps."""

from collections.abc import Callable

import msgspec
import pytest
from harness import Console, screen_text, settle, shown
from stub_figures import CPU, H200, NEIGHBOUR, NOTHING_KNOWN, TELEMETRY
from stub_host import NOON, StubHost, snapshot

from console.app import ConsoleApp
from console.settings import Settings
from console.theme import DARK
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import Device
from widgets.facts import Facts


def read(*devices: Device) -> StubHost:
    """A host with these devices."""
    host = StubHost()
    host.figures = msgspec.structs.replace(TELEMETRY, devices=devices)
    return host


def told(app: ConsoleApp) -> str:
    """All that stands on the screen, in view or not, with single spaces."""
    parts = [shown(facts) for facts in app.screen.query(Facts)]
    return " ".join("\n".join([screen_text(app.screen), *parts]).split())


async def test_each_reading_has_its_label_value_and_reason(console: Console) -> None:
    async with console(read(H200), "device", (200, 50)) as (app, _):
        text = told(app)
        for part in (
            "0 NVIDIA H200 [SXM]",
            "SM active ██████",
            "memory used ",
            "91 GB / 151 GB",
            "power limit 700 W",
            "energy 0.13 kWh",
            "SM clock 1 755 MHz of at most 1980 MHz",
            "clocks held down ▲ power limit",
            "PCIe link gen 5 ×16 of gen 5 ×16",
            "PCIe sent ▲ 400 MB/s stale",
            "NVLink received 41 GB/s",
            "memory pages retired n/a not supported",
            "4312 VLLM::EngineCore",
            "991 python [train].py",
            "n/a not told",
            "sampler 0.21 % of a CPU core, its own cost",
        ):
            assert part in text
        assert shown(app.screen.query_one("#events")) == "✖ 5 min 40 s ago: Xid 63: row remapping [pending]"
        assert app.screen.query_one("#devices").display is False, "one device needs no list"


async def test_roofline_and_steps(console: Console) -> None:
    async with console(read(H200), "device", (80, 24)) as (app, pilot):
        text = told(app)
        for part in (
            "42 % est. 412T FLOP/s",
            "67 % est. 3.2 TB/s",
            "41 % of the token budget",
            "step p99 81 ms",
            "64 % of the time since start",
            "97 % of the last 10 s",
        ):
            assert part in text
        verdict, peaks = (shown(app.screen.query_one(name)) for name in ("#prefill-verdict", "#peaks"))
        assert verdict.startswith("● compute-bound (est.): 412 TFLOP/s of 989 at 410 FLOP/byte")
        assert "peak FLOP/s, BF16 dense: 989T FLOP/s (H200 data sheet, 2024-11)" in peaks
        assert "Roofline" not in screen_text(app.screen).replace("r Roofline", "")
        await pilot.press("r")
        await pilot.pause()
        assert "╭─ Roofline" in screen_text(app.screen)
        await pilot.press("u")
        await pilot.pause()
        assert "SM active" in screen_text(app.screen)


async def test_the_selected_of_several_devices_is_shown(console: Console) -> None:
    async with console(StubHost(), "device", (120, 40)) as (app, pilot):
        await pilot.press("j")
        await settle(app, pilot)
        text = told(app)
        assert "1 Tesla [b P4" in text
        assert "\x1b" not in text
        assert "GPU 1 is lost; it is opened again every 5 s." in shown(app.screen.query_one("#device-problem"))
        assert "kernel-busy" in shown(app.screen.query_one("#busy"))
        assert "▲ 99 %  stale" in shown(app.screen.query_one("#busy"))
        assert "power        n/a  not supported" in shown(app.screen.query_one("#power"))
        assert app.screen.query_one("#links-panel").display is False, "nothing is known of it"
        await pilot.press("down")
        await settle(app, pilot)
        text = told(app)
        assert "CPU AMD EPYC 9B14, 4 cores" in text
        assert "0 ████████▍ 93 %" in text, "each core"
        assert "DRAM bandwidth used n/a no counter that may be read" in text


async def test_nothing_known_and_a_host_that_does_not_answer(console: Console) -> None:
    host = StubHost()
    host.figures = HostUnreachable("The host [does not] answer.", gone=False)
    async with console(host, "device", (80, 24)) as (app, pilot):

        async def later(seconds: float) -> str:
            host.now = snapshot(time=NOON + seconds)
            await app.poll()
            await settle(app, pilot)
            return told(app)

        assert "n/a: The host [does not] answer." in told(app)
        asked = host.telemetry_asked
        host.figures = NOTHING_KNOWN
        text = await later(0.5)
        assert host.telemetry_asked == asked, "not before a second has passed"
        text = await later(1)
        assert "n/a: the host reads no device." in text
        assert "does not" not in text
        assert "fill rate ╌" in text
        assert "n/a no steps" in text
        assert "◌ unknown: no steps in the window" in shown(app.screen.query_one("#decode-verdict"))
        assert "peak FLOP/s: n/a (not in the table: set peaks.flops)" in shown(app.screen.query_one("#peaks"))
        host.figures = msgspec.structs.replace(TELEMETRY, devices=(H200, NEIGHBOUR, CPU))
        assert "NVIDIA H200" in await later(2)
        host.figures = HostError(503, "later")
        text = await later(3)
        assert "n/a: later" in text
        assert "NVIDIA H200" in text, "what was known stays"


@pytest.mark.parametrize(("what", "size"), [("gpus", (80, 24)), ("gpus", (200, 50)), ("cpu", (120, 40))])
def test_device_screen(
    snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, what: str, size: tuple[int, int]
) -> None:
    monkeypatch.setattr("console.screens.base.clock_text", lambda snapshot: "12:00:00")
    host = StubHost() if what == "gpus" else read(CPU)
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False)

    async def arrange(pilot) -> None:  # type: ignore[no-untyped-def]
        await settle(app, pilot)
        await pilot.press("7")
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=arrange)
