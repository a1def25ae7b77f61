"""How much of each limit is used up: groups of bars under a heading."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rich.cells import cell_len
from rich.segment import Segment as Piece
from rich.style import Style
from textual.binding import Binding
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from widgets import units
from widgets.meter import bar
from widgets.status_bar import Segment, fit
from widgets.text import elide, one_line

WARN_SHARE = 0.8
"""The share of a limit from which its bar warns: a fifth is left."""

_INDENT = 2
_LABEL_WIDTH = 13
_NUMBER_WIDTH = 9
_SHORT_NUMBER = 6
_SHARE_WIDTH = 5
_SMALLEST_BAR = 6
_LARGEST_BAR = 60


@dataclass(frozen=True, slots=True)
class Usage:
    """One limit: `used` of `allowed`, whole again in `resets` seconds; both in USD where `money`, else counts."""

    label: str
    used: float
    allowed: float
    resets: float | None
    money: bool = False

    @property
    def share(self) -> float:
        """Used over allowed; above 1 where more was used than is allowed now."""
        return self.used / self.allowed if self.allowed > 0 else 1.0


@dataclass(frozen=True, slots=True)
class UsageGroup:
    """What stands under one heading; `note` says why there is no limit, or what else there is to know."""

    heading: tuple[Segment, ...]
    usage: tuple[Usage, ...] = ()
    note: str = ""


class UsageBars(ScrollView, can_focus=True):
    """A heading and a bar for each limit; `label ███▌··  42 / 60  70 %  resets in 12 s`.

    In a narrow view the words go first, then the bar; never a number. Only the rows in view are drawn.
    """

    BINDINGS = [
        Binding("up,k", "scroll_up", "Up", id="usage.up", show=False),
        Binding("down,j", "scroll_down", "Down", id="usage.down", show=False),
    ]
    COMPONENT_CLASSES = {"usage--calm", "usage--warn", "usage--full", "usage--muted"}
    DEFAULT_CSS = """
    UsageBars { width: 1fr; height: 1fr; }
    UsageBars > .usage--calm { color: $primary; }
    UsageBars > .usage--warn { color: $text-warning; }
    UsageBars > .usage--full { color: $text-error; text-style: bold; }
    UsageBars > .usage--muted { color: $foreground-muted; }
    """

    def __init__(self, *, id: str | None = None, classes: str | None = None) -> None:
        super().__init__(id=id, classes=classes)
        self._groups: tuple[UsageGroup, ...] = ()
        self._rows: list[tuple[Segment, ...] | Usage | str] = []

    def set_groups(self, groups: Sequence[UsageGroup]) -> None:
        """Show these groups, in this order, with an empty row between them."""
        shown = tuple(groups)
        if shown == self._groups:
            return
        self._groups, self._rows = shown, []
        for group in shown:
            self._rows += [""] if self._rows else []
            self._rows += [group.heading] if group.heading else []
            self._rows += group.usage
            self._rows += [group.note] if group.note else []
        self.virtual_size = Size(0, len(self._rows))
        self.refresh()

    def render_line(self, y: int) -> Strip:
        """A heading, a bar, or a note."""
        row, width, style = y + self.scroll_offset.y, self.size.width, self.rich_style
        room = self.scrollable_content_region.width
        if row >= len(self._rows):
            return Strip.blank(width, style)
        what = self._rows[row]
        if isinstance(what, Usage):
            pieces = self._usage(what, room, style)
        elif isinstance(what, str):
            pieces = [Piece(" " * _INDENT + elide(one_line(what), room - _INDENT), self._style("muted", style))]
        else:
            pieces = self._heading(what, room, style)
        return Strip(pieces).adjust_cell_length(width, style)

    def _style(self, name: str, style: Style) -> Style:
        return style + self.get_component_rich_style(f"usage--{name}", partial=True)

    def _heading(self, heading: tuple[Segment, ...], room: int, style: Style) -> list[Piece]:
        pieces: list[Piece] = []
        for number, (text, color) in enumerate(fit(heading, room)):
            pieces += [Piece(" · ", self._style("muted", style))] if number else []
            pieces.append(Piece(text, style + Style(bold=number == 0, color=color or None)))
        return pieces

    def _usage(self, usage: Usage, room: int, style: Style) -> list[Piece]:
        level = "full" if usage.share >= 1 else "warn" if usage.share >= WARN_SHARE else "calm"
        used, allowed = (_number(value, usage.money) for value in (usage.used, usage.allowed))
        text = f"{used.rjust(_NUMBER_WIDTH)} / {allowed.ljust(_NUMBER_WIDTH)}"
        share = units.percent(usage.share, _SHARE_WIDTH).rjust(_SHARE_WIDTH)
        label = elide(one_line(usage.label), _LABEL_WIDTH)
        label += " " * (_LABEL_WIDTH - cell_len(label))
        left = room - _INDENT - _LABEL_WIDTH - 1 - cell_len(text) - 1 - _SHARE_WIDTH
        reset, taken = _reset(usage.resets, left)
        wide = min(left - taken - 1, _LARGEST_BAR)
        drawn = bar(min(usage.share, 1.0), wide) + " " if wide >= _SMALLEST_BAR else ""
        return [
            Piece(" " * _INDENT + label + " ", self._style("muted", style)),
            Piece(drawn, self._style(level, style)),
            Piece(text, style),
            Piece(f" {share}", self._style(level, style)),
            Piece(reset, self._style("muted", style)),
        ]


def _number(value: float, money: bool) -> str:
    """The number whole, or where that is too wide in millions and more."""
    form = units.usd if money else units.count
    return form(value) if len(form(value)) <= _NUMBER_WIDTH else form(value, _SHORT_NUMBER)


def _reset(seconds: float | None, room: int) -> tuple[str, int]:
    """When the limit is whole again, and the cells kept for it: in words where a bar fits beside them."""
    for words, width, beside in (("  resets in ", 12, _SMALLEST_BAR + 1), ("  ", 8, 0)):
        taken = len(words) + width
        if taken + beside <= room:
            return words + units.duration(seconds, width), taken
    return "", 0


if __name__ == "__main__":
    from widgets.demo import Demo

    bars = UsageBars()
    limits = (
        Usage("requests/min", 42, 60, 12),
        Usage("tokens/day", 95e3, 1e5, 7200),
        Usage("USD/day", 3, 3, 7200, True),
    )
    bars.set_groups(
        [UsageGroup((Segment("web"), Segment("premium")), limits), UsageGroup((Segment("ci"),), (), "No limits.")]
    )
    Demo(bars).run()
