"""The keys of a screen at its foot, in as many words as its width allows."""

from textual.app import ComposeResult
from textual.binding import Binding
from textual.events import Resize
from textual.screen import Screen
from textual.widgets import Footer, Label
from textual.widgets._footer import FooterKey

_PALETTE_CELLS = 13
"""What the hint of the command palette takes: `^p palette`, its border and padding."""
_GO_TO_MODE = "switch_mode("
_LAST = ("help", "quit")
_SCREENS = "Screens"


class ConsoleFooter(Footer):
    """The screen's own keys, then the app's.

    Where they don't fit with room between them they move together and the palette's hint goes; where they still don't,
    the keys of the screens give up their words: `1 2 3 Screens`, and at last `1 2 3`.
    """

    DEFAULT_CSS = """
    ConsoleFooter Label { color: $footer-description-foreground; margin-right: 1; }
    """

    def __init__(self) -> None:
        super().__init__()
        self._told: list[tuple[Binding, bool, str]] = []

    def bindings_changed(self, screen: Screen[object]) -> None:
        """Compose anew only where a key or its state is another: screens ask for it with every snapshot."""
        told = [(binding, enabled, tip) for _, binding, enabled, tip in screen.active_bindings.values() if binding.show]
        if told == self._told:
            return
        if screen.app.app_focus:  # else nothing is composed
            self._told = told
        super().bindings_changed(screen)

    def on_resize(self, event: Resize) -> None:
        """Fit anew."""
        self.call_after_refresh(self.recompose)

    def compose(self) -> ComposeResult:
        """The widest form that fits."""
        self.set_reactive(Footer.show_command_palette, True)
        every = [key for key in super().compose() if isinstance(key, FooterKey)]
        keys = sorted((key for key in every if not key.has_class("-command-palette")), key=_place)
        words = sum(len(key.key_display) + len(key.description) for key in keys)
        width = self.screen.size.width
        self.compact = words + 3 * len(keys) + _PALETTE_CELLS > width
        modes = [key for key in keys if key.action.startswith(_GO_TO_MODE)] if words + 2 * len(keys) > width else []
        for key in modes:
            key.description = ""
        taken = sum(len(key.key_display) + 1 + (len(key.description) + 1 if key.description else 0) for key in keys)
        label = bool(modes) and taken + len(_SCREENS) + 1 <= width
        for key in keys:
            yield key
            if label and key is modes[-1]:
                yield Label(_SCREENS)
        if not self.compact:
            yield from (key for key in every if key not in keys)


def _place(key: FooterKey) -> tuple[int, str]:
    """The screen's keys as they come, the screens by their number, help and quit."""
    if key.action.startswith(_GO_TO_MODE):
        return 1, key.key
    return (2 if key.action in _LAST else 0), ""
