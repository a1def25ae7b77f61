"""A clock that tests move."""

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any


class Clock:
    """Monotonic seconds, standing still until moved; timers wait to be fired by hand."""

    def __init__(self) -> None:
        self.now = 1000.0
        self.timers: list[tuple[float, Callable[[], None]]] = []

    def monotonic(self) -> float:
        return self.now

    def timer(self, wait: float, action: Callable[[], None]) -> Any:
        """Stands for `threading.Timer`."""
        self.timers.append((wait, action))
        return SimpleNamespace(start=lambda: None, cancel=self.timers.clear)

    def fire(self) -> None:
        """Let the time of the first timer pass, and run it."""
        wait, action = self.timers.pop(0)
        self.now += wait
        action()
