"""How far a change of profile is, in a line."""

from typing import get_args

from textual.content import Content

from console.status import stage_text
from engine_host.api.types import SwapProgress, SwapStage
from widgets import palette, units
from widgets.text import one_line

STAGES: tuple[SwapStage, ...] = get_args(SwapStage)


def progress_text(swap: SwapProgress, now: float) -> Content:
    """Target and seconds, the stages with the present one marked, held requests, and how to cancel.

    `now` is Unix time, in seconds.
    """
    reached = STAGES.index(swap.stage)
    held = f" · {units.count(swap.held)} held" if swap.held else ""
    head = f"◑ {one_line(swap.target)} · {units.duration(max(0.0, now - swap.since))}{held}"
    stages = [
        Content.styled(f"✓ {stage}", palette.MUTED)
        if number < reached
        else Content.styled(f"▸ {stage_text(swap)}", f"bold {palette.WARN}")
        if number == reached
        else Content.styled(f"· {stage}", palette.MUTED)
        for number, stage in enumerate(STAGES)
    ]
    cancel = "   c cancels" if swap.cancellable else ""
    return Content.assemble((head, "bold"), "\n", Content("  ").join(stages), (cancel, "$foreground-muted"))
