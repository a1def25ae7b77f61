"""Which request an engine died of: those that were in it go into the next one at a time."""

from collections.abc import Callable, Collection

from engine_host.engine.carry import Carried


class Quarantine:
    """Lets suspects pass one by one: the next may enter when the one before has had an output.

    A suspect of two deaths stays alone until it ends. `free` is called when the next may be let in.
    """

    def __init__(self, free: Callable[[], None]) -> None:
        self._free = free
        self._inside: Carried | None = None

    def admits(self, carried: Carried) -> bool:
        """Let a request in, unless it is a suspect while another is on trial; who is none passes."""
        if carried.deaths and carried is not self._inside:
            if self._inside is not None:
                return False
            self._inside = carried
        return True

    def survived(self, carried: Carried) -> None:
        """The engine has put something out for this one."""
        if carried is self._inside and carried.deaths < 2:
            self.leave(carried)

    def leave(self, carried: Carried) -> None:
        """Let the next in; harmless for one that isn't inside."""
        if carried is self._inside:
            self._inside = None
            self._free()

    def engine_died(self, working_on: Collection[Carried]) -> None:
        """Hold the death against everyone in the engine, and name the poison where only one can be it."""
        for each in working_on:
            each.died()
        repeated = [each for each in working_on if each.deaths > 1]
        on_trial = [self._inside] if self._inside in repeated else repeated
        if len(on_trial) == 1 and on_trial[0] is not None:
            on_trial[0].poison = True
