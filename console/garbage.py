"""When the screen collects its garbage: a full collection takes a third of a second once a long chat is on screen.

Python would make one every few seconds while a reply streams, and no key would show meanwhile. So the oldest
generation is left out, and collected when nothing runs; after a while in any case.
"""

import gc

YOUNG = (700, 10)
"""Python's own thresholds for the generations that are quickly collected."""

NEVER = 2**30

CHECK_S = 20.0
OVERDUE_S = 600.0


class IdleCollector:
    """Collects the oldest generation at quiet times. `now` is monotonic seconds."""

    def __init__(self, now: float) -> None:
        gc.set_threshold(*YOUNG, NEVER)
        self._last = now

    def tick(self, now: float, *, busy: bool) -> bool:
        """Collect, if this is the time for it; whether it was."""
        if (busy and now - self._last < OVERDUE_S) or not gc.get_count()[2]:
            return False
        gc.collect()
        self._last = now
        return True
