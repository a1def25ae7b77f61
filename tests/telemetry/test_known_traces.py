"""Traces whose right values are known by hand, and the table they come to. Milliseconds, to two digits."""

from collections.abc import Iterator
from textwrap import dedent

import numpy as np
import pytest

from engine_host.api.figures import LatencyLine, Quantiles, StepFigures, WindowName
from engine_host.flight.layout import STEP
from engine_host.telemetry.hub import TelemetryHub
from engine_host.telemetry.steps import StepWindow


class Clock:
    """Monotonic time that starts at 1000 s, where a Unix second (and a slot of ten) starts too."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def hub(clock: Clock) -> TelemetryHub:
    return TelemetryHub(clock=clock, wall=lambda: 2_000_000_000.0)


def ms(seconds: float | None) -> str:
    return "n/a" if seconds is None else f"{float(f'{seconds * 1000:.2g}'):g}"


def percentiles(found: Quantiles | None) -> str:
    return "none" if found is None else f"{ms(found.p50)}/{ms(found.p90)}/{ms(found.p99)} x{found.count}"


def rendered(lines: tuple[LatencyLine, ...], *names: WindowName) -> str:
    def rows() -> Iterator[str]:
        for line in lines:
            for window in line.windows:
                if window.window in names:
                    figures = (percentiles(each) for each in (window.ttft, window.ttl, window.tpot))
                    yield f"{line.kind:8}{line.name:12}{window.window:6}" + "".join(f"{each:18}" for each in figures)

    return text("group               window TTFT              TTL               TPOT", *rows())


def text(*rows: str) -> str:
    return "\n".join(row.rstrip() for row in rows)


def expected(table: str) -> str:
    return dedent(table).strip()


def three_requests(hub: TelemetryHub, at: float) -> None:
    """Two of a key that streams, one of another key that doesn't."""
    # TTFT 250 to the socket. 3 tokens after 300 are 3 x 100, 3 after 60 are 3 x 20. TPOT (600 - 250) / (7 - 1) = 58.3.
    hub.arrived("a", prompt_tokens=10, max_tokens=None, at=at, tier="interactive", key="alice", profile="chat")
    hub.tokens("a", 1, at + 0.200)
    hub.delivered("a", at + 0.250)
    hub.tokens("a", 3, at + 0.500)
    hub.tokens("a", 3, at + 0.560)
    hub.finished("a", "stop", at + 0.600)
    # TTFT 400, then its client leaves: no TTL, no TPOT.
    hub.arrived("b", prompt_tokens=10, max_tokens=None, at=at + 0.500, tier="interactive", key="bob", profile="chat")
    hub.tokens("b", 1, at + 0.900)
    hub.finished("b", "abort", at + 0.950)
    # Not streamed: TTFT 800 is to the first 2 tokens, 1 token after 40 is one of 40. TPOT (900 - 800) / (3 - 1) = 50.
    hub.arrived("c", prompt_tokens=10, max_tokens=None, at=at, tier="batch", key="bob", profile="chat")
    hub.tokens("c", 2, at + 0.800)
    hub.tokens("c", 1, at + 0.840)
    hub.finished("c", "length", at + 0.900)


def test_latencies_by_tier_key_and_profile(hub: TelemetryHub) -> None:
    three_requests(hub, 1000.0)
    assert rendered(hub.latencies(), "10s") == expected("""
        group               window TTFT              TTL               TPOT
        all                 10s   400/800/800 x3    40/100/100 x7     50/58/58 x2
        tier    batch       10s   800/800/800 x1    40/40/40 x1       50/50/50 x1
        tier    interactive 10s   250/400/400 x2    20/100/100 x6     58/58/58 x1
        key     alice       10s   250/250/250 x1    20/100/100 x6     58/58/58 x1
        key     bob         10s   400/800/800 x2    40/40/40 x1       50/50/50 x1
        profile chat        10s   400/800/800 x3    40/100/100 x7     50/58/58 x2
    """)


