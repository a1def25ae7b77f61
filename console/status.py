"""The line at the top of every screen, in words."""

from datetime import datetime

from engine_host.api.types import EngineState, Snapshot, StateName, SwapProgress
from widgets import palette, units
from widgets.status_bar import Segment

# A state is told by its shape too, for terminals and eyes without colour.
_STATES: dict[StateName, tuple[str, str]] = {
    "stopped": ("○", ""),
    "starting": ("◐", palette.WARN),
    "ready": ("●", palette.GOOD),
    "swapping": ("◑", palette.WARN),
    "recovering": ("◒", palette.WARN),
    "failed": ("✖", palette.BAD),
}

BUILDING: tuple[StateName, ...] = ("starting", "swapping", "recovering")
"""The states in which an engine may be being built, phase by phase."""

PHASE_NAMES = {"import": "import", "weights": "weights", "kv-cache": "KV cache", "warm-up": "warm-up"}


def phase_text(state: EngineState) -> str:
    """`weights 40 %`; empty where no phase is under way."""
    if state.phase is None:
        return ""
    progress = f" {units.percent(state.progress)}" if state.progress is not None else ""
    return PHASE_NAMES[state.phase] + progress


def stage_text(swap: SwapProgress) -> str:
    """`building`, `draining 3`."""
    return f"draining {units.count(swap.waiting_for)}" if swap.stage == "draining" else swap.stage


def state_text(snapshot: Snapshot) -> str:
    """`● ready`, `◐ weights 40 %`, `◑ swapping · draining 3`, `◒ recovering · building · weights 40 %`."""
    state, swap = snapshot.state, snapshot.swap
    words: list[str] = [state.name] if state.name != "starting" or not state.phase else []
    if swap is not None:
        words.append(stage_text(swap))
    if state.name in BUILDING and state.phase:
        words.append(phase_text(state))
    return f"{_STATES[state.name][0]} {' · '.join(words)}"


def status_segments(snapshot: Snapshot | None, problem: str) -> list[Segment]:
    """The segments, before the first snapshot and while the host doesn't answer (`problem`) too."""
    name = Segment("llmconsole", priority=0, color=palette.MUTED)
    if snapshot is None:
        return [name, Segment(problem or "connecting to the host", priority=9)]
    port = snapshot.port
    segments = [
        name,
        Segment(snapshot.model.name, priority=3),
        Segment(snapshot.profile, priority=2),
        Segment(state_text(snapshot), _short_state(snapshot), priority=9, color=_STATES[snapshot.state.name][1]),
        Segment(f"{port.host}:{port.port}", f":{port.port}", priority=4)
        if port.bound
        else Segment(f"✖ no port {port.port}", priority=8, color=palette.BAD),
        Segment(snapshot.device.name, priority=1),
    ]
    if problem:
        segments.append(Segment("▲ host silent", priority=8, color=palette.WARN))
    return segments


def _short_state(snapshot: Snapshot) -> str:
    """The shape of the state and the stage alone, where there is one."""
    return "" if snapshot.swap is None else f"{_STATES[snapshot.state.name][0]} {stage_text(snapshot.swap)}"


def clock_text(snapshot: Snapshot | None) -> str:
    """The host's time of the snapshot, `14:03:22`."""
    return "" if snapshot is None else datetime.fromtimestamp(snapshot.time).strftime("%H:%M:%S")
