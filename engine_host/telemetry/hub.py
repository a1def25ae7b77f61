"""Turns request events and engine statistics into the latencies, rates and rows that are shown and exported."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import NamedTuple

from engine_host.api.types import HistoryPoint, Latency, Load, RequestRow, RequestState
from engine_host.telemetry.histogram import BoundedHistogram, LogHistogram, bucket
from engine_host.telemetry.timeline import Timeline, Window, percentiles

FINISH_REASONS = ("stop", "length", "abort", "error")

PRICE_EVERY_S = 0.25
"""How old the throughput may be by which a token is priced: it is fed in steps of this length."""

LOAD_WINDOW_S = 10
"""Seconds over which tokens per second are averaged: long enough to be steady, short enough to follow."""

_TTFT_BOUNDS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TTL_BOUNDS = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.2, 0.5, 1.0, 5.0)
_E2E_BOUNDS = (0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0, 600.0)


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


class Totals:
    """Everything counted since the host started, for Prometheus: it only grows."""

    __slots__ = ("decode", "e2e", "finished", "output", "prefill", "prefix_hits", "prefix_queries", "ttft", "ttl")

    def __init__(self) -> None:
        self.ttft = BoundedHistogram(_TTFT_BOUNDS)
        self.ttl = BoundedHistogram(_TTL_BOUNDS)
        self.e2e = BoundedHistogram(_E2E_BOUNDS)
        self.prefill = 0
        self.decode = 0
        self.output = 0
        self.prefix_queries = 0
        self.prefix_hits = 0
        self.finished: dict[str, int] = dict.fromkeys(FINISH_REASONS, 0)


class _Live:
    """A request that hasn't ended. `last` is when each of its sequences' latest tokens came; `ttft` is `None` before
    its first."""

    __slots__ = ("arrived", "cached", "last", "max_tokens", "output", "prompt", "tier", "ttft", "ttl")

    def __init__(self, arrived: float, prompt: int, max_tokens: int | None, tier: Timeline) -> None:
        self.arrived = arrived
        self.prompt = prompt
        self.max_tokens = max_tokens
        self.cached: int | None = None
        self.output = 0
        self.last: dict[int, float] = {}
        self.ttft: float | None = None
        self.ttl = LogHistogram()
        self.tier = tier


class TelemetryHub:
    """The one place where latencies and rates are computed. Not thread-safe: it belongs to the event loop.

    `clock` gives monotonic seconds, and every `at` is a time of that clock; `wall` gives Unix time.
    `window_s` (whole seconds) is the window of percentiles, hit ratio and cost. Memory doesn't grow with the number
    of samples: windows and history are sums by the second, and a request is forgotten when it ends.
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
        window_s: float = 60.0,
    ) -> None:
        self._clock = clock
        self.window_s = window_s
        self.totals = Totals()
        self._window = Window(int(window_s))
        self._load_window = Window(LOAD_WINDOW_S)
        self._timeline = Timeline(clock(), wall(), (self._window, self._load_window))
        self._live: dict[str, _Live] = {}
        self._tiers: dict[str, tuple[Timeline, Window]] = {}
        self._wall = wall
        self._queued = self._waiting = 0
        self._per_second = 0.0
        self._per_second_at = -math.inf
        self.kv_usage: float | None = None
        self.stats_at = 0.0

    def arrived(
        self, request_id: str, *, prompt_tokens: int, max_tokens: int | None, at: float, tier: str = ""
    ) -> None:
        """A request was accepted; TTFT and age count from here."""
        self._live[request_id] = _Live(at, prompt_tokens, max_tokens, self._tier(tier)[0])

    def tokens(
        self, request_id: str, count: int, at: float, cached_tokens: int | None = None, sequence: int = 0
    ) -> None:
        """`count` output tokens of a request came together at `at`; a request that isn't known is ignored.

        The first tokens give its TTFT. `count` later ones after a gap of g seconds are `count` TTL samples of
        g / `count`: latency per token, whatever the size of the chunks. A chunk without tokens is no sample. A request
        for several sequences (n > 1) has gaps in each of them, told apart by `sequence`.
        """
        live = self._live.get(request_id)
        if live is None:
            return
        if cached_tokens is not None:
            live.cached = cached_tokens
        if count <= 0:
            return
        self._timeline.advance(at)
        now = self._timeline.current
        now.output += count
        self.totals.output += count
        live.output += count
        last = live.last.get(sequence)
        live.last[sequence] = at if last is None else max(at, last)
        if live.ttft is None:
            live.ttft = max(at - live.arrived, 0.0)
            number = bucket(live.ttft)
            now.ttft.record(number)
            live.tier.advance(at)
            live.tier.current.ttft.record(number)
            self.totals.ttft.observe(live.ttft)
            return
        if last is None:
            return
        gap = max(at - last, 0.0) / count
        number = bucket(gap)
        live.ttl.record(number, count)
        now.ttl.record(number, count)
        live.tier.advance(at)
        live.tier.current.ttl.record(number, count)
        self.totals.ttl.observe(gap, count)

    def finished(self, request_id: str, reason: str, at: float) -> None:
        """A request ended: `reason` is stop, length, abort or error; anything else counts as error.

        Only a request that ended by itself (stop, length) has an end-to-end latency. A second call is ignored.
        """
        live = self._live.pop(request_id, None)
        if live is None:
            return
        known = reason if reason in self.totals.finished else "error"
        self.totals.finished[known] += 1
        if known in ("stop", "length"):
            self.totals.e2e.observe(max(at - live.arrived, 0.0))

    def steps(self, prefill: int, decode: int, at: float) -> None:
        """The engine's steps up to `at` computed so many prefill and decode tokens since the last call."""
        self._timeline.advance(at)
        now = self._timeline.current
        now.prefill += prefill
        now.decode += decode
        self.totals.prefill += prefill
        self.totals.decode += decode

    def engine_stats(self, stats: EngineStats) -> None:
        """The scheduler's latest figures; they hold until the next call."""
        self._advance()
        levels, now = self._timeline.levels, self._timeline.current
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
        self._advance()
        self._queued = requests
        self._timeline.levels.waiting = self._waiting + requests

    def engine_stopped(self) -> None:
        """No engine runs any more: nothing is running or waiting in it, and it has no KV cache."""
        self.engine_stats(EngineStats(running=0, waiting=0))

    def utilization(self, fraction: float | None) -> None:
        """The device's utilization (0 to 1) for the history; it holds until the next call."""
        self._advance()
        self._timeline.levels.utilization = fraction

    def latency(self) -> Latency:
        """TTFT by request and TTL by token over the window."""
        self._advance()
        past, now = self._window.sum, self._timeline.current
        return Latency(
            window_s=self.window_s,
            ttft=percentiles(past.ttft.plus(now.ttft)),
            ttl=percentiles(past.ttl.plus(now.ttl)),
        )

    def tier_latency(self) -> tuple[dict[str, float], dict[str, float]]:
        """p99 of TTFT and of TTL over the window, in seconds by tier; without those that had no sample."""
        found: tuple[dict[str, float], dict[str, float]] = ({}, {})
        for name, (timeline, window) in self._tiers.items():
            timeline.advance(self._clock())
            for measure, p99s in zip(("ttft", "ttl"), found, strict=True):
                samples = getattr(window.sum, measure).plus(getattr(timeline.current, measure))
                if (p99 := _p99(samples)) is not None:
                    p99s[name] = p99
        return found

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
        seconds = self._timeline.span(self._load_window, self._advance())
        past, now, levels = self._load_window.sum, self._timeline.current, self._timeline.levels
        ended = self.totals.finished
        return Load(
            running=levels.running,
            waiting=levels.waiting,
            prefill_tps=(past.prefill + now.prefill) / seconds if seconds else 0.0,
            decode_tps=(past.decode + now.decode) / seconds if seconds else 0.0,
            window_s=float(LOAD_WINDOW_S),
            finished=ended["stop"] + ended["length"],
            failed=ended["error"],
        )

    def hit_ratio(self) -> float | None:
        """Prefix-cache tokens found over tokens looked up in the window (0 to 1); `None` if none was looked up."""
        self._advance()
        past, now = self._window.sum, self._timeline.current
        queries = past.prefix_queries + now.prefix_queries
        return (past.prefix_hits + now.prefix_hits) / queries if queries else None

    def produced(self) -> Produced:
        """Output tokens in the window, for the cost of a token."""
        seconds = self._timeline.span(self._window, self._advance())
        return Produced(tokens=self._window.sum.output + self._timeline.current.output, seconds=seconds)

    def history(self, since: float) -> list[HistoryPoint]:
        """One point for each whole second that started after Unix time `since`, of the last ten minutes."""
        self._advance()
        return self._timeline.history(since)

    def requests(self, pages: Mapping[str, int] | None) -> tuple[RequestRow, ...]:
        """Live requests in order of arrival, with the `pages` they hold (`None`: nobody can tell).

        A request without output holds pages once it is being computed: without any it is still queued.
        """
        now = self._clock()
        return tuple(
            RequestRow(
                id=request_id,
                state=_state(live, pages is not None and request_id not in pages),
                prompt_tokens=live.prompt,
                cached_tokens=live.cached,
                output_tokens=live.output,
                max_tokens=live.max_tokens,
                age_s=max(now - live.arrived, 0.0),
                ttft_s=live.ttft,
                ttl_p99_s=_p99(live.ttl),
                pages=None if pages is None else pages.get(request_id, 0),
            )
            for request_id, live in self._live.items()
        )

    def _tier(self, name: str) -> tuple[Timeline, Window]:
        if name not in self._tiers:
            window = Window(int(self.window_s))
            self._tiers[name] = Timeline(self._clock(), self._wall(), (window,)), window
        return self._tiers[name]

    def _advance(self) -> float:
        now = self._clock()
        self._timeline.advance(now)
        return now


def _state(live: _Live, without_pages: bool) -> RequestState:
    if live.ttft is not None:
        return "decode"
    return "queued" if without_pages else "prefill"


def _p99(histogram: LogHistogram) -> float | None:
    found = histogram.percentiles((0.99,))
    return found[0] if found else None
