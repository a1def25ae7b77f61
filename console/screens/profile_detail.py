"""What applying a profile would do, in text: the knobs that change, and the memory plan."""

import textwrap
from collections.abc import Sequence

from rich.cells import cell_len
from textual.app import ComposeResult
from textual.containers import VerticalScroll
from textual.content import Content
from textual.events import Resize
from textual.widgets import Static

from engine_host.api.types import KnobLine, PlanLine, ProfileChange, ProfileLine
from widgets import marks, units
from widgets.text import elide, one_line

_LONGEST_VALUE = 40
"""Cells of a value; a longer one is a path or a name, whose beginning is enough to know it."""
_NARROWEST_REASON = 24


class ProfileDetail(VerticalScroll):
    """One profile: what is wrong with it, or its difference from the running one."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id, classes="panel")
        self._shown: tuple[ProfileLine, ProfileChange | None, str] | None = None

    def compose(self) -> ComposeResult:
        """All of it is one text."""
        yield Static("", id="detail-text", markup=False)

    def show(self, line: ProfileLine, change: ProfileChange | None, problem: str = "") -> None:
        """Show a profile; `problem` is the sentence why there is no `change`, empty while it is being asked for."""
        if self._shown is None or self._shown[0].name != line.name:
            self.scroll_home(animate=False)
        self._shown = (line, change, problem)
        self._draw()

    def on_resize(self, event: Resize) -> None:
        """Lay the text out anew."""
        self._draw()

    def _draw(self) -> None:
        if self._shown is None:
            return
        line, change, problem = self._shown
        self.border_title = Content(one_line(line.name))
        self.border_subtitle = Content("" if change is None or not change.knobs else _kind_words(change))
        width = max(_NARROWEST_REASON, self.scrollable_content_region.width)
        self.query_one("#detail-text", Static).update(detail_text(line, change, problem, width))


def _kind_words(change: ProfileChange) -> str:
    return f"{marks.GLYPHS['rebuild']} needs a rebuild" if change.rebuild else f"{marks.GLYPHS['live']} live"


def detail_text(line: ProfileLine, change: ProfileChange | None, problem: str, width: int) -> Content:
    """The whole text in `width` cells."""
    parts = [Content.styled(one_line(line.description), "$foreground-muted")] if line.description else []
    if problem:
        parts.append(Content.styled(_wrapped(problem, width), "bold $text-error"))
    elif change is None:
        parts.append(Content.styled("Comparing with the running profile …", "$foreground-muted"))
    else:
        if change.refused:
            parts.append(Content.styled(_wrapped(f"✖ {change.refused}", width), "bold $text-error"))
        parts.append(diff_text(change, width))
        if change.plan:
            parts.append(plan_text(change.plan, width))
    return Content("\n\n").join(parts)


def _wrapped(sentence: str, width: int) -> str:
    return "\n".join(textwrap.wrap(one_line(sentence), width))


def diff_text(change: ProfileChange, width: int) -> Content:
    """Each knob that changes: kind, path, old → new, unit, and why; in two rows each where one is too narrow."""
    if not change.knobs:
        same = change.old == change.new
        return Content("This is the running profile." if same else "Nothing would change: every value is the same.")
    paths = max(cell_len(knob.path) for knob in change.knobs)
    values = [_values(knob) for knob in change.knobs]
    indent = max(cell_len(_mark(knob)) for knob in change.knobs) + 1
    one_row = indent + paths + 2 + max(map(cell_len, values)) <= width
    rows: list[Content] = []
    for knob, value in zip(change.knobs, values, strict=True):
        gap = " " * (paths - cell_len(knob.path) + 2) if one_row else "\n" + " " * indent
        mark = _mark(knob).ljust(indent)
        rows.append(Content.assemble((mark, marks.COLORS[knob.when]), one_line(knob.path), gap, (value, "bold")))
        if knob.why:
            reason = textwrap.wrap(one_line(knob.why), max(_NARROWEST_REASON, width - indent))
            rows += [Content.styled(" " * indent + text, "$foreground-muted") for text in reason]
    return Content("\n").join([Content.styled(f"Changes from {one_line(change.old)}", "$foreground-muted"), *rows])


def _mark(knob: KnobLine) -> str:
    return f"{marks.GLYPHS[knob.when]} {knob.when}"


def _values(knob: KnobLine) -> str:
    if knob.unit == "bytes":
        sizes = [units.bytes_(int(value)) if value.isdecimal() else value for value in (knob.old, knob.new)]
        if sizes[0] != sizes[1]:
            return " → ".join(map(one_line, sizes))
    old, new = (elide(one_line(value), _LONGEST_VALUE) for value in (knob.old, knob.new))
    return f"{old} → {new} {knob.unit}" if knob.unit else f"{old} → {new}"


def plan_text(plan: Sequence[PlanLine], width: int) -> Content:
    """A table: label, what the running profile has and what the other would; `n/a` is unknown, `est.` an estimate."""
    labels = [one_line(line.label) for line in plan]
    old, new = ([_amount(value, line) for line, value in pairs] for pairs in _columns(plan))
    old_width, new_width = (max(map(cell_len, [title, *column])) for title, column in (("now", old), ("then", new)))
    room = max(8, width - old_width - new_width - 4)
    label_width = min(room, max(map(cell_len, ["Memory plan", *labels])))
    head = "Memory plan".ljust(label_width) + "  " + "now".rjust(old_width) + "  " + "then".rjust(new_width)
    rows = [Content.styled(head, "$foreground-muted")]
    for label, before, after in zip(labels, old, new, strict=True):
        name = elide(label, label_width)
        name += " " * (label_width - cell_len(name))
        style = "$foreground-muted" if after == units.NOT_AVAILABLE else "bold"
        rows.append(Content.assemble(name, "  ", before.rjust(old_width), "  ", (after.rjust(new_width), style)))
    return Content("\n").join(rows)


def _columns(
    plan: Sequence[PlanLine],
) -> tuple[list[tuple[PlanLine, float | None]], list[tuple[PlanLine, float | None]]]:
    return [(line, line.old) for line in plan], [(line, line.new) for line in plan]


def _amount(value: float | None, line: PlanLine) -> str:
    if value is None:
        return units.NOT_AVAILABLE
    # Two and a half requests at full context are not three.
    number = f"{value:.1f}" if value < 100 and value != int(value) else units.count(value)
    text = units.bytes_(value) if line.unit == "bytes" else f"{number} {line.unit}"
    return f"est. {text}" if line.estimated else text
