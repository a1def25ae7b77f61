"""What a gatherer makes of a host's parts."""

from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_host.api.flight import DECODE, PREEMPTED, PREFILL
from engine_host.api.records import RequestRecord
from engine_host.api.types import FlightFile, HistoryPoint
from engine_host.doctor.gather import HISTORY_S, MAX_REQUESTS, Gatherer, shared_prefix
from engine_host.doctor.record import Named, StalledClient, dump, parse
from engine_host.flight.writer import FlightWriter
from tests.doctor.recorded import trace


def gatherer(**parts: Any) -> Gatherer:
    """One whose host is the healthy trace's, as far as `parts` don't say otherwise."""
    healthy = trace("healthy")
    given: dict[str, Any] = {
        "profile": lambda: healthy.profile,
        "snapshot": lambda: healthy.snapshot,
        "telemetry": lambda: None,
        "history": lambda since: [],
        "requests": list,
        "stalled": list,
        "clock": lambda: 5000.0,
        "monotonic": lambda: 1000.0,
    }
    return Gatherer(**{**given, **parts})


async def test_steps_shares_and_the_names_behind_them(tmp_path: Path) -> None:
    writer = FlightWriter(tmp_path / "flight", engine_id=0, blocks=9, block_size=16, page_bytes=None)
    flight = (FlightFile(0, str(tmp_path / "flight")),)
    snapshot = msgspec.structs.replace(trace("healthy").snapshot, flight=flight)
    for serial, name in enumerate(("a", "b", "c"), 1):
        writer.write_name(serial, f"{name}-0123abcd", 100 * serial)
    writer.write_shares(1, [1, 2, 3], [PREFILL, DECODE, PREEMPTED], [10, 1, 0], [10, 50, 0])
    writer.write_step(999.0, (0.001, 0.02, 0.001), (10, 1), (2, 1, 1, 0), 64, 5, 0)
    record = await gatherer(snapshot=lambda: snapshot).gather()
    assert (record.time, record.offset) == (5000, 4000)
    assert record.steps["number"].tolist() == [1]
    assert record.shares["serial"].tolist() == [1, 2, 3]
    # Those that only decode are spoken of by no rule.
    assert record.names == {1: Named("a", 100), 3: Named("c", 300)}
    assert parse(dump(record)).names == record.names


@pytest.mark.parametrize("flight", [(), (FlightFile(0, "/no/such/file"),)])
async def test_without_an_engine_there_are_no_steps_and_no_profile(flight: tuple[FlightFile, ...]) -> None:
    snapshot = msgspec.structs.replace(trace("healthy").snapshot, flight=flight)
    record = await gatherer(profile=lambda: None, snapshot=lambda: snapshot).gather()
    assert (len(record.steps), len(record.shares), record.names) == (0, 0, {})
    assert record.profile.name == trace("healthy").snapshot.profile


async def test_the_past_is_asked_for_and_stalled_clients_are_passed_on() -> None:
    asked: list[float] = []

    def history(since: float) -> list[HistoryPoint]:
        asked.append(since)
        return list(trace("queue").past)

    record = await gatherer(history=history, stalled=lambda: (StalledClient("r", 3.0),)).gather()
    assert asked == [5000 - HISTORY_S]
    assert (len(record.past), record.stalled) == (len(trace("queue").past), [StalledClient("r", 3.0)])


def ended(prompt: str | None, tokens: int) -> RequestRecord:
    return msgspec.structs.replace(
        trace("healthy").requests[0], prompt=prompt, prompt_tokens=tokens, reply=prompt and "reply"
    )


async def test_the_last_requests_are_kept_and_never_what_they_say() -> None:
    requests = [ended(f"you are helpful. {number}", 10) for number in range(MAX_REQUESTS + 5)]
    record = await gatherer(requests=lambda: requests).gather()
    assert len(record.requests) == MAX_REQUESTS
    assert {(each.prompt, each.reply) for each in record.requests} == {(None, None)}
    assert b"helpful" not in dump(record)


@pytest.mark.parametrize(
    ("shared", "tokens"), [([30, 12, 31], 30), ([None, 8], 8), ([0, 0, 40], 0), ([None], None), ([], None)]
)
def test_what_prompts_have_in_common_is_the_median(shared: list[int | None], tokens: int | None) -> None:
    one = trace("healthy").requests[0]
    assert shared_prefix([msgspec.structs.replace(one, shared_prefix=each) for each in shared]) == tokens


async def test_the_processors_are_those_of_this_machine() -> None:
    asked = gatherer()
    await asked.gather()
    processor = (await asked.gather()).processor
    assert processor.cores is not None
    assert processor.cores >= 1
    assert processor.load is not None
    assert processor.steal is None or 0 <= processor.steal <= 1
