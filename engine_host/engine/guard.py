"""Ties the engine's processes to the host. Imported first in the forkserver, and nowhere else.

On import this process leaves the terminal's process group, so that no key and no hang-up reaches the engine, and asks
the kernel to be killed when the host ends; every process forked from here does the same with its own parent. The kernel
does this also in the middle of a model load, when no Python thread would get to run. A pipe would not do: the engine
itself holds the forkserver's keep-alive pipe open. It stays in the session: the kernel shares the processor out by
session first (sched(7), autogroups), and the screen could not stand back for an engine in another one.
"""

import ctypes
import os
import signal
import threading

PR_SET_PDEATHSIG = 1  # linux/prctl.h

_libc = ctypes.CDLL(None, use_errno=True)
_forking_from: int | None = None


def die_with(parent: int) -> None:
    """Have the kernel kill this process when `parent`'s creating thread ends; at once if it has ended already."""
    _libc.prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(1)


def _before_fork() -> None:
    # The signal follows the forking thread, not its process: only the main thread lives as long as the process does.
    global _forking_from
    _forking_from = os.getpid() if threading.current_thread() is threading.main_thread() else None


def _after_fork() -> None:
    if _forking_from is not None:
        die_with(_forking_from)


os.setpgid(0, 0)
die_with(os.getppid())
os.register_at_fork(before=_before_fork, after_in_child=_after_fork)
