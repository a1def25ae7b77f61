"""A view of many log lines."""

from __future__ import annotations

import time as clock
from bisect import bisect_left
from collections.abc import Iterable
from typing import Literal, NamedTuple

from rich.cells import cell_len, chop_cells
from rich.segment import Segment
from rich.style import Style
from textual import events
from textual.binding import Binding
from textual.cache import LRUCache
from textual.geometry import Size
from textual.reactive import var
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets.text import one_line

LogLevel = Literal["debug", "info", "warning", "error"]

LEVELS: tuple[LogLevel, ...] = ("debug", "info", "warning", "error")
RING_LINES = 20_000
LONGEST_LINE = 10_000
"""Characters of one line that are shown; the rest is counted in a mark at its end."""
_NARROWEST_TEXT = 10


class LogLine(NamedTuple):
    """One line: `time` in Unix seconds, `text` as it came."""

    time: float
    level: LogLevel
    source: str
    text: str


class LogView(ScrollView, can_focus=True):
    """The last 20 000 lines, filtered by level and text; follows the end until scrolled away.

    Text is shown literally. A row costs something only when it's drawn, so a flood of lines costs what fits the screen.
    """

    BINDINGS = [
        Binding("end,G", "follow", "Follow", id="log.follow", tooltip="Jump to the end and follow it"),
        Binding("home,g", "first", "First line", id="log.first", show=False),
        Binding("w", "toggle_wrap", "Wrap", id="log.wrap", show=False, tooltip="Wrap long lines or scroll sideways"),
    ]
    COMPONENT_CLASSES = {f"log-view--{name}" for name in (*LEVELS, "time", "source")}
    DEFAULT_CSS = """
    LogView { width: 1fr; height: 1fr; overflow-y: scroll; }
    LogView > .log-view--time { color: $foreground-muted; }
    LogView > .log-view--source { color: $text-secondary; }
    LogView > .log-view--debug { color: $foreground-muted; }
    LogView > .log-view--info { color: $foreground; }
    LogView > .log-view--warning { color: $text-warning; }
    LogView > .log-view--error { color: $text-error; text-style: bold; }
    """

    following: var[bool] = var(True)
    """Whether the view stays at the end as lines arrive."""
    wrap: var[bool] = var(False)
    """Whether long lines are broken into rows, not scrolled sideways."""

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._lines: list[LogLine] = []
        self._first = 0  # the number of the oldest line kept; numbers grow by one a line and are never used again
        self._rows: list[tuple[int, int]] = []  # a row shows part p of line n
        self._widest = 0
        self._wrap_width = 0  # the width the rows were laid out for, or 0 for unbroken lines
        self._level = 0
        self._needle = ""
        self._strips: LRUCache[tuple[int, int, int], Strip] = LRUCache(1_000)

    @property
    def lines(self) -> tuple[LogLine, ...]:
        """The lines kept, the oldest first, filtered out ones too."""
        return tuple(self._lines)

    @property
    def shown(self) -> int:
        """How many lines pass the filter."""
        return sum(part == 0 for _, part in self._rows)

    def extend(self, lines: Iterable[LogLine]) -> None:
        """Add lines at the end; the oldest leave when the ring is full."""
        new = list(lines)
        if not new:
            return
        start = self._first + len(self._lines)
        self._lines += new
        for number, line in enumerate(new[-RING_LINES:], start + max(0, len(new) - RING_LINES)):
            self._add_rows(number, line)
        gone = 0
        if (excess := len(self._lines) - RING_LINES) > 0:
            del self._lines[:excess]
            self._first += excess
            gone = bisect_left(self._rows, (self._first, 0))
            del self._rows[:gone]
        self._resized(gone)

    def set_filter(self, min_level: LogLevel = "debug", text: str = "") -> None:
        """Show only lines of at least this level that contain the text (in source or text, any case)."""
        wanted = (LEVELS.index(min_level), text.casefold())
        if wanted != (self._level, self._needle):
            self._level, self._needle = wanted
            self._rebuild()

    def clear(self) -> None:
        """Forget all lines."""
        self._first += len(self._lines)
        self._lines.clear()
        self._rebuild()

    def action_follow(self) -> None:
        """Go to the end and stay there."""
        self.following = True
        self.scroll_to(y=self.max_scroll_y, animate=False, force=True)

    def action_first(self) -> None:
        """Go to the oldest line."""
        self.scroll_to(x=0, y=0, animate=False, force=True)

    def action_toggle_wrap(self) -> None:
        """Switch between broken and sideways scrolled lines."""
        self.wrap = not self.wrap

    def watch_wrap(self) -> None:
        """Lay the rows out anew."""
        self.scroll_to(x=0, animate=False, force=True)
        self._rebuild()

    def watch_scroll_y(self, old_value: float, new_value: float) -> None:
        """Scrolling away from the end stops following; coming back to it starts it again."""
        super().watch_scroll_y(old_value, new_value)
        self.following = round(new_value) >= self.max_scroll_y

    def on_resize(self, event: events.Resize) -> None:
        """Rows depend on the width when lines are wrapped; and the end is elsewhere."""
        if self.wrap:
            self._rebuild()
        else:
            self._resized(0)

    def notify_style_update(self) -> None:
        """Drop rows drawn in the old theme's colours."""
        self._strips.clear()
        super().notify_style_update()

    def _passes(self, line: LogLine) -> bool:
        return LEVELS.index(line.level) >= self._level and (
            not self._needle or self._needle in line.text.casefold() or self._needle in line.source.casefold()
        )

    def _add_rows(self, number: int, line: LogLine) -> None:
        if not self._passes(line):
            return
        if self._wrap_width:
            self._rows += [(number, part) for part in range(len(_wrapped(line, self._text_width(line))))]
        else:
            self._rows.append((number, 0))
            self._widest = max(self._widest, _prefix_width(line) + cell_len(_text(line)))

    def _rebuild(self) -> None:
        self._rows.clear()
        self._widest = 0
        self._wrap_width = max(1, self.size.width - self.styles.scrollbar_size_vertical) if self.wrap else 0
        for number, line in enumerate(self._lines, self._first):
            self._add_rows(number, line)
        self._resized(0)

    def _resized(self, gone: int) -> None:
        """Fit the scroll range to the rows, `gone` of which left at the top, and keep the place or the end."""
        following, y = self.following, self.scroll_offset.y
        self.virtual_size = Size(0 if self.wrap else self._widest, len(self._rows))
        if following:
            self.scroll_to(y=self.max_scroll_y, animate=False, force=True)
        elif gone:
            self.scroll_to(y=max(0, y - gone), animate=False, force=True)
        self.following = following
        self.refresh()

    def _text_width(self, line: LogLine) -> int:
        return max(_NARROWEST_TEXT, self._wrap_width - _prefix_width(line))

    def render_line(self, y: int) -> Strip:
        """One row: time, level letter, source, text."""
        row, width = y + self.scroll_offset.y, self.size.width
        if row >= len(self._rows):
            return Strip.blank(width, self.rich_style)
        number, part = self._rows[row]
        key = (number, part, self._wrap_width)
        strip = self._strips.get(key)
        if strip is None:
            strip = self._draw(self._lines[number - self._first], part)
            self._strips.set(key, strip)
        return strip.crop_extend(self.scroll_offset.x, self.scroll_offset.x + width, self.rich_style)

    def _draw(self, line: LogLine, part: int) -> Strip:
        base = self.rich_style

        def style(name: str) -> Style:
            return base + self.get_component_rich_style(f"log-view--{name}", partial=True)

        text = _wrapped(line, self._text_width(line))[part] if self._wrap_width else _text(line)
        if part:
            return Strip([Segment(" " * _prefix_width(line), base), Segment(text, style(line.level))])
        stamp, letter, source = _prefix_parts(line)
        return Strip(
            [
                Segment(stamp, style("time")),
                Segment(letter, style(line.level)),
                Segment(source, style("source")),
                Segment(text, style(line.level)),
            ]
        )


