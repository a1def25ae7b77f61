"""What the host's own modules say through `logging`, as records of the ring."""

import logging

from engine_host.api.types import LogLevel
from engine_host.logs.ring import LogRing

PACKAGE = "engine_host"


class RingHandler(logging.Handler):
    """Adds what is logged to the ring: each line under its level, as the host's."""

    def __init__(self, ring: LogRing) -> None:
        super().__init__()
        self._ring = ring

    def emit(self, record: logging.LogRecord) -> None:
        """Add one record, with the traceback where it has one."""
        level: LogLevel = "error" if record.levelno >= logging.ERROR else "warning"
        for line in self.format(record).splitlines():
            self._ring.append(level, "host", line)


def hear(ring: LogRing) -> None:
    """Have warnings and errors of our modules in the ring from now on, whatever others do to the root logger.

    A library that vLLM's application imports sets the root's level to ERROR.
    """
    own = logging.getLogger(PACKAGE)
    own.setLevel(logging.WARNING)
    own.addHandler(RingHandler(ring))
    own.propagate = False
