"""The hub's figures on traces whose right values are known by hand."""

from itertools import pairwise

import pytest

from engine_host.api.types import Latency, Percentiles
from engine_host.telemetry.hub import EngineStats, TelemetryHub
from engine_host.telemetry.sketch import RELATIVE_ERROR


class Clock:
    """Monotonic seconds moved by hand; the wall clock was at 1 000 000.25 when the monotonic one was at 100."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now

    def wall(self) -> float:
        return self.now + 999_900.25


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(clock: Clock) -> TelemetryHub:
    return TelemetryHub(clock=clock, wall=clock.wall)


def near(value: float) -> object:
    return pytest.approx(value, rel=RELATIVE_ERROR)


def arrive(hub: TelemetryHub, request_id: str, at: float) -> None:
    hub.arrived(request_id, prompt_tokens=10, max_tokens=50, at=at)


def test_first_tokens_give_ttft_and_later_ones_ttl(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    for at in (100.2, 100.23, 100.26, 100.36):
        hub.tokens("a", 1, at)
    latency = hub.latency()
    assert latency.ttft == Percentiles(p50=near(0.2), p99=near(0.2), count=1)
    assert latency.ttl == Percentiles(p50=near(0.03), p99=near(0.1), count=3)


def test_p99_is_the_worst_but_one_of_a_hundred(hub: TelemetryHub) -> None:
    for number in range(100):
        arrive(hub, str(number), 100.0)
        hub.tokens(str(number), 1, 100.0)
        hub.delivered(str(number), 100.0 + (number + 1) / 1000)
    assert hub.latency().ttft == Percentiles(p50=near(0.050), p99=near(0.099), count=100)


def test_ttl_is_per_token_when_chunks_carry_three(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    for at in (100.1, 100.4, 100.7):
        hub.tokens("a", 3, at)
    assert hub.latency().ttl == Percentiles(p50=near(0.1), p99=near(0.1), count=6)
    assert hub.requests(None)[0].output_tokens == 9


def test_ttl_of_several_sequences_is_measured_in_each(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    for at in (100.1, 100.3, 100.5):
        hub.tokens("a", 1, at, sequence=0)
        hub.tokens("a", 1, at, sequence=1)
    assert hub.latency().ttl == Percentiles(p50=near(0.2), p99=near(0.2), count=4)
    assert hub.latency().ttft == Percentiles(p50=near(0.1), p99=near(0.1), count=1)


def test_a_chunk_without_tokens_is_no_first_token(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    hub.tokens("a", 0, 100.1, cached_tokens=8)
    row = hub.requests(None)[0]
    assert (row.state, row.ttft_s, row.cached_tokens) == ("prefill", None, 8)
    assert hub.latency().ttft is None


def test_a_request_aborted_before_its_first_token_leaves_no_latency(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    hub.finished("a", "abort", 100.5)
    hub.tokens("a", 1, 100.6)
    assert hub.latency() == Latency(window_s=60.0, ttft=None, ttl=None)
    assert hub.requests(None) == ()
    assert hub.totals.finished == {"stop": 0, "length": 0, "abort": 1, "error": 0, "refused": 0}
    assert (hub.load().finished, hub.load().failed) == (0, 0)


def test_endings_are_counted_once_each_by_reason(hub: TelemetryHub) -> None:
    for request_id, reason in (("a", "stop"), ("b", "length"), ("c", "error"), ("d", "a reason nobody knows")):
        arrive(hub, request_id, 100.0)
        hub.finished(request_id, reason, 101.0)
        hub.finished(request_id, "stop", 101.0)
    assert (hub.load().finished, hub.load().failed) == (2, 2)


def test_time_that_seems_to_go_back_counts_as_no_time(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    hub.tokens("a", 1, 100.5)
    hub.tokens("a", 1, 100.4)
    hub.tokens("a", 1, 100.7)
    assert hub.latency().ttl == Percentiles(p50=0.0, p99=near(0.2), count=2)


def test_samples_leave_the_window_after_a_minute(hub: TelemetryHub, clock: Clock) -> None:
    arrive(hub, "a", 100.0)
    hub.tokens("a", 1, 100.2)
    hub.finished("a", "stop", 100.2)
    clock.now = 160.0
    assert hub.latency().ttft is not None
    clock.now = 162.0
    assert hub.latency().ttft is None


def test_the_rows_say_what_each_live_request_is_doing(hub: TelemetryHub, clock: Clock) -> None:
    for request_id in "abc":
        arrive(hub, request_id, 100.0)
    hub.tokens("c", 1, 100.2, cached_tokens=4)
    hub.tokens("c", 2, 100.4)
    clock.now = 101.5
    rows = hub.requests({"b": 2, "c": 3})
    assert [(row.id, row.state, row.pages) for row in rows] == [
        ("a", "queued", 0),
        ("b", "prefill", 2),
        ("c", "decode", 3),
    ]
    assert hub.requests(None)[0].pages is None
    assert (rows[2].age_s, rows[2].ttft_s, rows[2].ttl_p99_s) == (1.5, near(0.2), near(0.1))
    assert (rows[2].prompt_tokens, rows[2].max_tokens, rows[2].cached_tokens) == (10, 50, 4)


def test_tokens_per_second_are_a_mean_over_the_seconds_seen(hub: TelemetryHub, clock: Clock) -> None:
    hub.steps(prefill=300, decode=20, at=100.5)
    clock.now = 102.0
    hub.engine_stats(EngineStats(running=2, waiting=1))
    load = hub.load()
    assert (load.prefill_tps, load.decode_tps) == (150.0, 10.0)
    assert (load.running, load.waiting) == (2, 1)
    clock.now = 120.0
    assert (hub.load().prefill_tps, hub.load().decode_tps) == (0.0, 0.0)


def test_hit_ratio_is_tokens_found_over_tokens_looked_up(hub: TelemetryHub, clock: Clock) -> None:
    assert hub.hit_ratio() is None
    hub.engine_stats(EngineStats(running=1, waiting=0, prefix_queries=300, prefix_hits=0))
    hub.engine_stats(EngineStats(running=1, waiting=0, prefix_queries=100, prefix_hits=100))
    assert hub.hit_ratio() == 0.25
    clock.now = 200.0
    assert hub.hit_ratio() is None


def test_history_has_one_point_a_second_at_whole_unix_seconds(hub: TelemetryHub, clock: Clock) -> None:
    arrive(hub, "a", 100.0)
    hub.tokens("a", 1, 100.6)
    hub.delivered("a", 100.7)  # Unix second 1 000 000 ends at 100.75.
    hub.tokens("a", 1, 100.8)
    hub.steps(prefill=5, decode=7, at=101.0, budget=48)
    clock.now = 101.5
    hub.engine_stats(EngineStats(running=1, waiting=2, kv_usage=0.5))
    hub.utilization(0.9)
    clock.now = 103.0
    points = hub.history(0)
    assert [point.time for point in points] == [1_000_000, 1_000_001, 1_000_002]
    first, second, third = points
    assert (first.ttft_p50, first.ttl_p50) == (near(0.7), None)
    assert (second.ttft_p50, second.ttl_p50, second.ttl_p99) == (None, near(0.2), near(0.2))
    assert (second.prefill_tps, second.decode_tps, second.fill_rate) == (5.0, 7.0, 0.25)
    assert (first.running, first.kv_used, first.utilization) == (0, None, None)
    assert (second.running, second.waiting, second.kv_used, second.utilization) == (1, 2, 0.5, 0.9)
    assert (third.running, third.decode_tps) == (1, 0.0)
    assert [point.time for point in hub.history(1_000_001)] == [1_000_002]


def test_history_keeps_ten_minutes_also_over_a_long_silence(hub: TelemetryHub, clock: Clock) -> None:
    clock.now += 1_000_000
    points = hub.history(0)
    assert len(points) == 600
    assert points[-1].time == 1_999_999
    assert [later.time - point.time for point, later in pairwise(points)] == [1.0] * 599
    assert hub.latency().ttft is None


def test_a_stopped_engine_has_nothing_in_it(hub: TelemetryHub, clock: Clock) -> None:
    hub.engine_stats(EngineStats(running=3, waiting=4, kv_usage=0.7))
    hub.engine_stopped()
    clock.now += 1
    assert (hub.load().running, hub.load().waiting, hub.history(0)[-1].kv_used) == (0, 0, None)


def test_memory_does_not_follow_the_number_of_tokens(hub: TelemetryHub) -> None:
    arrive(hub, "a", 100.0)
    for number in range(200_000):
        hub.tokens("a", 1, 100.0 + number * 0.000_1 + (number % 97) * 1e-9)
    live = hub._live["a"].ttl
    assert live.count == 199_999
    assert len(live) < 400


def test_tokens_handed_over_are_told_with_the_seconds_they_took(hub: TelemetryHub, clock: Clock) -> None:
    arrive(hub, "a", 100.0)
    hub.tokens("a", 500, 110.0)
    clock.now = 136.0
    assert hub.produced() == (500, 36.0)
    clock.now = 190.0
    assert hub.produced() == (0, 60.25)  # Of the minute there are 60 whole seconds and a quarter of this one.
