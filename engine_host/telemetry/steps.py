"""The engine's steps over the last minute: how full they were, what their time went to, how much of it bore fruit."""

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray

from engine_host.api.figures import StepFigures
from engine_host.telemetry.sketch import Sketch
from engine_host.telemetry.timeline import Sliding

WINDOW_S = 60
"""Seconds that the figures are over: so many whole ones and the one that is filling."""

_NS = 1_000_000_000
_SUMS = ("budget", "busy", "preempted", "prefill", "steps", "time", "tokens")


class _Sums:
    """What a second's steps come to. Times are whole nanoseconds, which add up and come off exactly."""

    __slots__ = (*_SUMS, "durations")

    def __init__(self) -> None:
        self.steps = self.tokens = self.budget = self.preempted = 0
        self.time = self.prefill = self.busy = 0
        self.durations = Sketch()

    def merge(self, other: "_Sums") -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) + getattr(other, name))
        self.durations.merge(other.durations)

    def subtract(self, other: "_Sums") -> None:
        for name in _SUMS:
            setattr(self, name, getattr(self, name) - getattr(other, name))
        self.durations.subtract(other.durations)


class StepWindow:
    """Reads rows of the flight record's ring. Not thread-safe: it belongs to the event loop.

    `started` is when the host started; every time is in seconds of the monotonic clock that the rows are in.
    """

    def __init__(self, started: float) -> None:
        self._started = started
        self._window = Sliding(_Sums, WINDOW_S)
        self._busy = 0.0

    def feed(self, rows: NDArray[Any]) -> None:
        """Take in steps, each once: a structured array with the fields of `engine_host.flight.layout.STEP`.

        A step that computed no token is none, but what it preempted counts.
        """
        if not len(rows):
            return
        seconds = np.floor(rows["time"]).astype(np.int64)
        for second in np.unique(seconds).tolist():
            self._window.take(second, _summed(rows[seconds == second]))

    def busy(self, seconds: float, at: float) -> None:
        """Up to `at`, steps that produced tokens took so many seconds since the last call."""
        self._busy += seconds
        sums = _Sums()
        sums.busy = round(seconds * _NS)
        self._window.take(math.floor(at), sums)

    def figures(self, now: float) -> StepFigures:
        """The steps of the window that ends `now`.

        A step that computed tokens of one phase spent its whole time on that phase; the time of a mixed step is split
        by its tokens, which is an estimate.
        """
        second = math.floor(now)
        self._window.expire(second)
        sums = self._window.sum
        uptime = max(now - self._started, 0.0)
        span = min(uptime, max(now - (second - WINDOW_S), 0.0))
        durations = sums.durations.quantiles((0.5, 0.99))
        return StepFigures(
            window_s=float(WINDOW_S),
            steps=sums.steps,
            fill_rate=sums.tokens / sums.budget if sums.budget else None,
            prefill_share=sums.prefill / sums.time if sums.time else None,
            decode_share=(sums.time - sums.prefill) / sums.time if sums.time else None,
            step_p50_s=durations[0] if durations else None,
            step_p99_s=durations[1] if durations else None,
            preemptions=sums.preempted,
            uptime_s=uptime,
            effective_utilization=min(self._busy / uptime, 1.0) if uptime else None,
            effective_window=min(sums.busy / _NS / span, 1.0) if span else None,
        )


def _summed(rows: NDArray[Any]) -> _Sums:
    sums = _Sums()
    sums.preempted = int(rows["preempted"].sum(dtype=np.int64))
    rows = rows[rows["prefill"].astype(np.int64) + rows["decode"] > 0]
    prefill = rows["prefill"].astype(np.int64)
    tokens = prefill + rows["decode"]
    seconds = rows["schedule"].astype(np.float64) + rows["execute"] + rows["update"]
    sums.steps = len(rows)
    sums.tokens = int(tokens.sum())
    sums.budget = int(rows["budget"].sum(dtype=np.int64))
    sums.time = round(float(seconds.sum()) * _NS)
    sums.prefill = min(round(float((seconds * prefill / tokens).sum()) * _NS), sums.time)
    for each in seconds.tolist():
        sums.durations.add(each)
    return sums
