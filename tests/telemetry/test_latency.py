"""Groups and windows against brute force, the bound on groups, when TTFT is settled, and what a minute comes to."""

import math
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.api.figures import LatencyLine, Quantiles
from engine_host.telemetry.hub import EngineStats, TelemetryHub
from engine_host.telemetry.latency import MAX_GROUPS, OTHER, Latencies
from engine_host.telemetry.sketch import RELATIVE_ERROR


class Clock:
    """Monotonic time from 1000 s, which is a whole Unix second."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(clock: Clock) -> TelemetryHub:
    return TelemetryHub(clock=clock, wall=lambda: 1_000_000.0)


def near(value: float) -> object:
    return pytest.approx(value, rel=RELATIVE_ERROR)


class Event(NamedTuple):
    """`wait` seconds after the one before, a request has this TTFT, then `tokens` tokens together after `gap`."""

    wait: float
    ttft: float
    gap: float
    tokens: int
    tier: str
    key: str
    ask: bool


events = st.lists(
    st.builds(
        Event,
        st.sampled_from((0.0, 0.3, 1.0, 7.0, 9.5, 55.0, 400.0)),
        st.floats(1e-3, 50),
        st.floats(1e-3, 5),
        st.integers(1, 5),
        st.sampled_from(("fast", "slow")),
        st.sampled_from(("", "k1", "k2")),
        st.booleans(),
    ),
    max_size=12,
)


class Sample(NamedTuple):
    second: int
    value: float
    tier: str
    key: str


def brute(samples: list[Sample], line: LatencyLine, window: str, now: int) -> Quantiles | None:
    """Percentiles of the samples that are in a line's window, by sorting them."""
    within = {
        "10s": lambda second: second >= now - 10,
        "1m": lambda second: second >= now - 60,
        "10m": lambda second: second // 10 >= now // 10 - 60,
        "start": lambda second: True,
    }[window]
    mine = {"all": lambda each: True, "tier": lambda each: each.tier == line.name,
            "key": lambda each: each.key == line.name}[line.kind]  # fmt: skip
    values = sorted(each.value for each in samples if within(each.second) and mine(each))
    if not values:
        return None
    ranks = (values[max(1, math.ceil(round(share * len(values), 6))) - 1] for share in (0.5, 0.9, 0.99))
    return Quantiles(*ranks, count=len(values))


def matches(found: Quantiles | None, true: Quantiles | None) -> bool:
    if found is None or true is None:
        return found is true
    bound = RELATIVE_ERROR * (1 + 1e-6)
    pairs = ((found.p50, true.p50), (found.p90, true.p90), (found.p99, true.p99))
    return found.count == true.count and all(math.isclose(one, other, rel_tol=bound) for one, other in pairs)


@settings(max_examples=40, deadline=None)
@given(events)
def test_every_window_of_every_group_is_what_sorting_its_samples_gives(trace: list[Event]) -> None:
    clock = Clock()
    hub = TelemetryHub(clock=clock, wall=lambda: 1000.0)
    ttft: list[Sample] = []
    ttl: list[Sample] = []
    for number, event in enumerate(trace):
        clock.now += event.wait
        now, name = math.floor(clock.now), str(number)
        hub.arrived(
            name,
            prompt_tokens=1,
            max_tokens=None,
            at=clock.now - event.gap - event.ttft,
            tier=event.tier,
            key=event.key,
        )
        hub.tokens(name, 1, clock.now - event.gap)
        hub.tokens(name, event.tokens, clock.now)
        hub.finished(name, "abort", clock.now)
        ttft.append(Sample(now, event.ttft, event.tier, event.key))
        ttl.extend([Sample(now, event.gap / event.tokens, event.tier, event.key)] * event.tokens)
        if event.ask:
            hub.latencies()
    for line in hub.latencies():
        for window in line.windows:
            at = math.floor(clock.now)
            assert matches(window.ttft, brute(ttft, line, window.window, at))
            assert matches(window.ttl, brute(ttl, line, window.window, at))


def one_request(hub: TelemetryHub, name: str, at: float, key: str = "", ttft: float = 0.5) -> None:
    hub.arrived(name, prompt_tokens=1, max_tokens=1, at=at, key=key)
    hub.tokens(name, 1, at + ttft)
    hub.finished(name, "length", at + ttft)


