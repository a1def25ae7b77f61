"""The keys of a screen, in words."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import VerticalScroll
from textual.content import Content
from textual.screen import ModalScreen, Screen
from textual.widgets import Static

_SECTIONS = ("Here", "On this screen", "Everywhere")


class HelpScreen(ModalScreen[None]):
    """Lists bindings by where they hold."""

    BINDINGS = [Binding("escape,question_mark,q", "close", "Close", id="help.close", tooltip="Back to the screen")]

    def __init__(self, sections: Sequence[tuple[str, Sequence[tuple[str, str]]]]) -> None:
        """Each section is a title and its (keys, what they do)."""
        super().__init__()
        self._sections = sections

    @classmethod
    def of(cls, screen: Screen[None]) -> "HelpScreen":
        """The help for a screen as it stands, the focused widget's own keys first; dimmed keys are listed too."""
        found: dict[str, dict[str, list[str]]] = {title: {} for title in _SECTIONS}
        app = screen.app
        for _, binding, _, tooltip in screen.active_bindings.values():
            node = screen.active_bindings[binding.key].node
            if not (binding.id or binding.show) or not binding.description:
                continue
            title = _SECTIONS[2] if node is app else _SECTIONS[1] if node is screen else _SECTIONS[0]
            keys = found[title].setdefault(tooltip or binding.description, [])
            keys.append(app.get_key_display(binding))
        return cls([(title, [(" ".join(keys), what) for what, keys in rows.items()]) for title, rows in found.items()])

    def compose(self) -> ComposeResult:
        """One table a section."""
        with VerticalScroll(classes="dialog") as dialog:
            dialog.border_title = "Keys"
            dialog.border_subtitle = "esc closes"
            for title, rows in self._sections:
                if not rows:
                    continue
                width = max(len(keys) for keys, _ in rows)
                lines = Content("\n").join(
                    Content.assemble((keys.rjust(width), "bold $primary"), f"  {what}") for keys, what in rows
                )
                yield Static(Content(title), classes="muted")
                yield Static(lines)

    def action_close(self) -> None:
        """Back to the screen."""
        self.dismiss()