def test_a_sample_leaves_each_window_in_its_time(hub: TelemetryHub, clock: Clock) -> None:
    def all_now() -> str:
        return rendered(hub.latencies()[:1], "10s", "1m", "10m", "start")

    three_requests(hub, 1000.0)
    clock.now = 1030.0  # 30 s later, one request with a TTFT of 100 and two tokens of 10.
    hub.arrived("d", prompt_tokens=10, max_tokens=None, at=1030.0)
    hub.tokens("d", 1, 1030.1)
    hub.tokens("d", 2, 1030.12)
    assert all_now() == expected("""
        group               window TTFT              TTL               TPOT
        all                 10s   100/100/100 x1    10/10/10 x2       none
        all                 1m    250/800/800 x4    20/100/100 x9     50/58/58 x2
        all                 10m   250/800/800 x4    20/100/100 x9     50/58/58 x2
        all                 start 250/800/800 x4    20/100/100 x9     50/58/58 x2
    """)
    clock.now = 1061.0  # The last second in which those of second 1000 are in the minute was 1060.
    assert all_now() == expected("""
        group               window TTFT              TTL               TPOT
        all                 10s   none              none              none
        all                 1m    100/100/100 x1    10/10/10 x2       none
        all                 10m   250/800/800 x4    20/100/100 x9     50/58/58 x2
        all                 start 250/800/800 x4    20/100/100 x9     50/58/58 x2
    """)
    clock.now = 1609.9  # Ten minutes go by slots of ten seconds: that of 1000 to 1009 is in until 1610.
    assert "10m   250/800/800 x4" in all_now()
    clock.now = 1610.0
    assert all_now() == expected("""
        group               window TTFT              TTL               TPOT
        all                 10s   none              none              none
        all                 1m    none              none              none
        all                 10m   100/100/100 x1    10/10/10 x2       none
        all                 start 250/800/800 x4    20/100/100 x9     50/58/58 x2
    """)


def test_percentiles_are_of_all_samples_not_means_of_percentiles(hub: TelemetryHub, clock: Clock) -> None:
    # In each of two seconds 50 requests: 10, 30 … 990 and 20, 40 … 1000. The mean of their p99s would be 995, of p50s
    # 495; that of both seconds' 100 samples is the 99th and the 50th: 990 and 500.
    for number in range(100):
        clock.now = 1001.0 + number % 2
        hub.arrived(str(number), prompt_tokens=1, max_tokens=1, at=clock.now - 1)
        hub.tokens(str(number), 1, clock.now - 1 + (number + 1) / 100)
        hub.finished(str(number), "length", clock.now)
    assert rendered(hub.latencies(), "1m") == expected("""
        group               window TTFT              TTL               TPOT
        all                 1m    500/900/990 x100  none              none
    """)


def test_the_parts_of_ttft_add_up_to_it(hub: TelemetryHub, clock: Clock) -> None:
    hub.ttft_parts((0.001, 0.099, 0.150, 0.020, 0.010), 1000.0)  # 280
    clock.now = 1020.0
    hub.ttft_parts((0.003, 0.001, 0.050, 0.020, 0.006), 1020.0)  # 80
    rows = [
        f"{each.window:6} x{each.count} {ms(each.guard_s):>5} {ms(each.queue_s):>5} {ms(each.prefill_s):>7}"
        f" {ms(each.first_decode_s):>12} {ms(each.delivery_s):>8} {ms(each.ttft_s):>4}"
        for each in hub.parts()
    ]
    assert text("window    guard queue prefill first decode delivery TTFT", *rows) == expected("""
        window    guard queue prefill first decode delivery TTFT
        10s    x1     3     1      50           20        6   80
        1m     x2     2    50     100           20        8  180
        10m    x2     2    50     100           20        8  180
        start  x2     2    50     100           20        8  180
    """)


