"""Turns request events and engine statistics into the latencies, rates and rows that are shown and exported."""

import math
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from engine_host.api.figures import LatencyLine, LengthBucket, TtftParts
from engine_host.api.types import HistoryPoint, Latency, Load, Percentiles, RequestRow
from engine_host.telemetry.histogram import FINISH_REASONS, LENGTH_NAMES, Totals
from engine_host.telemetry.latency import Latencies
from engine_host.telemetry.latency_parts import PartsOfTtft, PrefillByLength, length_bucket
from engine_host.telemetry.latency_requests import Ended, Live
from engine_host.telemetry.sketch import Sketch
from engine_host.telemetry.tally import Levels, Minute, MinuteTally, Tally
from engine_host.telemetry.timeline import HISTORY_S, Sliding, Timeline

PRICE_EVERY_S = 0.25
"""How old the throughput may be by which a token is priced: it is fed in steps of this length."""

LOAD_WINDOW_S = 10
"""Seconds over which tokens per second are averaged: long enough to be steady, short enough to follow."""

WINDOW_S = 60
"""Seconds of the window of percentiles, hit ratio and cost where only one is shown."""


@dataclass(frozen=True, slots=True)
class EngineStats:
    """What the scheduler reported after a step.

    running and waiting: requests now; prefix_queries and prefix_hits: tokens looked up and found in the prefix cache
    since the last report; kv_usage: share of the KV pages that requests hold (0 to 1), `None` if not reported.
    """

    running: int
    waiting: int
    prefix_queries: int = 0
    prefix_hits: int = 0
    kv_usage: float | None = None


class Produced(NamedTuple):
    """Output tokens handed over in the last `seconds` (shorter than the window while the host is young)."""

    tokens: int
    seconds: float


