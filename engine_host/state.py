"""What the engine is doing now, and who waits for it to change."""

import asyncio
import time

from engine_host.api.types import EngineState, PhaseName, StateName

BUILDING: tuple[StateName, ...] = ("starting", "swapping", "recovering")
"""States in which an engine is being built, phase by phase."""


class StateBoard:
    """Holds the state. For the event loop's thread."""

    def __init__(self) -> None:
        self.now = EngineState("stopped", since=time.time())
        self._phase_began = 0.0
        self._changed = asyncio.Event()

    async def until(self, *names: StateName) -> EngineState:
        """Wait for one of the states `names`."""
        while self.now.name not in names:
            changed = self._changed
            await changed.wait()
        return self.now

    def advance(self, phase: PhaseName, fraction: float | None) -> None:
        """An engine being built has reached `phase`, and `fraction` of it where that is known."""
        if self.now.name in BUILDING:
            self.set(self.now.name, phase=phase, progress=fraction, reason=self.now.reason)

    def set(
        self,
        name: StateName,
        *,
        phase: PhaseName | None = None,
        progress: float | None = None,
        reason: str | None = None,
        hint: str | None = None,
    ) -> None:
        """Move to a state; the seconds each phase took are kept until the next engine is built."""
        old, now = self.now, time.time()
        begins = name != old.name and name in BUILDING
        seconds = {} if begins or phase == "import" else dict(old.phase_seconds)
        if (name, phase) != (old.name, old.phase):
            if old.phase is not None and not begins and phase != "import":
                seconds[old.phase] = now - self._phase_began
            self._phase_began = now
        since = old.since if name == old.name and phase != "import" else now
        self.now = EngineState(name, since, phase, progress, reason, hint, seconds)
        self._changed.set()
        self._changed = asyncio.Event()
