"""The editor of a profile: every knob with its value, checked while it is typed."""

from collections.abc import Awaitable, Callable

from textual import on
from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical, VerticalScroll
from textual.content import Content
from textual.events import DescendantFocus
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from console.screens.profile_draft import DESCRIPTION, Draft, SourceError, default_text
from engine_host.api.types import ProfileText, SaveCommand
from profiles.schema import Knob
from widgets import marks
from widgets.text import one_line

__all__ = ["EditorScreen", "SourceError"]

_ABOUT_NAME = "Saved as your own profile of this name. One named like a built-in profile takes its place."
_ABOUT_DESCRIPTION = "One line for the list of profiles."


class Row(Vertical):
    """A knob: its path, a field for its value, its unit, and under it what is wrong."""

    def __init__(self, path: str, value: str, default: str, about: str, knob: Knob | None = None) -> None:
        """`default` stands in the empty field, `about` is shown while the row has the focus."""
        super().__init__()
        self.path = path
        self.about = about
        self._value = value
        self._default = default
        self._knob = knob

    def compose(self) -> ComposeResult:
        """The mark of a knob is that of its kind of change."""
        kind: marks.EventKind | None = self._knob.when if self._knob else None
        mark = (marks.GLYPHS[kind], marks.COLORS[kind]) if kind else " "
        unit = self._knob.unit if self._knob else None
        with Horizontal(classes="row"):
            yield Static(Content.assemble(mark, f" {self.path}"), classes="path")
            yield Input(self._value, placeholder=self._default, compact=True, select_on_focus=False)
            yield Static(Content(unit or ""), classes="unit")
        yield Static("", classes="wrong", markup=False)

    @property
    def value(self) -> str:
        """The text in the field."""
        return self.query_one(Input).value

    def complain(self, problem: str) -> None:
        """Show what is wrong, or (empty) nothing."""
        wrong = self.query_one(".wrong", Static)
        wrong.update(Content(one_line(problem)))
        wrong.display = bool(problem)


class EditorScreen(ModalScreen[None]):
    """Closes when the profile is saved or left as it was."""

    CSS_PATH = "profile_editor.tcss"
    BINDINGS = [
        Binding("ctrl+s", "save", "Save", id="editor.save", priority=True, tooltip="Save the profile"),
        Binding("escape", "leave", "Leave", id="editor.leave", tooltip="Change nothing"),
        Binding("down", "app.focus_next", "Next", id="editor.next", show=False),
        Binding("up", "app.focus_previous", "Previous", id="editor.previous", show=False),
    ]

    def __init__(self, source: ProfileText, save: Callable[[SaveCommand], Awaitable[str]]) -> None:
        """`save` answers the sentence why a profile wasn't saved, empty if it was. Raises `SourceError`."""
        super().__init__()
        self._draft = Draft(source)
        self._save = save

    def compose(self) -> ComposeResult:
        """The name, the description, and a row a knob; below them what the present row means."""
        draft, source = self._draft, self._draft.source
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = Content(f"Edit {one_line(source.name)}")
            dialog.border_subtitle = "^s saves · esc leaves · ↑↓ rows"
            with VerticalScroll(can_focus=False):
                yield Row("name", source.name, "", _ABOUT_NAME)
                yield Row(DESCRIPTION, draft.value(DESCRIPTION), "", _ABOUT_DESCRIPTION)
                for knob in draft.knobs:
                    path = ".".join(knob.path)
                    about = f"{marks.GLYPHS[knob.when]} {knob.when} · {knob.description}. Empty: {default_text(knob)}."
                    yield Row(path, draft.value(path), default_text(knob), about, knob)
            yield Static("", id="whole", classes="wrong", markup=False)
            yield Static("", id="about", markup=False)

    def on_mount(self) -> None:
        """Say at once what is wrong with the source, and begin at the first knob."""
        self._check()
        self._rows()[2].query_one(Input).focus()

    def _rows(self) -> list[Row]:
        return list(self.query(Row))

    def _values(self) -> dict[str, str]:
        return {row.path: row.value for row in self._rows()[1:]}

    @property
    def _saved_as(self) -> str:
        return self._rows()[0].value.strip()

    @on(Input.Changed)
    def _check(self) -> dict[str, str]:
        """Show every problem beside its row, and under all of them what no row is to blame for."""
        problems = self._draft.problems(self._values(), self._saved_as)
        rows = self._rows()
        for row in rows:
            row.complain(problems.get(row.path, ""))
        own = {row.path for row in rows}
        others = [f"{path}: {text}" if path else text for path, text in problems.items() if path not in own]
        self._complain(" ".join(others))
        return problems

    def _complain(self, problem: str) -> None:
        whole = self.query_one("#whole", Static)
        whole.update(Content(one_line(problem)))
        whole.display = bool(problem)

    @on(DescendantFocus)
    def explain(self) -> None:
        """Say what the row with the focus means."""
        row = self.focused.query_ancestor(Row) if isinstance(self.focused, Input) else None
        self.query_one("#about", Static).update(Content(row.about if row else ""))

    @on(Input.Submitted)
    def go_on(self) -> None:
        """Enter goes to the next row."""
        self.focus_next()

    def action_save(self) -> None:
        """Save, unless something is wrong: then go there."""
        problems = self._check()
        wrong = [row for row in self._rows() if row.path in problems]
        if wrong:
            wrong[0].query_one(Input).focus()
        if not problems:
            command = SaveCommand(self._saved_as, self._draft.source.name, self._draft.changed(self._values()))
            self.run_worker(self._send(command), group="save", exclusive=True)

    async def _send(self, command: SaveCommand) -> None:
        problem = await self._save(command)
        if problem:
            self._complain(problem)
        else:
            self.dismiss()

    def action_leave(self) -> None:
        """Close without saving."""
        self.dismiss()