def test_prefill_latency_by_the_length_of_the_prompt(hub: TelemetryHub, clock: Clock) -> None:
    for prompt_tokens, seconds in ((1, 0.01), (128, 0.02), (129, 0.03), (512, 0.05), (2049, 0.2), (99_999, 3.0)):
        hub.prefilled(prompt_tokens, seconds, 1000.0)

    def table() -> str:
        rows = (
            f"{each.above:>6}-{each.up_to or '':<6} {percentiles(each.prefill)}" for each in hub.prefill_by_length()
        )
        return text(*(row.strip() for row in rows))

    assert table() == expected("""
        0-128    10/20/20 x2
        128-512    30/50/50 x2
        512-2048   none
        2048-8192   200/200/200 x1
        8192-32768  none
        32768-       3000/3000/3000 x1
    """)
    assert hub.totals.prefill_by_length["512"].total == pytest.approx(0.08)
    assert hub.totals.prefill_by_length["more"].cumulative()[-1] == ("+Inf", 1)
    clock.now = 1610.0
    assert "x" not in table()


def step(time: float, seconds: float, prefill: int, decode: int, preempted: int = 0) -> np.ndarray:
    """A step under a token budget of 1000 that chose for a tenth of its time and took in for another."""
    row = np.zeros(1, STEP)
    row["time"] = time
    row["schedule"], row["execute"], row["update"] = seconds / 10, seconds * 8 / 10, seconds / 10
    row["prefill"], row["decode"], row["preempted"], row["budget"] = prefill, decode, preempted, 1000
    return row


def told(found: StepFigures) -> str:
    def percent(share: float | None) -> str:
        return "n/a" if share is None else f"{share * 100:.1f} %"

    return text(
        f"steps {found.steps}, p50 {ms(found.step_p50_s)}, p99 {ms(found.step_p99_s)}, preempted {found.preemptions}",
        f"fill rate {percent(found.fill_rate)}",
        f"prefill {percent(found.prefill_share)}, decode {percent(found.decode_share)}",
        f"up {found.uptime_s:g} s, effective {percent(found.effective_utilization)}, "
        f"in the window {percent(found.effective_window)}",
    )


def test_the_steps_of_the_last_minute() -> None:
    window = StepWindow(started=900.0)
    window.feed(np.concatenate([step(1000.0, 0.040, 600, 0), step(1000.1, 0.010, 0, 40)]))
    window.feed(np.concatenate([step(1000.9, 0.020, 90, 30), step(1001.2, 0.010, 0, 40, preempted=2)]))
    window.feed(step(1001.3, 0.500, 0, 0))  # Nothing was computed: no step.
    window.busy(6.0, 1001.0)
    window.busy(24.0, 1002.0)
    # 800 of 4 x 1000 tokens. Of 80 ms the prompt's step is prefill and three quarters of the mixed one: 40 + 15.
    # 30 s bore fruit: of the 120 s since the start, and of the 60 s from 960 on.
    assert told(window.figures(1020.0)) == expected("""
        steps 4, p50 10, p99 40, preempted 2
        fill rate 20.0 %
        prefill 68.8 %, decode 31.2 %
        up 120 s, effective 25.0 %, in the window 50.0 %
    """)
    assert told(window.figures(1061.0)) == expected("""
        steps 1, p50 10, p99 10, preempted 2
        fill rate 4.0 %
        prefill 0.0 %, decode 100.0 %
        up 161 s, effective 18.6 %, in the window 50.0 %
    """)
    assert told(window.figures(1200.0)) == expected("""
        steps 0, p50 n/a, p99 n/a, preempted 0
        fill rate n/a
        prefill n/a, decode n/a
        up 300 s, effective 10.0 %, in the window 0.0 %
    """)


def test_a_young_host_has_been_effective_for_as_long_as_it_is_up() -> None:
    window = StepWindow(started=1000.0)
    window.busy(3.0, 1003.5)
    assert told(window.figures(1004.0)).endswith("up 4 s, effective 75.0 %, in the window 75.0 %")
