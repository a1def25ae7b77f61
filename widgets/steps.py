"""Prefill and decode tokens of each scheduler step, as mirrored bars."""

from __future__ import annotations

from typing import TYPE_CHECKING

from textual.widget import Widget

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray


class StepBars(Widget):
    """One column a step, the most recent at the right: prefill upwards, decode downwards."""

    def set_steps(self, prefill: NDArray[np.integer], decode: NDArray[np.integer], budget: int | None = None) -> None:
        """Show the last steps. Both arrays have one entry a step, oldest first, in tokens; `budget` is the token budget
        of a step, drawn as the top of the scale when it's known."""
