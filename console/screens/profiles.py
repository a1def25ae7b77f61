"""The tuning profiles: what each would change, applying one, the history of changes, and editing."""

import asyncio
import importlib
from collections.abc import Iterable
from functools import partial

from textual import on
from textual.app import ComposeResult, SystemCommand
from textual.binding import Binding
from textual.containers import Horizontal, Vertical
from textual.content import Content
from textual.events import DescendantBlur, DescendantFocus
from textual.widgets import OptionList, Static
from textual.widgets.option_list import Option
from textual.worker import Worker

from console.screens.base import HostScreen
from console.screens.profile_apply import ApplyScreen
from console.screens.profile_detail import ProfileDetail
from console.screens.profile_history import ProfileHistory
from console.screens.profile_progress import progress_text
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import ApplyCommand, ProfileChange, ProfileLine, SaveCommand, Snapshot
from widgets.text import one_line


class ProfilesScreen(HostScreen):
    """The list at the left, the difference from the running profile at the right, the history below.

    On a short terminal the history takes the difference's place while it is asked for.
    """

    CSS_PATH = "profiles.tcss"
    AUTO_FOCUS = "#profiles"
    BINDINGS = [
        Binding("a", "apply", "Apply", id="profiles.apply", tooltip="Apply the selected profile (Enter too)"),
        Binding("e", "edit", "Edit", id="profiles.edit", tooltip="Edit the selected profile, and save it"),
        Binding("h", "history", "History", id="profiles.history", tooltip="Go to the history of changes, and back"),
        Binding(
            "r",
            "roll_back",
            "Roll back",
            id="profiles.roll-back",
            show=False,
            tooltip="Go back to before the selected change",
        ),
        Binding("c", "cancel", "Cancel", id="profiles.cancel", show=False, tooltip="Give up the change under way"),
    ]

    def __init__(self) -> None:
        super().__init__()
        self._lines: list[ProfileLine] = []
        self._change: ProfileChange | None = None
        self._comparing: Worker[None] | None = None
        self._saved: str | None = None
        self._seen: tuple[object, ...] = ()

    def compose_body(self) -> ComposeResult:
        """Progress above everything while there is some."""
        yield Static("", id="swap", markup=False)
        with Horizontal(id="upper"):
            profiles = OptionList(id="profiles", classes="panel", markup=False)
            profiles.border_title = "Profiles"
            yield profiles
            with Vertical(id="beside"):
                yield ProfileDetail(id="detail")
        yield ProfileHistory(id="history")

    def on_screen_resume(self) -> None:
        """Somebody else may have changed or written a profile meanwhile."""
        super().on_screen_resume()
        self._reload()

    def show_snapshot(self, snapshot: Snapshot) -> None:
        """Show how far a change is; ask for everything anew when one began or ended."""
        swap = self.query_one("#swap", Static)
        swap.display = snapshot.swap is not None
        if snapshot.swap is not None:
            swap.update(progress_text(snapshot.swap, snapshot.time))
        self.refresh_bindings()
        seen = (snapshot.profile, snapshot.state.name, snapshot.swap and snapshot.swap.change, snapshot.marks)
        if seen != self._seen:
            self._seen = seen
            self._reload()

    def _reload(self) -> Worker[None]:
        return self.run_worker(self._fetch, group="profiles", exclusive=True)

    async def _fetch(self) -> None:
        """Ask for the list and the history; the cursor stays on its profile, or goes to the one just saved."""
        host = self.console_app.host
        if host is None:
            return
        try:
            lines, changes = await host.profile_lines(), await host.changes()
        except (HostUnreachable, HostError) as error:
            self.console_app.say(str(error), "error")
            return
        self.query_one(ProfileHistory).show(changes)
        before = self._selected
        wanted = self._saved or (before.name if before is not None else None)
        self._saved = None
        self._lines = lines
        profiles = self.query_one("#profiles", OptionList)
        profiles.set_options([Option(_entry(line)) for line in lines])
        named = [at for at, line in enumerate(lines) if line.name == wanted]
        active = [at for at, line in enumerate(lines) if line.active]
        if lines:
            profiles.highlighted = [*named, *active, 0][0]
        self.refresh_bindings()

    @property
    def _selected(self) -> ProfileLine | None:
        at = self.query_one("#profiles", OptionList).highlighted
        return self._lines[at] if at is not None and at < len(self._lines) else None

    @on(OptionList.OptionHighlighted, "#profiles")
    def compare(self) -> None:
        """Ask what the profile under the cursor would change."""
        line = self._selected
        if line is None:
            return
        if self._change is None or self._change.new != line.name:
            self._change = None
            self.query_one(ProfileDetail).show(line, None, line.problem or "")
        self.refresh_bindings()
        if line.problem is None:
            self._comparing = self.run_worker(partial(self._compare, line), group="change", exclusive=True)
        elif self._comparing is not None:
            self._comparing.cancel()

    async def _compare(self, line: ProfileLine) -> None:
        host = self.console_app.host
        if host is None:
            return
        problem = ""
        try:
            self._change = await host.profile_change(line.name)
        except (HostUnreachable, HostError) as error:
            self._change, problem = None, str(error)
        self.query_one(ProfileDetail).show(line, self._change, problem)
        self.refresh_bindings()

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Keys that can do nothing now are dimmed."""
        if not self.is_mounted:
            return True
        if action == "apply":
            return None if self._obstacle(self._change) else True
        if action == "edit":
            return True if self._selected is not None else None
        if action == "roll_back":
            history = self.query_one(ProfileHistory)
            return True if history.has_focus and history.selected is not None else None
        if action == "cancel":
            swap = self.console_app.snapshot.swap if self.console_app.snapshot is not None else None
            return True if swap is not None and swap.cancellable else None
        return True

    def _obstacle(self, change: ProfileChange | None) -> str:
        """Why a change can't be applied now, in a sentence; empty if it can."""
        snapshot = self.console_app.snapshot
        if snapshot is not None and snapshot.swap is not None:
            return f"A change to {one_line(snapshot.swap.target)} is under way; wait for its end or cancel it."
        if change is None:
            return "What this profile would change isn't known."
        if change.refused:
            return change.refused
        return "" if change.knobs else "Nothing would change: the engine runs with these values."

    @on(OptionList.OptionSelected, "#profiles")
    def apply_selected(self) -> None:
        """Enter applies, or says why not."""
        self._ask(self._change)

    def action_apply(self) -> None:
        """Apply the selected profile."""
        self._ask(self._change)

    def _ask(self, change: ProfileChange | None, why: str = "") -> None:
        """Ask for the reason, and apply."""
        obstacle = self._obstacle(change)
        if change is None or obstacle:
            self.console_app.say(obstacle, "warning")
            return

        def answered(reason: str | None) -> None:
            if reason is not None:
                self.run_worker(self._apply(ApplyCommand(change.new, why=reason)), group="command")

        self.app.push_screen(ApplyScreen(change, why), answered)

    async def _apply(self, command: ApplyCommand) -> None:
        host = self.console_app.host
        if host is not None:
            await self.tell(host.apply_profile(command))
            self._reload()

    def action_cancel(self) -> None:
        """Give up the change under way."""
        host = self.console_app.host
        if host is not None:
            self.run_worker(self.tell(host.cancel_change()), group="command")

    def action_history(self) -> None:
        """Go to the history, or from there back to the list."""
        history = self.query_one(ProfileHistory)
        self.set_class(not history.has_focus, "-history")
        (self.query_one("#profiles") if history.has_focus else history).focus()

    @on(DescendantFocus)
    @on(DescendantBlur)
    def focus_moved(self) -> None:
        """On a short terminal the history shows only while it has the focus."""
        if self.focused is not None:
            self.set_class(isinstance(self.focused, ProfileHistory), "-history")
        self.refresh_bindings()

    def action_roll_back(self) -> None:
        """Apply the profile that was in force before the selected change."""
        record = self.query_one(ProfileHistory).selected
        if record is not None:
            self.run_worker(self._roll_back(record.old, f"roll back of #{record.id}"), group="command")

    async def _roll_back(self, profile: str, why: str) -> None:
        host = self.console_app.host
        if host is None:
            return
        try:
            change = await host.profile_change(profile)
        except (HostUnreachable, HostError) as error:
            self.console_app.say(str(error), "error")
            return
        self._ask(change, why)

    def action_edit(self) -> None:
        """Edit the selected profile."""
        line = self._selected
        if line is not None:
            self.run_worker(self._edit(line.name), group="command", exclusive=True)

    async def _edit(self, name: str) -> None:
        # The schema brings pydantic, which is only needed here.
        await asyncio.to_thread(importlib.import_module, "console.screens.profile_editor")
        from console.screens.profile_editor import EditorScreen, SourceError

        host = self.console_app.host
        if host is None:
            return
        try:
            editor = EditorScreen(await host.profile_text(name), self._save)
        except (HostUnreachable, HostError, SourceError) as error:
            self.console_app.say(str(error), "error")
            return
        self.app.push_screen(editor)

    async def _save(self, command: SaveCommand) -> str:
        """Save a profile; answers the sentence why the host didn't, empty if it did."""
        host = self.console_app.host
        if host is None:
            return "There is no host to save it."
        try:
            reply = await host.save_profile(command)
        except (HostUnreachable, HostError) as error:
            return str(error)
        if not reply.ok:
            return reply.message
        self.console_app.say(reply.message or f"Saved {one_line(command.name)}.")
        self._saved = command.name
        self._reload()
        return ""

    def commands(self) -> Iterable[SystemCommand]:
        """What the keys do, by name."""
        yield SystemCommand("Apply the selected profile", "Change the running engine to it", self.action_apply)
        yield SystemCommand("Edit the selected profile", "Change its values and save it", self.action_edit)
        yield SystemCommand("History of changes", "Who changed what, why, and what came of it", self.action_history)
        if self.check_action("roll_back", ()):
            yield SystemCommand("Roll back the selected change", "Apply the profile before it", self.action_roll_back)
        if self.check_action("cancel", ()):
            yield SystemCommand("Cancel the change under way", "Stay with the running profile", self.action_cancel)


def _entry(line: ProfileLine) -> Content:
    """`● name  built-in` over the description, or over what is wrong with it."""
    mark = "✖ " if line.problem else "● " if line.active else "  "
    below = line.problem or line.description
    return Content.assemble(
        (mark, "$text-error" if line.problem else "$primary"),
        (one_line(line.name), "bold" if line.active else ""),
        ("  built-in" if line.builtin else "  yours", "$foreground-muted"),
        (f"\n  {one_line(below)}" if below else "", "$text-error" if line.problem else "$foreground-muted"),
    )
