"""Reads the flight record for the page map and the step bars, and says why when it can't. Call it from a thread."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from engine_host.api.flight import FlightReader, PageMap

STEPS_KEPT = 1_000
"""Steps held for the bars: more than any terminal has columns."""


@dataclass(frozen=True, slots=True)
class FlightView:
    """What the record shows now. `pages` is `None`, and `problem` the reason, where it can't be read.

    `prefill` and `decode` are tokens of the last steps, oldest first, those of an engine that was replaced included;
    they began at `time` (Unix time). `budget` is the token budget of the latest.
    """

    pages: PageMap | None
    time: NDArray[np.float64]
    prefill: NDArray[np.uint32]
    decode: NDArray[np.uint32]
    budget: int | None
    problem: str = ""

    def until(self, end: float) -> FlightView:
        """The same with the steps that began before `end` (Unix time)."""
        count = int(np.searchsorted(self.time, end))
        return replace(self, time=self.time[:count], prefill=self.prefill[:count], decode=self.decode[:count])


class FlightFeed:
    """Keeps the record of one engine open, and the last steps read from it."""

    def __init__(self) -> None:
        self._opened: tuple[str, int] | None = None
        self._reader: FlightReader | None = None
        self._last_step = 0
        self._time = np.zeros(0, np.float64)
        self._prefill = np.zeros(0, np.uint32)
        self._decode = np.zeros(0, np.uint32)
        self._budget: int | None = None

    def read(self, path: str) -> FlightView:
        """Read the record at `path`, opening it anew when it's another file than before."""
        try:
            pages = self._read(path)
        except Exception as error:
            # Whatever is wrong with the file, the panel says so and the console goes on.
            self._reader = self._opened = None
            return FlightView(None, self._time, self._prefill, self._decode, None, _sentence(error))
        return FlightView(pages, self._time, self._prefill, self._decode, self._budget)

    def _read(self, path: str) -> PageMap:
        from engine_host.api.flight import FlightReader

        identity = (path, os.stat(path).st_ino)
        if self._reader is None or identity != self._opened:
            self._last_step = 0
            self._reader, self._opened = FlightReader(path), identity
        steps = self._reader.read_steps(self._last_step)
        if len(steps):
            self._last_step = int(steps.number[-1])
            self._time = np.concatenate([self._time, steps.time + _unix_of_monotonic()])[-STEPS_KEPT:]
            self._prefill = np.concatenate([self._prefill, steps.prefill])[-STEPS_KEPT:]
            self._decode = np.concatenate([self._decode, steps.decode])[-STEPS_KEPT:]
            self._budget = int(steps.budget[-1]) or None
        return self._reader.read_pages()


def _unix_of_monotonic() -> float:
    """Unix time at zero of the monotonic clock, which is the same in all processes of a machine."""
    return time.time() - time.monotonic()


def _sentence(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "The engine writes no flight record."
    return str(error) or "The flight record can't be read."