def counts(hub: TelemetryHub, window: int) -> dict[str, int]:
    """Requests by key in one of the windows."""
    lines = (line for line in hub.latencies() if line.kind == "key")
    return {line.name: found.count if (found := line.windows[window].ttft) else 0 for line in lines}


def test_keys_beyond_the_bound_are_one_group_with_their_history(hub: TelemetryHub, clock: Clock) -> None:
    for number in range(MAX_GROUPS):
        one_request(hub, "a", 1000.0, key=f"k{number:03}")
    clock.now = 1030.0
    one_request(hub, "a", 1030.0, key="k000")  # Used again: it isn't the one that is given up.
    one_request(hub, "a", 1030.0, key="new")
    assert len(counts(hub, 1)) == MAX_GROUPS + 1
    assert (counts(hub, 1)[OTHER], counts(hub, 1)["k000"], "k001" in counts(hub, 1)) == (1, 2, False)
    assert counts(hub, 0)[OTHER] == 0
    one_request(hub, "a", 1030.0, key="k001")  # It comes back as itself, and the next one goes.
    assert (counts(hub, 1)[OTHER], counts(hub, 1)["k001"]) == (2, 1)
    clock.now = 1065.0
    assert [sum(counts(hub, window).values()) for window in range(4)] == [0, 3, MAX_GROUPS + 3, MAX_GROUPS + 3]


def test_a_request_that_outlives_its_keys_group_counts_among_the_others(hub: TelemetryHub) -> None:
    hub.arrived("long", prompt_tokens=1, max_tokens=None, at=1000.0, key="first")
    for number in range(MAX_GROUPS):
        one_request(hub, "a", 1000.0, key=f"k{number:03}")
    hub.tokens("long", 1, 1000.5)
    hub.delivered("long", 1000.5)
    assert counts(hub, 0)[OTHER] == 1
    assert sum(counts(hub, 0).values()) == MAX_GROUPS + 1


def test_leaves_nobody_feeds_any_more_are_dropped(hub: TelemetryHub) -> None:
    latencies = Latencies()
    for number in range(1000):
        leaf = latencies.leaf("tier", f"k{number}", "profile")
        leaf.live -= 1
    latencies.settle(1)
    assert (len(latencies._leaves), len(latencies._index)) == (0, 0)
    assert latencies.leaf("tier", "k999", "profile").live == 1
    one_request(hub, "a", 1000.0, key="k")
    hub.latencies()
    assert hub._latencies._leaves == []


def first_token(hub: TelemetryHub) -> None:
    hub.arrived("a", prompt_tokens=1, max_tokens=None, at=1000.0)
    hub.tokens("a", 1, 1000.2)
    assert hub.latency().ttft is None
    assert hub.requests(None)[0].ttft_s == pytest.approx(0.2)


def test_ttft_ends_when_the_first_bytes_are_on_the_socket(hub: TelemetryHub) -> None:
    first_token(hub)
    hub.delivered("a", 1000.3)
    assert (found := hub.latency().ttft) is not None
    assert found.p50 == near(0.3)
    hub.delivered("a", 1000.4)
    hub.tokens("a", 1, 1000.5)
    ended = hub.finished("a", "stop", 1000.6)
    assert ended is not None
    assert (ended.ttft_s, ended.first_token_at, ended.delivered_at) == pytest.approx((0.3, 1000.2, 1000.3))
    assert (ended.tpot_s, ended.ttl_p50_s, ended.output_tokens) == (pytest.approx(0.3), near(0.3), 2)


def test_ttft_is_the_first_token_where_more_tokens_or_the_end_come_before_the_socket(hub: TelemetryHub) -> None:
    first_token(hub)
    hub.tokens("a", 1, 1000.4)
    hub.delivered("a", 1000.5)
    assert (found := hub.latency().ttft) is not None
    assert (found.p50, found.count) == (near(0.2), 1)
    ended = hub.finished("a", "abort", 1000.6)
    assert ended is not None
    assert (ended.ttft_s, ended.delivered_at, ended.tpot_s) == (pytest.approx(0.2), None, None)
    hub.arrived("b", prompt_tokens=1, max_tokens=None, at=1000.0)
    hub.tokens("b", 1, 1000.9, cached_tokens=5)
    ended = hub.finished("b", "error", 1001.0)
    assert ended is not None
    assert (ended.ttft_s, ended.cached_tokens, ended.ttl_p99_s) == (pytest.approx(0.9), 5, None)