class TelemetryHub:
    """The one place where latencies and rates are computed. Not thread-safe: it belongs to the event loop.

    `clock` gives monotonic seconds, and every `at` is a time of that clock; `wall` gives Unix time. Memory doesn't grow
    with the number of samples: windows and history are sums by the second, and a request is forgotten when it ends.
    """

    def __init__(self, clock: Callable[[], float] = time.monotonic, wall: Callable[[], float] = time.time) -> None:
        self._clock = clock
        self.window_s = float(WINDOW_S)
        self.totals = Totals()
        self._timeline = Timeline(clock(), wall(), self._close)
        self._tally = Tally()
        self._window = Sliding(Tally, WINDOW_S)
        self._load_window = Sliding(Tally, LOAD_WINDOW_S)
        self._latencies = Latencies()
        self._parts = PartsOfTtft()
        self._by_length = PrefillByLength()
        self._levels = Levels()
        self._history: deque[HistoryPoint] = deque(maxlen=HISTORY_S)
        self._minute = _new_minute()
        self._live: dict[str, Live] = {}
        self._queued = self._waiting = 0
        self._per_second = 0.0
        self._per_second_at = -math.inf
        self.kv_usage: float | None = None
        self.stats_at = 0.0

    def arrived(
        self,
        request_id: str,
        *,
        prompt_tokens: int,
        max_tokens: int | None,
        at: float,
        tier: str = "",
        key: str = "",
        profile: str = "",
    ) -> None:
        """A request was accepted; TTFT and age count from `at`, the arrival of the last byte of its body.

        `key` is a key's id; an empty name is none.
        """
        leaf = self._latencies.leaf(tier, key, profile)
        self._live[request_id] = Live(at, prompt_tokens, max_tokens, leaf)

    def tokens(
        self, request_id: str, count: int, at: float, cached_tokens: int | None = None, sequence: int = 0
    ) -> None:
        """`count` output tokens of a request came together at `at`; a request that isn't known is ignored.

        `count` tokens after the first ones, after a gap of g seconds, are `count` TTL samples of g / `count`: latency
        per token, whatever the size of the chunks. A chunk without tokens is no sample. A request for several sequences
        (n > 1) has gaps in each of them, told apart by `sequence`.
        """
        live = self._live.get(request_id)
        if live is None:
            return
        if cached_tokens is not None:
            live.cached = cached_tokens
        if count <= 0:
            return
        self._timeline.advance(at)
        self._tally.output += count
        self.totals.output += count
        live.output += count
        last = live.last.get(sequence)
        live.last[sequence] = at if last is None else max(at, last)
        if live.first is None:
            live.first = at
            return
        if live.ttft is None:
            self._settle_ttft(live, live.first)
        if last is None:
            return
        gap = max(at - last, 0.0) / count
        live.ttl.add(gap, count)
        live.leaf.samples.ttl.add(gap, count)
        self.totals.ttl.observe(gap, count)

    def delivered(self, request_id: str, at: float) -> None:
        """The first token's bytes were written to the socket: that ends TTFT.

        Ignored before the first token, and once TTFT is settled: by the request's second batch of tokens, or its end,
        whichever comes first. It is then the time of the first token.
        """
        live = self._live.get(request_id)
        if live is None or live.first is None or live.ttft is not None:
            return
        live.delivered = max(at, live.first)
        self._timeline.advance(at)
        self._settle_ttft(live, live.delivered)

    def finished(self, request_id: str, reason: str, at: float) -> Ended | None:
        """A request ended: `reason` is stop, length, abort, error or refused; anything else counts as error.

        Returns what is known of it, `None` for a request that isn't known; a second call is ignored. Only a request
        that ended by itself (stop, length) has an end-to-end latency and a TPOT.
        """
        live = self._live.pop(request_id, None)
        if live is None:
            return None
        self._timeline.advance(at)
        known = reason if reason in self.totals.finished else "error"
        self.totals.finished[known] += 1
        self._minute.finished[known] += 1
        if live.ttft is None and live.first is not None:
            self._settle_ttft(live, live.first)
        tpot = None
        if known in ("stop", "length"):
            self.totals.e2e.observe(max(at - live.arrived, 0.0))
            tpot = live.tpot(at)
            if tpot is not None:
                live.leaf.samples.tpot.add(tpot)
                self.totals.tpot.observe(tpot)
        live.leaf.live -= 1
        return live.ended(tpot)

    def ttft_parts(self, parts: Sequence[float], at: float) -> None:
        """A request's guard, queue, prefill, first decode and delivery, in seconds."""
        self._timeline.advance(at)
        self._parts.add(parts, self._timeline.second)
        self.totals.queue.observe(parts[1])
        self.totals.delivery.observe(parts[4])

    def prefilled(self, prompt_tokens: int, seconds: float, at: float) -> None:
        """The first token of a prompt of so many tokens came `seconds` after it was scheduled."""
        self._timeline.advance(at)
        number = length_bucket(prompt_tokens)
        self._by_length.add(number, seconds, self._timeline.second)
        self.totals.prefill_by_length[LENGTH_NAMES[number]].observe(seconds)

    def steps(
        self, prefill: int, decode: int, at: float, *, budget: int = 0, preempted: int = 0, count: int = 1
    ) -> None:
        """`count` steps of the engine, up to `at`, computed so many prefill and decode tokens since the last call.

        `budget` is the sum of their token budgets, `preempted` the requests they preempted.
        """
        self._timeline.advance(at)
        now = self._tally
        now.prefill += prefill
        now.decode += decode
        now.budget += budget
        now.preempted += preempted
        now.steps += count
        self.totals.prefill += prefill
        self.totals.decode += decode

    def engine_stats(self, stats: EngineStats) -> None:
        """The scheduler's latest figures; they hold until the next call."""
        self._timeline.advance(self._clock())
        levels, now = self._levels, self._tally
        levels.running = stats.running
        levels.waiting = stats.waiting + self._queued
        self._waiting = stats.waiting
        levels.kv_used = self.kv_usage = stats.kv_usage
        self.stats_at = self._clock()
        now.prefix_queries += stats.prefix_queries
        now.prefix_hits += stats.prefix_hits
        self.totals.prefix_queries += stats.prefix_queries
        self.totals.prefix_hits += stats.prefix_hits

    def queued(self, requests: int) -> None:
        """How many requests wait in front of the engine; it holds until the next call."""
        self._timeline.advance(self._clock())
        self._queued = requests
        self._levels.waiting = self._waiting + requests

    def engine_stopped(self) -> None:
        """No engine runs any more: nothing is running or waiting in it, and it has no KV cache."""
        self.engine_stats(EngineStats(running=0, waiting=0))

    def utilization(self, fraction: float | None) -> None:
        """The device's utilization (0 to 1); it holds until the next call."""
        self.device_levels(fraction, self._levels.power, self._levels.memory_used)

    def device_levels(self, utilization: float | None, power: float | None, memory_used: float | None) -> None:
        """The devices' utilization (0 to 1), power in watts and memory used in bytes; they hold until the next call."""
        self._timeline.advance(self._clock())
        self._levels.utilization, self._levels.power, self._levels.memory_used = utilization, power, memory_used

    def cost_levels(self, usd_per_hour: float | None, attributed: float | None) -> None:
        """What is paid for now, and the share of it (0 to 1) that requests pay; they hold until the next call."""
        self._timeline.advance(self._clock())
        self._levels.usd_per_hour, self._levels.attributed = usd_per_hour, attributed

    def latency(self) -> Latency:
        """TTFT by request and TTL by token over the window."""
        self._settle()
        everything = self._latencies.all
        return Latency(self.window_s, _percentiles(everything.ttft["1m"]), _percentiles(everything.ttl["1m"]))

    def latencies(self) -> tuple[LatencyLine, ...]:
        """TTFT, TTL and TPOT in every window: of all requests, then of each tier, key and profile by name."""
        self._settle()
        return self._latencies.lines()

    def parts(self) -> tuple[TtftParts, ...]:
        """The mean parts of TTFT in each window, without windows that have no request with all of them."""
        self._settle()
        return self._parts.means()

    def prefill_by_length(self) -> tuple[LengthBucket, ...]:
        """Prefill latency over ten minutes by the length of the prompt, every bucket, shortest first."""
        self._settle()
        return self._by_length.lines()

    def tier_latency(self) -> tuple[dict[str, float], dict[str, float]]:
        """p99 of TTFT and of TTL over the window, in seconds by tier; without those that had no sample."""
        self._settle()
        ttft: dict[str, float] = {}
        ttl: dict[str, float] = {}
        for group in self._latencies.tiers():
            for found, windows in ((ttft, group.ttft), (ttl, group.ttl)):
                if p99 := windows["1m"].quantiles((0.99,)):
                    found[group.name] = p99[0]
        return ttft, ttl

    def usd_per_token(self, usd_per_hour: float | None) -> float | None:
        """Estimate: the price of the machine over the tokens, prefill and decode, that it computes now."""
        if usd_per_hour is None:
            return None
        now = self._clock()
        if now - self._per_second_at > PRICE_EVERY_S:
            load = self.load()
            self._per_second, self._per_second_at = load.prefill_tps + load.decode_tps, now
        return usd_per_hour / 3600 / self._per_second if self._per_second else None

    def load(self) -> Load:
        """Requests in the engine now, tokens per second over `LOAD_WINDOW_S`, and endings since the host started."""
        seconds = self._timeline.span(LOAD_WINDOW_S, self._settle())
        counted, levels, ended = self._load_window.sum, self._levels, self.totals.finished
        return Load(
            running=levels.running,
            waiting=levels.waiting,
            prefill_tps=counted.prefill / seconds if seconds else 0.0,
            decode_tps=counted.decode / seconds if seconds else 0.0,
            window_s=float(LOAD_WINDOW_S),
            finished=ended["stop"] + ended["length"],
            failed=ended["error"],
        )

    def hit_ratio(self) -> float | None:
        """Prefix-cache tokens found over tokens looked up in the window (0 to 1); `None` if none was looked up."""
        self._settle()
        counted = self._window.sum
        return counted.prefix_hits / counted.prefix_queries if counted.prefix_queries else None

    def produced(self) -> Produced:
        """Output tokens in the window, for the cost of a token."""
        seconds = self._timeline.span(WINDOW_S, self._settle())
        return Produced(tokens=self._window.sum.output, seconds=seconds)

    def history(self, since: float) -> list[HistoryPoint]:
        """One point for each whole second that started after Unix time `since`, of the last ten minutes."""
        self._timeline.advance(self._clock())
        return [point for point in self._history if point.time > since]

    def minute(self) -> MinuteTally:
        """What was counted since the last call, or since the start."""
        self._settle()
        told, self._minute = self._minute.told(self._levels), _new_minute()
        return told

    def requests(self, pages: Mapping[str, int] | None) -> tuple[RequestRow, ...]:
        """Live requests in order of arrival, with the `pages` they hold (`None`: nobody can tell).

        A request without output holds pages once it is being computed: without any it is still queued.
        """
        now = self._clock()
        return tuple(live.row(request_id, now, pages) for request_id, live in self._live.items())

    def _settle_ttft(self, live: Live, at: float) -> None:
        live.ttft = max(at - live.arrived, 0.0)
        live.leaf.samples.ttft.add(live.ttft)
        self.totals.ttft.observe(live.ttft)

    def _settle(self) -> float:
        """Make the windows hold everything up to now, which is returned."""
        now = self._clock()
        self._timeline.advance(now)
        self._count(self._timeline.second)
        return now

    def _count(self, second: int) -> None:
        tally, minute = self._tally, self._minute
        for window in (self._window, self._load_window):
            window.take(second, tally)
        minute.tally.merge(tally)
        tally.clear()
        new = self._latencies.settle(second)
        if new is not None:
            minute.ttft.merge(new.ttft)
            minute.ttl.merge(new.ttl)

    def _close(self, second: int) -> None:
        self._count(second)
        everything, levels = self._latencies.all, self._levels
        ttft, ttl = (_percentiles(each.second(second)) for each in (everything.ttft, everything.ttl))
        counted = self._load_window.slot(second) or Tally()
        self._history.append(
            HistoryPoint(
                time=float(second),
                ttft_p50=ttft.p50 if ttft else None,
                ttft_p99=ttft.p99 if ttft else None,
                ttl_p50=ttl.p50 if ttl else None,
                ttl_p99=ttl.p99 if ttl else None,
                prefill_tps=float(counted.prefill),
                decode_tps=float(counted.decode),
                running=levels.running,
                waiting=levels.waiting,
                kv_used=levels.kv_used,
                utilization=levels.utilization,
                power=levels.power,
                memory_used=levels.memory_used,
                fill_rate=counted.fill_rate,
                usd_per_hour=levels.usd_per_hour,
                attributed=levels.attributed,
            )
        )
        self._minute.close(levels)
        for window in (self._window, self._load_window, self._latencies, self._parts, self._by_length):
            window.expire(second + 1)


def _new_minute() -> Minute:
    return Minute(finished=dict.fromkeys(FINISH_REASONS, 0))


def _percentiles(sketch: Sketch | None) -> Percentiles | None:
    found = sketch.quantiles((0.5, 0.99)) if sketch is not None else None
    return Percentiles(p50=found[0], p99=found[1], count=sketch.count) if found and sketch is not None else None
