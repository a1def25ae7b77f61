"""Budgets over both stores, the file and the real Redis: exact, whatever comes at once, and kept."""

import asyncio
import itertools
import logging
import os
import sqlite3
from collections import defaultdict
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_host.gateway import budget_store
from engine_host.gateway.budget_limits import LIMITS, NANO, SECONDS, nano_usd
from engine_host.gateway.budgets import Account, Budgets, Grant, open_budgets
from engine_host.gateway.caller import Limits
from engine_host.gateway.refusal import Refusal
from tests.gateway.redis_server import redis_server

NOON = 1_800_014_400.0
fresh = itertools.count()


class Clock:
    def __init__(self, now: float = NOON) -> None:
        self.now = now

    def __call__(self) -> float:
        return self.now


Opener = Callable[[Clock], Budgets]
"""Opens the same store again with each call."""


@pytest.fixture(scope="module", params=["sqlite", "redis"])
def shared_store(request: pytest.FixtureRequest) -> Iterator[str | None]:
    if request.param == "sqlite":
        yield None
        return
    with redis_server() as url:
        yield url


@pytest.fixture
async def opener(shared_store: str | None, tmp_path: Path) -> AsyncIterator[Opener]:
    opened: list[Budgets] = []

    def open_one(clock: Clock) -> Budgets:
        opened.append(open_budgets(shared_store, tmp_path, clock))
        return opened[-1]

    yield open_one
    for budgets in opened:
        await budgets.close()


@pytest.fixture
async def lone(tmp_path: Path) -> AsyncIterator[Budgets]:
    """In a file, with its clock at noon."""
    budgets = open_budgets(None, tmp_path, Clock())
    yield budgets
    await budgets.close()


def account(kind: str = "key", limits: Limits | None = None) -> Account:
    return Account(f"{kind}:{next(fresh)}", limits or Limits(requests_per_minute=50))


async def used(budgets: Budgets, of: Account) -> dict[str, float]:
    return {line.limit: line.used for line in await budgets.usage(of)}


def accepts(outcomes: list[Grant | BaseException]) -> int:
    refused = [each for each in outcomes if isinstance(each, BaseException)]
    assert all(isinstance(each, Refusal) and each.status == 429 for each in refused), refused
    return len(outcomes) - len(refused)


