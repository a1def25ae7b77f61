"""What the widgets' demos share: an app that shows one widget until `q` is pressed."""

from collections.abc import Callable

from textual.app import App, ComposeResult
from textual.widget import Widget


class Demo(App[None]):
    """Shows the given widgets and calls `tick` with the seconds passed, ten times a second."""

    BINDINGS = [("q", "quit", "Quit")]

    def __init__(self, *shown: Widget, tick: Callable[[float], None] | None = None) -> None:
        super().__init__()
        self._shown = shown
        self._tick = tick
        self._time = 0.0

    def compose(self) -> ComposeResult:
        """The widgets, one under the other."""
        yield from self._shown

    def on_mount(self) -> None:
        """Start the clock."""
        if self._tick:
            self.set_interval(0.1, self._advance)

    def _advance(self) -> None:
        self._time += 0.1
        if self._tick:
            self._tick(self._time)
