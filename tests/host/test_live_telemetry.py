"""What is measured, charged and kept of requests on the real engine."""

import asyncio
import json
import math
import sqlite3
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

import aiohttp
import pytest

from engine_host.api.client import HostClient
from engine_host.api.figures import BillPart, Telemetry
from engine_host.api.flight import DECODE, LEFT, PREFILL, FlightReader
from engine_host.api.types import ApplyCommand
from engine_host.doctor.record import parse
from engine_host.ledger.file import LEDGER_FILE
from tests.conftest import TINY
from tests.host.test_live_host import idle, until
from tests.support import LiveHost

pytestmark = pytest.mark.engine

PRICE = 36.0  # a cent a second
RULES = f'{TINY}\n[keys]\nrequired = "never"\n[cost]\nusd_per_hour = {PRICE}\n'
NOBODYS: tuple[BillPart, ...] = ("scheduling", "io", "idle", "down")
REQUESTS: tuple[BillPart, ...] = ("prefill", "decode", "memory")


class Desk:
    """The host as its operator and its clients have it."""

    def __init__(self, live: LiveHost, host: HostClient, port: aiohttp.ClientSession) -> None:
        self.live, self.host, self.port = live, host, port

    async def ask(self, request_id: str, **body: Any) -> Any:
        body = {"model": "stub-model", "temperature": 0, "ignore_eos": True, "max_tokens": 8, **body}
        headers = {"X-Request-Id": request_id}
        async with self.port.post("/v1/completions", json=body, headers=headers) as reply:
            assert reply.headers["X-Request-Id"] == request_id
            return await reply.json()

    def rows(self, request_id: str | None = None) -> list[dict[str, Any]]:
        """Rows of the ledger, of one HTTP request or of all of this test's profile."""
        with sqlite3.connect(self.live.data / LEDGER_FILE) as ledger:
            ledger.row_factory = sqlite3.Row
            where = "request_id = ?" if request_id is not None else "profile = ?"
            found = ledger.execute(f"SELECT * FROM requests WHERE {where}", (request_id or "priced",))
            return [dict(each) for each in found]

    async def written(self, request_id: str, count: int = 1) -> list[dict[str, Any]]:
        """The rows of a request once they are in the file."""
        return await eventually(lambda: asyncio.to_thread(self.rows, request_id), lambda rows: len(rows) == count)

    async def settled(self) -> Telemetry:
        """What is measured once no request is open, and what was booked is not older than that."""
        await until(self.host, idle)
        before = await self.host.telemetry()
        return await eventually(self.host.telemetry, lambda now: now.time > before.time + 1.0)


async def eventually(ask: Callable[[], Awaitable[Any]], wanted: Callable[[Any], bool]) -> Any:
    async with asyncio.timeout(30):
        while True:
            if wanted(found := await ask()):
                return found
            await asyncio.sleep(0.05)


@pytest.fixture
async def desk(live_host: LiveHost) -> AsyncIterator[Desk]:
    """The host with a price, and nothing running."""
    (live_host.runtime / "config" / "llmconsole" / "profiles" / "priced.toml").write_text(RULES)
    host = HostClient(str(live_host.socket))
    await until(host, idle)
    assert (await host.apply_profile(ApplyCommand("priced"))).ok
    async with aiohttp.ClientSession(live_host.url) as port:
        yield Desk(live_host, host, port)
    await until(host, idle)
    assert (await host.apply_profile(ApplyCommand("tests"))).ok
    await host.close()


def charged(rows: list[dict[str, Any]], unit: str) -> float:
    return math.fsum(row[f"cost_{part}_{unit}"] for row in rows for part in REQUESTS)