def test_bytes_before_the_first_token_are_no_first_token(hub: TelemetryHub) -> None:
    hub.arrived("a", prompt_tokens=1, max_tokens=None, at=1000.0)
    hub.delivered("a", 1000.1)
    hub.tokens("a", 1, 1000.2)
    hub.delivered("a", 1000.3)
    assert (found := hub.latency().ttft) is not None
    assert found.p50 == near(0.3)


def test_a_request_nobody_knows_has_no_end(hub: TelemetryHub) -> None:
    hub.delivered("a", 1000.0)
    assert hub.finished("a", "stop", 1000.0) is None
    assert sum(hub.totals.finished.values()) == 0


def test_tpot_of_several_sequences_is_that_of_one_of_them(hub: TelemetryHub) -> None:
    hub.arrived("a", prompt_tokens=1, max_tokens=None, at=1000.0)
    for at in (1000.1, 1000.3, 1000.5):
        hub.tokens("a", 1, at, sequence=0)
        hub.tokens("a", 1, at, sequence=1)
    ended = hub.finished("a", "stop", 1000.5)
    assert ended is not None
    assert ended.tpot_s == pytest.approx(0.2)


def test_a_minute_is_what_was_counted_since_the_last_one(hub: TelemetryHub, clock: Clock) -> None:
    hub.engine_stats(EngineStats(running=2, waiting=1, prefix_queries=100, prefix_hits=25, kv_usage=0.5))
    hub.device_levels(None, 300.0, 1e9)
    one_request(hub, "a", 1000.0)
    hub.steps(prefill=30, decode=2, at=1000.0, budget=64)
    clock.now = 1001.0
    hub.engine_stats(EngineStats(running=4, waiting=1))
    hub.device_levels(0.8, 100.0, 1e9)
    hub.finished("unknown", "stop", 1001.0)
    hub.arrived("b", prompt_tokens=1, max_tokens=1, at=1001.0)
    hub.tokens("b", 1, 1001.1)
    hub.tokens("b", 3, 1001.4)
    hub.finished("b", "refused", 1001.4)
    clock.now = 1002.0
    minute = hub.minute()
    assert (minute.seconds, minute.running, minute.waiting, minute.kv_used) == (2, 3.0, 1.0, 0.5)
    assert (minute.utilization, minute.power, minute.memory_used) == (0.8, 200.0, 1e9)
    assert (minute.prefill, minute.decode, minute.output, minute.steps) == (30, 2, 5, 1)
    assert (minute.prefix_queries, minute.prefix_hits, minute.fill_rate) == (100, 25, 0.5)
    assert (minute.ttft.count, minute.ttl.count) == (2, 3)
    assert minute.finished == {"stop": 0, "length": 1, "abort": 0, "error": 0, "refused": 1}
    one_request(hub, "c", 1002.0, ttft=0.25)
    minute = hub.minute()
    assert (minute.seconds, minute.running, minute.utilization, minute.finished["length"]) == (0, 4.0, None, 1)
    assert minute.ttft.quantiles((0.5,)) == (near(0.25),)
    assert hub.minute().ttft.count == 0


def test_history_tells_what_was_paid_and_how_full_the_steps_were(hub: TelemetryHub, clock: Clock) -> None:
    hub.device_levels(0.8, 300.0, 1e9)
    hub.cost_levels(2.5, 0.6)
    hub.steps(prefill=100, decode=28, at=1000.5, budget=256)
    clock.now = 1002.0
    first, second = hub.history(0)
    assert (first.utilization, first.power, first.memory_used) == (0.8, 300.0, 1e9)
    assert (first.usd_per_hour, first.attributed, first.fill_rate) == (2.5, 0.6, 0.5)
    assert (second.usd_per_hour, second.fill_rate) == (2.5, None)
