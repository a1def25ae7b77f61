"""The history of changes: who changed what, why, and what came of it."""

from collections.abc import Callable, Sequence
from datetime import datetime

from textual.content import Content
from textual.events import Resize
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from engine_host.api.types import ChangeRecord, Figures, Outcome
from widgets import marks, palette, units
from widgets.status_bar import Segment, fit
from widgets.text import one_line

_OUTCOMES: dict[Outcome, tuple[str, str]] = {
    "running": ("◑", palette.WARN),
    "done": ("✓", palette.GOOD),
    "rolled-back": ("↩", palette.WARN),
    "cancelled": ("○", palette.MUTED),
    "failed": ("✖", palette.BAD),
}


class ProfileHistory(OptionList):
    """The changes, the latest first; two to four lines each, nothing in them cut."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="panel", markup=False)
        self.border_title = "History"
        self._records: tuple[ChangeRecord, ...] = ()

    def show(self, records: Sequence[ChangeRecord]) -> None:
        """Show these records (oldest first), with the cursor on the one it was on."""
        shown = tuple(reversed(records))
        if shown != self._records:
            self._draw(shown)

    @property
    def selected(self) -> ChangeRecord | None:
        """The record under the cursor."""
        return None if self.highlighted is None or not self._records else self._records[self.highlighted]

    def on_resize(self, event: Resize) -> None:
        """Fit the lines anew."""
        self._draw(self._records)

    def _draw(self, records: tuple[ChangeRecord, ...]) -> None:
        before = self.selected
        self._records = records
        width = max(1, self.scrollable_content_region.width)
        self.set_options([Option(record_text(record, width)) for record in records])
        self.border_subtitle = Content("r rolls back" if records else "no change since the host started")
        ids = [record.id for record in records]
        if ids:
            self.highlighted = ids.index(before.id) if before is not None and before.id in ids else 0


def record_text(record: ChangeRecord, width: int) -> Content:
    """A change in lines of `width` cells: what happened, the figures around it, who and why, and the message."""
    lines = [_joined(_what(record), width)]
    if record.before is not None or record.after is not None:
        lines.append(_joined(_figures(record.before, record.after), width))
    why = f": {one_line(record.why)}" if record.why else ""
    lines.append(Content.styled(f"by {one_line(record.who)}{why}", "$foreground-muted"))
    if record.message:
        lines.append(Content(one_line(record.message)))
    return Content("\n").join(lines)


def _what(record: ChangeRecord) -> list[Segment]:
    when = datetime.fromtimestamp(record.time)
    mark, color = _OUTCOMES[record.outcome]
    names = one_line(record.old) if record.old == record.new else f"{one_line(record.old)} → {one_line(record.new)}"
    segments = [
        Segment(f"#{record.id}", priority=5),
        Segment(when.strftime("%Y-%m-%d %H:%M:%S"), when.strftime("%H:%M:%S"), priority=2),
        Segment(f"{marks.GLYPHS[record.kind]} {record.kind}", priority=4, color=marks.COLORS[record.kind]),
        Segment(names, priority=9),
        Segment(f"{mark} {record.outcome}", priority=8, color=color),
    ]
    if record.stalled_s is not None:
        stalled = units.duration(record.stalled_s)
        segments.append(Segment(f"{stalled} without tokens", f"stalled {stalled}", priority=3))
    return segments


def _figures(before: Figures | None, after: Figures | None) -> list[Segment]:
    def pair(value: Callable[[Figures], float | None], form: Callable[[float | None], str]) -> str:
        return " → ".join(form(None if figures is None else value(figures)) for figures in (before, after))

    ttft = pair(lambda figures: figures.ttft_p50, units.milliseconds)
    ttl = pair(lambda figures: figures.ttl_p50, units.milliseconds)
    speed = pair(lambda figures: figures.decode_tps, lambda value: units.rate(value, "tok"))
    price = pair(lambda figures: figures.usd_per_million_output, units.usd)
    windows = {units.duration(figures.window_s) for figures in (before, after) if figures is not None}
    return [
        Segment(f"TTFT p50 {ttft}", f"TTFT {ttft}", priority=6),
        Segment(f"TTL p50 {ttl}", f"TTL {ttl}", priority=7),
        Segment(speed, priority=5),
        Segment(f"{price} per 1M output", price, priority=4),
        Segment(f"over {' and '.join(sorted(windows))}", priority=1),
    ]


def _joined(segments: Sequence[Segment], width: int) -> Content:
    """The segments that fit, with ` · ` between."""
    return Content(" · ").join(Content.styled(text, color) for text, color in fit(segments, width))
