"""The screen's manners as a process: it stands back for the engine, and ends for certain when it's time to."""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

GRACE_S = 2.0
"""How long the app may take to leave the terminal in order; the host waits a little longer before it kills."""

HOST_CHECK_S = 0.5


NICENESS = 10
"""A tenth of a processor that others want too (sched(7))."""

STARVED = 0.6
"""Share of the time spent waiting for a processor from which a screen on idle time stands still to the eye."""

STANDING_BACK_CHECK_S = 0.5
SHARE_FOR_S = 10.0


def stand_back() -> None:
    """Let the engine go first wherever both want the processor: what computes on the CPU would feel every repaint.

    The screen takes idle time only, for as long as there is some: where none is left it would stand still, and takes a
    small share instead for a while.
    """
    threading.Thread(target=_stand_back, name="stand-back", daemon=True).start()


def _stand_back() -> None:
    while True:
        _schedule(idle=True)
        began, waited = time.monotonic(), _waited_s()
        while True:
            time.sleep(STANDING_BACK_CHECK_S)
            now, waiting = time.monotonic(), _waited_s()
            if waiting is None or waited is None:
                return  # This system doesn't say: idle time it is.
            if waiting - waited > STARVED * (now - began):
                break
            began, waited = now, waiting
        _schedule(idle=False)
        time.sleep(SHARE_FOR_S)


def _schedule(*, idle: bool) -> None:
    """For every thread of this process: idle time only, or the small share."""
    for task in os.listdir("/proc/self/task"):
        with suppress(OSError):  # It has ended meanwhile.
            os.sched_setscheduler(int(task), os.SCHED_IDLE if idle else os.SCHED_OTHER, os.sched_param(0))
            if not idle:
                os.setpriority(os.PRIO_PROCESS, int(task), NICENESS)


def _waited_s() -> float | None:
    """Seconds the main thread has waited for a processor since it began; `None` where the kernel doesn't count them."""
    try:
        return int(Path(f"/proc/self/task/{os.getpid()}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError, ValueError):
        return None


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
