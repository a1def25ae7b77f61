"""The Cost screen: a bill that adds up, costs and latencies of groups, and what is not known."""

import re
from collections.abc import Callable

import msgspec
import pytest
from harness import Console, screen_text, settle
from stub_figures import BILL, COSTS, NOTHING_KNOWN, PARTS, TELEMETRY
from stub_host import NOON, StubHost, snapshot

from console.app import ConsoleApp
from console.screens.cost_lines import bill_parts, grouped, total_segments
from console.settings import Settings
from console.theme import DARK
from engine_host.api.contract import HostUnreachable
from engine_host.api.figures import LedgerStatus
from widgets import units
from widgets.table import Table


def told(app: ConsoleApp) -> str:
    """What stands on the screen, with single spaces."""
    return " ".join(screen_text(app.screen).replace("│", " ").split())


def number(text: str) -> float:
    """The number in a text."""
    return float(re.sub(r"[^\d.]", "", text))


def test_the_parts_as_shown_add_up_to_the_total_as_shown() -> None:
    thirds = dict.fromkeys(BILL.seconds, 1 / 3)
    for bill, digits in (
        (BILL, 4),
        (msgspec.structs.replace(BILL, seconds=thirds, usd=thirds, device_s=7 / 3, total_usd=7 / 3), 4),
        (
            msgspec.structs.replace(
                BILL, usd=dict.fromkeys(BILL.seconds, 100 / 3), total_usd=700 / 3, seconds=thirds, device_s=7 / 3
            ),
            2,
        ),
    ):
        parts = bill_parts(bill)
        assert sum(number(part.texts[0]) for part in parts) == pytest.approx(round(bill.device_s, 1))
        assert bill.total_usd is not None
        assert sum(number(part.texts[1]) for part in parts) == pytest.approx(round(bill.total_usd, digits))


@pytest.mark.parametrize(
    ("changes", "told"),
    [
        ({}, "est. $1.3781 = 1 508.0 s of 2 devices × $3.29/h"),
        ({"energy_usd": 0.1, "total_usd": 1.4781}, "est. $1.4781 = 1 508.0 s of 2 devices × $3.29/h + $0.10 energy"),
        ({"usd_per_device_hour": 9.0}, "est. $1.3781 for 1 508.0 s of 2 devices at prices that changed"),
        (
            {"priced_s": 754.0, "total_usd": 0.689},
            "est. $0.6890 for 754.0 s of 2 devices of 1 508.0 s: the rest had no price",
        ),
        ({"usd_per_device_hour": None}, "est. $1.3781 for 1 508.0 s of 2 devices at prices that changed"),
        ({"usd_per_device_hour": None, "total_usd": None}, "n/a = 1 508.0 s of 2 devices × n/a"),
    ],
)
def test_time_times_price_is_shown_only_where_it_is_the_sum(changes: dict[str, object], told: str) -> None:
    (segment,) = total_segments(msgspec.structs.replace(BILL, **changes))
    assert segment.text.replace(units.THIN_SPACE, " ") == told


async def test_the_bill_tells_sum_price_shares_idle_and_saved(console: Console) -> None:
    host = StubHost()
    async with console(host, "cost", (80, 24)) as (app, pilot):
        text = told(app)
        for part in (
            "est. $1.3781 = 1 508.0 s of 2 devices × $3.29/h",
            "Price est. $3.29 per device-hour: built-in table: H200, on demand, 2026-01",
            "decode 655.6 s $0.5992 43 %",
            "fixed 33 % · compute 58 % · memory 6 % · scheduling 2 % · I/O 1 %",
            "idle costs $0.37, $1.77 an hour · the prefix cache saved est. $0.14",
            "all requests $0.87 $18.59 $4.81 $0.31 $71.20",
            "best-effort $0.0037 $1.85 $3.10 n/a $40.00",
        ):
            assert part in text
        host.figures = msgspec.structs.replace(
            TELEMETRY,
            bill=msgspec.structs.replace(
                BILL, usd=None, total_usd=None, usd_per_device_hour=None, price_source="set [cost]", energy_usd=None
            ),
            ledger=LedgerStatus("ledger.db", 9, 0, 3, "the disk is [full]"),
        )
        host.now = snapshot(time=NOON + 1)
        await app.poll()
        await settle(app, pilot)
        text = told(app)
        assert "n/a = 1 508.0 s of 2 devices × n/a" in text
        assert "Price n/a: set [cost]" in text
        assert "decode 655.6 s 43 %" in text
        assert "▲ ledger: the disk is [full] · ▲ the ledger lost 3 rows" in text