reserve_ops = st.tuples(
    st.just("reserve"), st.sets(st.integers(0, 2), min_size=1), st.integers(0, 400), st.integers(0, 400)
)
end_ops = st.tuples(
    st.sampled_from(["settle", "settle", "release"]), st.integers(0, 50), st.integers(0, 4), st.integers(0, 4)
)
pass_ops = st.tuples(st.just("pass"), st.sampled_from([1.0, 31.0, 60.0, 200.0, 40_000.0]), st.none(), st.none())
limits_of = st.builds(
    Limits,
    requests_per_minute=st.none() | st.integers(1, 4),
    tokens_per_minute=st.none() | st.integers(1, 1000),
    tokens_per_day=st.none() | st.integers(1, 2000),
    usd_per_day=st.none() | st.sampled_from([0.5, 1.23, 7.0]),
)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(limits_of, min_size=3, max_size=3), st.lists(reserve_ops | end_ops | pass_ops, max_size=25))
async def test_counts_are_what_was_granted_and_never_above_a_limit(
    opener: Opener, limits: list[Limits], operations: list[tuple]
) -> None:
    clock = Clock()
    budgets = opener(clock)
    accounts = [account("key", each) for each in limits]
    counts: dict[tuple[str, str, int], dict[str, int]] = defaultdict(lambda: defaultdict(int))
    grants: list[Grant] = []

    def add(grant: Grant, requests: int, tokens: int, nano: int) -> None:
        for each in grant.accounts:
            for window, start in (("minute", grant.minute), ("day", grant.day)):
                for measure, amount in (("requests", requests), ("tokens", tokens), ("usd", nano)):
                    counts[each.scope, window, start][measure] += amount

    def now_counted(scope: str, window: str, measure: str) -> int:
        return counts[scope, window, int(clock.now // SECONDS[window]) * SECONDS[window]][measure]

    def fits(each: Account, tokens: int, usd: float) -> bool:
        asked = {"requests": 1, "tokens": tokens, "usd": nano_usd(usd)}
        return all(
            now_counted(each.scope, window, measure) + asked[measure] <= allowed * (NANO if measure == "usd" else 1)
            for name, window, measure in LIMITS
            if (allowed := getattr(each.limits, name)) is not None
        )

    try:
        for kind, first, second, third in operations:
            if kind == "pass":
                clock.now += first
            elif kind == "reserve":
                chosen, usd = [accounts[index] for index in first], third / 100
                expected = all(fits(each, second, usd) for each in chosen)
                try:
                    grant = await budgets.reserve(chosen, second, usd)
                except Refusal:
                    assert not expected
                else:
                    assert expected
                    add(grant, 1, second, nano_usd(usd))
                    grants.append(grant)
            elif grants:
                grant = grants.pop(first % len(grants))
                tokens, usd = grant.tokens * second // 4, grant.usd * third / 4
                if kind == "release":
                    await budgets.release(grant)
                    add(grant, -1, -grant.tokens, -nano_usd(grant.usd))
                else:
                    await budgets.settle(grant, tokens, usd)
                    add(grant, 0, tokens - grant.tokens, nano_usd(usd) - nano_usd(grant.usd))
            for each in accounts:
                for line in await budgets.usage(each):
                    window, measure = next((window, measure) for name, window, measure in LIMITS if name == line.limit)
                    counted = now_counted(each.scope, window, measure)
                    assert line.used == (counted / NANO if measure == "usd" else counted)
                    assert line.used <= line.allowed
    finally:
        await budgets.close()


async def test_200_at_once_for_50_places_make_exactly_50(opener: Opener) -> None:
    budgets, key = opener(Clock()), account()
    outcomes = await asyncio.gather(*(budgets.reserve([key], 1, 0) for _ in range(200)), return_exceptions=True)
    assert accepts(outcomes) == 50
    assert await used(budgets, key) == {"requests_per_minute": 50}


async def test_two_hosts_on_one_store_stay_exact(opener: Opener) -> None:
    clock = Clock()
    hosts = [opener(clock), opener(clock)]
    key = account("key", Limits(tokens_per_day=500))

    async def one_after_the_other(budgets: Budgets) -> int:
        outcomes = []
        for _ in range(10):
            outcomes += await asyncio.gather(budgets.reserve([key], 10, 0), return_exceptions=True)
        return accepts(outcomes)

    granted = await asyncio.gather(*(one_after_the_other(budgets) for budgets in hosts for _ in range(8)))
    assert sum(granted) == 50
    assert [await used(budgets, key) for budgets in hosts] == [{"tokens_per_day": 500}] * 2


async def test_all_accounts_or_none(opener: Opener) -> None:
    budgets = opener(Clock())
    key, tier = account("key"), account("tier", Limits(requests_per_minute=1))
    await budgets.reserve([key, tier], 1, 0)
    with pytest.raises(Refusal, match=f"1 request a minute of tier {tier.scope[5:]}"):
        await budgets.reserve([key, tier], 1, 0)
    assert await used(budgets, key) == {"requests_per_minute": 1}


async def test_kept_when_opened_again(opener: Opener) -> None:
    clock, key = Clock(), account("key", Limits(tokens_per_day=100, usd_per_day=1.0))
    before = opener(clock)
    await before.settle(await before.reserve([key], 80, 0.5), 60, 0.25)
    await before.close()
    clock.now += 3600
    after = opener(clock)
    assert await used(after, key) == {"tokens_per_day": 60, "usd_per_day": 0.25}


async def test_settled_in_the_windows_it_was_reserved_in(opener: Opener) -> None:
    clock, key = Clock(), account("key", Limits(tokens_per_minute=100, tokens_per_day=300))
    budgets = opener(clock)
    slow = await budgets.reserve([key], 100, 0)
    clock.now += 60
    await budgets.reserve([key], 30, 0)
    await budgets.settle(slow, 10, 0)
    assert await used(budgets, key) == {"tokens_per_minute": 30, "tokens_per_day": 40}
    clock.now += 86_400
    await budgets.settle(slow, 0, 0)
    assert await used(budgets, key) == {"tokens_per_minute": 0, "tokens_per_day": 0}


async def test_more_than_was_reserved_is_counted_too(opener: Opener) -> None:
    budgets, key = opener(Clock()), account("key", Limits(tokens_per_minute=100))
    await budgets.settle(await budgets.reserve([key], 50, 0), 120, 0)
    assert await used(budgets, key) == {"tokens_per_minute": 120}


async def test_large_counts_are_exact(opener: Opener) -> None:
    budgets, key = opener(Clock()), account("key", Limits(tokens_per_day=2**60, usd_per_day=9e6))
    await budgets.settle(await budgets.reserve([key], 10**15 + 1, 8e6), 10**15 + 2, 7_999_999.000000001)
    assert await used(budgets, key) == {"tokens_per_day": 10**15 + 2, "usd_per_day": 7_999_999.000000001}


async def test_a_request_cancelled_while_reserving_leaves_nothing(opener: Opener) -> None:
    budgets, key = opener(Clock()), account()
    reserving = asyncio.create_task(budgets.reserve([key], 1, 0))
    await asyncio.sleep(0)  # It has asked the store.
    reserving.cancel()
    with pytest.raises(asyncio.CancelledError):
        await reserving
    await budgets.close()
    again = opener(Clock())
    assert await used(again, key) == {"requests_per_minute": 0}


async def test_a_settlement_is_written_though_its_request_is_cancelled(opener: Opener) -> None:
    budgets, key = opener(Clock()), account("key", Limits(tokens_per_minute=100))
    grant = await budgets.reserve([key], 50, 0)
    await budgets.close()
    settling = asyncio.create_task(budgets.settle(grant, 20, 0))
    await asyncio.sleep(0)  # It has begun, and must open the store again.
    settling.cancel()
    await budgets.close()
    assert await used(budgets, key) == {"tokens_per_minute": 20}


async def test_redis_forgets_by_itself_and_for_good() -> None:
    from redis.asyncio import Redis

    with redis_server() as url:
        server = Redis.from_url(url)
        budgets = open_budgets(url, Path(), Clock())
        grant = await budgets.reserve([Account("key:k", Limits(tokens_per_day=100))], 50, 0)
        keys = sorted(await server.keys("*"))
        assert [key.rpartition(b":")[0] for key in keys] == [
            b"llmconsole:budget:key:k:60",
            b"llmconsole:budget:key:k:86400",
        ]
        assert [60 < await server.ttl(keys[0]) <= 120, 86_400 < await server.ttl(keys[1]) <= 172_800] == [True, True]
        await server.flushall()  # As when all have expired.
        await budgets.settle(grant, 20, 0)
        assert await server.keys("*") == []
        await budgets.close()
        await server.aclose()


async def test_without_limits_the_store_is_not_even_opened(lone: Budgets, tmp_path: Path) -> None:
    grant = await lone.reserve([Account("key:a", Limits()), Account("tier:b", Limits())], 100, 1.0)
    await lone.settle(grant, 50, 0.5)
    assert (grant.accounts, await lone.usage(Account("key:a", Limits()))) == ((), ())
    assert os.listdir(tmp_path) == []


async def test_the_file_is_its_owners_alone(lone: Budgets, tmp_path: Path) -> None:
    await lone.reserve([account()], 1, 0)
    modes = {entry.name: entry.stat().st_mode & 0o777 for entry in os.scandir(tmp_path)}
    assert modes == dict.fromkeys(["budgets.db", "budgets.db-wal", "budgets.db-shm"], 0o600)


async def test_passed_windows_are_forgotten(tmp_path: Path) -> None:
    clock = Clock()
    budgets = open_budgets(None, tmp_path, clock)
    for _ in range(5):
        await budgets.reserve([account()], 1, 0)
        clock.now += 86_400
    await budgets.close()
    with sqlite3.connect(tmp_path / "budgets.db") as database:
        assert database.execute("SELECT count(*) FROM counts").fetchone() == (3,)  # A minute, its day, the day before.


@pytest.fixture(params=["garbage", "no server", "silent server"])
async def broken(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(budget_store, "PATIENCE_S", 0.05)
    url = f"unix://{tmp_path}/socket"
    if request.param == "garbage":
        (tmp_path / "budgets.db").write_bytes(b"this is no database" * 1000)
        url = None
    held = asyncio.Event()
    server = None
    if request.param == "silent server":
        server = await asyncio.start_unix_server(lambda *_: held.wait(), tmp_path / "socket")
    budgets = open_budgets(url, tmp_path, Clock())
    yield budgets
    await budgets.close()
    held.set()
    if server is not None:
        server.close()


async def test_a_broken_store_refuses_and_says_so_once(broken: Budgets, caplog: pytest.LogCaptureFixture) -> None:
    key = account()
    for _ in range(2):
        with pytest.raises(Refusal, match="can't be reached") as refusal:
            await broken.reserve([key], 1, 0)
        assert (refusal.value.status, refusal.value.headers["Retry-After"]) == (503, "5")
    await broken.settle(Grant((key,), 10, 0.0, 0, 0), 5, 0.0)
    assert await broken.usage(key) == ()
    said = [record for record in caplog.records if record.name == budget_store.__name__]
    assert [(record.levelno, record.exc_info) for record in said] == [(logging.ERROR, None)]


async def test_a_store_that_comes_back_is_used_again(lone: Budgets, tmp_path: Path) -> None:
    (tmp_path / "budgets.db").mkdir()
    key = account()
    with pytest.raises(Refusal):
        await lone.reserve([key], 1, 0)
    (tmp_path / "budgets.db").rmdir()
    await lone.reserve([key], 1, 0)
    assert await used(lone, key) == {"requests_per_minute": 1}
