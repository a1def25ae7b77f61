"""What is asked before requests are ended, or moved to another tier."""

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.screen import ModalScreen
from textual.widgets import Button, OptionList, Static
from textual.widgets.option_list import Option

from engine_host.api.types import TierLine
from widgets import units
from widgets.request_table import short_id
from widgets.text import elide, one_line

_NAMED = 40
"""Cells of an id in a question."""


def described(ids: Sequence[str]) -> str:
    """`request 7f3a91c0`, or `3 requests`."""
    return f"request {elide(one_line(short_id(ids[0])), _NAMED)}" if len(ids) == 1 else f"{len(ids)} requests"


class CancelScreen(ModalScreen[bool]):
    """Asks; dismissed with whether to end the requests."""

    BINDINGS = [
        Binding("y", "answer(True)", "Cancel them", id="cancel.yes", tooltip="End the requests"),
        Binding("n,escape", "answer(False)", "Keep them", id="cancel.no", tooltip="End nothing"),
    ]

    def __init__(self, ids: Sequence[str]) -> None:
        super().__init__()
        self._ids = tuple(ids)

    def compose(self) -> ComposeResult:
        """The question and its two answers."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Cancel"
            yield Static(Content(f"End {described(self._ids)}? Their clients are told that the operator did it."))
            with Horizontal(classes="buttons"):
                yield Button("Keep (n)", id="keep", compact=True)
                yield Button("End (y)", id="end", variant="error", compact=True)

    def on_button_pressed(self, event: Button.Pressed) -> None:
        """A button is an answer too."""
        self.action_answer(event.button.id == "end")

    def action_answer(self, end: bool) -> None:
        """Close with the answer."""
        self.dismiss(end)


class TierScreen(ModalScreen[str | None]):
    """Dismissed with the name of the chosen tier, or `None`."""

    BINDINGS = [Binding("escape", "leave", "Leave", id="tier.leave", tooltip="Change nothing")]

    def __init__(self, ids: Sequence[str], tiers: Sequence[TierLine]) -> None:
        super().__init__()
        self._ids = tuple(ids)
        self._tiers = tuple(tiers)

    def compose(self) -> ComposeResult:
        """The tiers, and what each has to do now."""
        with Vertical(classes="dialog") as dialog:
            dialog.border_title = "Tier"
            dialog.border_subtitle = "enter moves · esc leaves"
            yield Static(Content(f"Move {described(self._ids)} to the tier"))
            yield OptionList(*map(_option, self._tiers), markup=False)

    def on_option_list_option_selected(self, event: OptionList.OptionSelected) -> None:
        """Enter or a click chooses."""
        self.dismiss(self._tiers[event.option_index].name)

    def action_leave(self) -> None:
        """Close without an answer."""
        self.dismiss(None)


def _option(tier: TierLine) -> Option:
    busy = f"  {units.count(tier.active)} active, {units.count(tier.waiting)} waiting"
    shed = ("  ✖ shed", "$text-error") if tier.shed else ""
    return Option(Content.assemble((one_line(tier.name), "bold"), (busy, "$foreground-muted"), shed))