async def test_costs_are_grouped_and_sorted(console: Console) -> None:
    async with console(StubHost(), "cost", (120, 40)) as (app, pilot):
        table = app.screen.query_one("#costs", Table)

        def names() -> list[str]:
            return [line.name for line in table.rows]

        assert names() == ["", "premium", "standard", "best-effort"]
        await pilot.press("g")
        assert names() == ["", "k1", "k2 [red]掲示板"]
        assert "k2 [red]掲示板" in told(app)
        await pilot.press("o", "o")
        assert names() == ["", "k2 [red]掲示板", "k1"], "by $ a thousand requests"
        assert "$/1k req ▾" in told(app)
        await pilot.press("g", "g", "g")
        assert "2026-01-01 11:00" in told(app)
        await pilot.press("o", "o", "o")
        assert app.screen.query_one("#costs-panel").border_subtitle.startswith("by name")
    unknown = msgspec.structs.replace(COSTS[1], name="unknown", usd=None)
    assert [line.name for line in grouped([unknown, *COSTS], "tier", "spent")][-1] == "unknown"


async def test_latencies_by_group_and_window(console: Console) -> None:
    async with console(StubHost(), "cost", (120, 40)) as (app, pilot):
        await pilot.press("v")
        await settle(app, pilot)
        text = told(app)
        for part in (
            "Latency by tier · 1 min",
            "premium 61 ms 98 ms 177 ms 28 ms 45 ms 81 ms 29 ms 83 ms 48 6 112",
            "guard 1.2 ms 1 %",
            "first decode 16 ms 20 %",
            "mean TTFT 82 ms over 48 requests",
            "1 025–4 096",
            "342 ms p50 118 ms · n 60",
            "n/a no prompt",
        ):
            assert part in text
        assert PARTS[0].ttft_s == pytest.approx(0.082)
        await pilot.press("w", "w", "g")
        await settle(app, pilot)
        text = told(app)
        assert "Latency by key · since start" in text
        assert "k2 [red]掲示板 120 ms" in text
        assert "n/a: no request with all its parts in this window" in text
        await pilot.press("w", "g")
        await settle(app, pilot)
        assert "quick [b] n/a n/a n/a n/a n/a n/a n/a n/a 0 0" in told(app)
        await pilot.press("o")
        assert "Latency by profile · 10 s" in told(app), "there is nothing to sort here"
        await pilot.press("v")
        await settle(app, pilot)
        assert "Cost by tier" in told(app)


async def test_nothing_known_and_a_host_that_does_not_answer(console: Console) -> None:
    host = StubHost()
    host.figures = HostUnreachable("The host does not answer.", gone=False)
    async with console(host, "cost", (80, 24)) as (app, pilot):
        assert "n/a: The host does not answer." in told(app)
        host.figures = NOTHING_KNOWN
        host.now = snapshot(time=NOON + 1)
        await app.poll()
        await settle(app, pilot)
        text = told(app)
        for part in (
            "n/a = 0.0 s of 0 devices × n/a",
            "Price n/a: no price: set cost.usd_per_hour",
            "n/a: no device has been paid for",
            "idle costs n/a · the prefix cache saved est. n/a",
            "n/a: no request has ended yet",
        ):
            assert part in text
        await pilot.press("v")
        await settle(app, pilot)
        assert "all requests n/a n/a n/a n/a" in told(app)


@pytest.mark.parametrize(("side", "size"), [("bill", (80, 24)), ("bill", (120, 40)), ("latency", (80, 24))])
def test_cost_screen(
    snap_compare: Callable[..., bool], monkeypatch: pytest.MonkeyPatch, side: str, size: tuple[int, int]
) -> None:
    monkeypatch.setattr("console.screens.base.clock_text", lambda snapshot: "12:00:00")
    host = StubHost()
    app = ConsoleApp(lambda: host, Settings(theme=DARK.name), live=False)

    async def arrange(pilot) -> None:  # type: ignore[no-untyped-def]
        await settle(app, pilot)
        await pilot.press("8", *(["v"] if side == "latency" else []))
        await settle(app, pilot)

    assert snap_compare(app, terminal_size=size, run_before=arrange)
