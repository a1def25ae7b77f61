"""The screen's manners as a process: it stands back for the engine, and ends for certain when it's time to."""

import os
import threading
import time
from collections.abc import Callable

GRACE_S = 2.0
"""How long the app may take to leave the terminal in order; the host waits a little longer before it kills."""

HOST_CHECK_S = 0.5


NICENESS = 10
"""A tenth of a processor that others want too (sched(7)): enough to repaint, where idle time only can be none."""


def stand_back() -> None:
    """Let the engine go first wherever both want the processor: what computes on the CPU would feel every repaint."""
    os.setpriority(os.PRIO_PROCESS, 0, max(NICENESS, os.getpriority(os.PRIO_PROCESS, 0)))


def end_for_certain(code: int) -> None:
    """Let the app leave by itself, but end the process with this code in `GRACE_S` seconds, whatever it does then."""
    clock = threading.Timer(GRACE_S, os._exit, [code])
    clock.daemon = True
    clock.start()


def watch_parent(gone: Callable[[], None]) -> None:
    """Call `gone`, from a thread, once the process that started this one has ended."""
    parent = os.getppid()

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(HOST_CHECK_S)
        gone()

    threading.Thread(target=watch, name="parent", daemon=True).start()