async def test_requests_idle_and_overhead_are_the_hours_times_the_price_to_the_cent(desk: Desk) -> None:
    before = (await desk.settled()).bill
    told = len(await asyncio.to_thread(desk.rows))
    prompt = "A story of a fox and a crow that " * 8
    left = asyncio.ensure_future(desk.ask("left", prompt=prompt, max_tokens=900, stream=True))
    await asyncio.gather(
        desk.ask("first", prompt=prompt, max_tokens=24),
        desk.ask("again", prompt=prompt, max_tokens=24),
        desk.ask("three", prompt=prompt, n=3, temperature=1, max_tokens=12),
        desk.ask("two-prompts", prompt=[prompt, "Once upon a time"], max_tokens=6),
    )
    left.cancel()
    after = (await desk.settled()).bill
    rows = await eventually(lambda: asyncio.to_thread(desk.rows), lambda found: len(found) == told + 6)
    rows = rows[told:]

    def grown(part: BillPart) -> float:
        assert after.usd is not None
        return after.usd[part] - (before.usd or {}).get(part, 0.0)

    hours = (after.device_s - before.device_s) / 3600
    paid = (after.total_usd or 0.0) - (before.total_usd or 0.0)
    assert paid == pytest.approx(hours * PRICE, abs=0.005)
    assert charged(rows, "usd") + math.fsum(grown(part) for part in NOBODYS) == pytest.approx(hours * PRICE, abs=0.005)
    # And each part by itself.
    for part in REQUESTS:
        assert math.fsum(row[f"cost_{part}_usd"] for row in rows) == pytest.approx(grown(part), abs=0.005)
    by_name = {row["request_id"]: row for row in rows}
    assert by_name["left"]["finish_reason"] == "abort"
    assert by_name["left"]["cost_decode_usd"] > 0
    assert by_name["three"]["output_tokens"] == 36
    assert sum(row["request_id"] == "two-prompts" for row in rows) == 2


async def test_every_second_of_the_whole_run_is_in_one_part(desk: Desk) -> None:
    bill = (await desk.settled()).bill
    assert math.fsum(bill.seconds.values()) == pytest.approx(bill.device_s, abs=1e-6)
    with sqlite3.connect(desk.live.data / LEDGER_FILE) as ledger:
        sums = ", ".join(f"SUM(cost_{part}_s)" for part in REQUESTS)
        rows = ledger.execute(f"SELECT {sums} FROM requests").fetchone()
    # Everything that ever ran on this host: cut off, refused, carried over, run side by side.
    for part, kept in zip(REQUESTS, rows, strict=True):
        assert kept == pytest.approx(bill.seconds[part], rel=0.01, abs=0.05)


async def test_what_the_prefix_cache_holds_is_not_paid_for_again(desk: Desk) -> None:
    prompt = "The owl counted the stones in the river, one after the other. " * 12
    await desk.ask("cold", prompt=prompt)
    await desk.ask("warm", prompt=prompt)
    (cold,), (warm,) = await desk.written("cold"), await desk.written("warm")
    assert cold["cached_tokens"] == 0
    assert warm["cached_tokens"] > 0.5 * warm["prompt_tokens"]
    assert warm["cost_prefill_usd"] < cold["cost_prefill_usd"]
    assert warm["cost_saved_usd"] > 0


async def test_one_request_is_traced_from_its_client_to_the_steps_that_worked_for_it(desk: Desk) -> None:
    await desk.ask("trace-me", prompt="Once upon a time", max_tokens=5)
    (row,) = await desk.written("trace-me")
    page = await desk.host.log(0, 5_000)
    (line,) = [json.loads(each.text) for each in page.records if each.source == "request" and "trace-me" in each.text]
    assert line["request_id"] == "trace-me"
    assert (line["tokens"], line["finish"], line["tier"]) == (row["prompt_tokens"] + 5, "length", "standard")
    assert line["first_step"] == row["first_step"]
    assert line["cost_usd"] == pytest.approx(charged([row], "usd"))
    snapshot = await desk.host.snapshot()
    reader = FlightReader(snapshot.flight[0].path)
    shares = reader.read_shares().rows
    mine = shares[[reader.request_of(int(each)) == row["id"] for each in shares["serial"]]]
    assert mine["kind"].tolist() == [PREFILL, *[DECODE] * 4, LEFT]
    assert (mine["step"][0], mine["step"][-2]) == (row["first_step"], row["last_step"])
    assert row["steps"] == 5
    reader.close()


