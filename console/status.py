"""The line at the top of every screen, in words."""

from datetime import datetime

from engine_host.api.types import EngineState, Snapshot, StateName
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

PHASE_NAMES = {"import": "import", "weights": "weights", "kv-cache": "KV cache", "warm-up": "warm-up"}


def state_text(state: EngineState) -> str:
    """`● ready`, `◐ weights 40 %`."""
    words: str = state.name
    if state.name == "starting" and state.phase is not None:
        words = PHASE_NAMES[state.phase]
        if state.progress is not None:
            words += f" {units.percent(state.progress)}"
    return f"{_STATES[state.name][0]} {words}"


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
        Segment(state_text(snapshot.state), priority=9, color=_STATES[snapshot.state.name][1]),
        Segment(f"{port.host}:{port.port}", f":{port.port}", priority=4)
        if port.bound
        else Segment(f"✖ no port {port.port}", priority=8, color=palette.BAD),
        Segment(snapshot.device.name, priority=1),
    ]
    if problem:
        segments.append(Segment("▲ host silent", priority=8, color=palette.WARN))
    return segments


def clock_text(snapshot: Snapshot | None) -> str:
    """The host's time of the snapshot, `14:03:22`."""
    return "" if snapshot is None else datetime.fromtimestamp(snapshot.time).strftime("%H:%M:%S")