def _prefix_parts(line: LogLine) -> tuple[str, str, str]:
    stamp = clock.strftime("%H:%M:%S ", clock.localtime(line.time))
    return stamp, f"{line.level[0].upper()} ", _source(line)


def _source(line: LogLine) -> str:
    return one_line(line.source).ljust(9)[:24] + " "


def _prefix_width(line: LogLine) -> int:
    return len("00:00:00 I ") + cell_len(_source(line))


def _text(line: LogLine) -> str:
    text = line.text
    if len(text) > LONGEST_LINE:
        text = f"{text[:LONGEST_LINE]}… (+{len(text) - LONGEST_LINE} characters)"
    return one_line(text)


def _wrapped(line: LogLine, width: int) -> list[str]:
    text = _text(line)
    if text.isascii():
        return [text[start : start + width] for start in range(0, len(text), width)] or [""]
    return chop_cells(text, width) or [""]


if __name__ == "__main__":
    from widgets.demo import Demo

    view = LogView()

    def tick(time: float) -> None:
        """A flood: a thousand lines ten times a second."""
        level = LEVELS[int(time * 10) % 4]
        view.extend(LogLine(clock.time(), level, "engine", f"line {n} of [b]{time:.1f} s " * 4) for n in range(1_000))

    Demo(view, tick=tick).run()