async def test_the_parts_of_a_stream_s_ttft_add_up(desk: Desk) -> None:
    body = {"model": "stub-model", "prompt": "Once upon a time", "max_tokens": 4, "ignore_eos": True, "stream": True}
    async with desk.port.post("/v1/completions", json=body, headers={"X-Request-Id": "parts"}) as reply:
        assert b"[DONE]" in await reply.read()
    (row,) = await desk.written("parts")
    parts = [row[f"{name}_s"] for name in ("guard", "queue", "prefill", "first_decode", "delivery")]
    assert all(each is not None and each >= 0 for each in parts)
    assert math.fsum(parts) == pytest.approx(row["ttft_s"], abs=1e-6)
    assert row["delivery_s"] > 0, "the socket takes its first bytes after the engine has made them"
    telemetry = await desk.host.telemetry()
    assert any(each.count and each.window == "1m" for each in telemetry.parts)


async def test_prompts_and_replies_are_kept_only_where_the_operator_says_so(desk: Desk) -> None:
    await desk.ask("unkept", prompt="My number is 4711.")
    (unkept,) = await desk.written("unkept")
    assert (unkept["prompt"], unkept["reply"]) == (None, None)
    path = desk.live.runtime / "config" / "llmconsole" / "profiles" / "priced.toml"
    path.write_text(f"{RULES}\n[ledger]\nstore_text = true\n")
    assert (await desk.host.apply_profile(ApplyCommand("priced"))).ok
    reply = await desk.ask("kept", prompt="My number is 4712.")
    (kept,) = await desk.written("kept")
    assert kept["prompt"] == "My number is 4712."
    assert kept["reply"] == reply["choices"][0]["text"]
    page = await desk.host.log(0, 5_000)
    assert not [each for each in page.records if "4711" in each.text or "4712" in each.text]


async def test_a_change_of_the_profile_is_kept_and_told_in_the_figures(desk: Desk) -> None:
    with sqlite3.connect(desk.live.data / LEDGER_FILE) as ledger:
        last = ledger.execute("SELECT kind, new, outcome FROM events ORDER BY time DESC LIMIT 1").fetchone()
    assert last == ("live", "priced", "done")
    await desk.ask("counted", prompt="Once upon a time")
    await desk.written("counted")
    telemetry = await desk.host.telemetry()
    (line,) = [each for each in telemetry.costs if (each.kind, each.name) == ("profile", "priced")]
    assert line.requests > 0
    assert line.usd_per_million_output is not None
    assert telemetry.roofline.decode.flops_per_s is not None
    assert telemetry.steps.steps > 0
    assert telemetry.ledger is not None
    assert (telemetry.ledger.lost, telemetry.ledger.problem) == (0, None)


async def test_metrics_and_the_doctor_see_the_same_engine(desk: Desk) -> None:
    await desk.ask("seen", prompt="Once upon a time")
    async with desk.port.get("/metrics") as reply:
        text = await reply.text()
    assert 'llmconsole_cost_usd_total{engine="0",part="decode"}' in text
    assert "seen" not in text, "no request's id is a label"
    findings = await desk.host.findings()
    assert all(each.evidence and each.remedy for each in findings)
    record = parse(await desk.host.record())
    assert len(record.steps) > 0
    assert record.profile.cost.usd_per_hour == PRICE


async def test_a_collector_that_is_none_is_told_of_in_the_log_and_serving_goes_on(desk: Desk) -> None:
    path = desk.live.runtime / "config" / "llmconsole" / "profiles" / "priced.toml"
    path.write_text(f'{RULES}\n[log]\notlp_endpoint = "nowhere"\n')
    assert (await desk.host.apply_profile(ApplyCommand("priced"))).ok
    await desk.ask("traced", prompt="Once upon a time")

    async def said() -> bool:
        page = await desk.host.log(0, 5_000)
        return any("The collector at nowhere" in each.text and each.level == "warning" for each in page.records)

    assert await eventually(said, bool)
    await desk.ask("untraced", prompt="Once upon a time")
