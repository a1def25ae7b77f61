"""The folder of one running host: its socket, its engine's sockets, its flight record; and clearing what others left.

A host that is killed can't clean up. Its folder's name says who owned it (pid and start time), so that the next start
recognises it as dead, ends what still runs of it and removes the folder. Nothing of a living host is touched.
"""

import json
import os
import shutil
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import psutil

from profiles.files import beside

SOCKET_NAME = "host.sock"
"""The Unix socket for screens, in the runtime folder."""

SCRATCH = ("rpc", "tmp")
"""Folders in it for the engine's sockets and temporary files: empty whenever no engine runs."""

_PROCESSES = "processes.json"
_KILL_WAIT_S = 3.0


def create_runtime_dir(base: Path) -> Path:
    """Make this process's folder below `base`, readable by its owner only.

    Raises `PermissionError` if `base` belongs to somebody else.
    """
    base.mkdir(mode=0o700, parents=True, exist_ok=True)
    if base.stat().st_uid != os.getuid():
        raise PermissionError(f"{base} belongs to another user; set XDG_RUNTIME_DIR to a folder of your own.")
    mine = base / f"{os.getpid()}-{_started(os.getpid())}"
    shutil.rmtree(mine, ignore_errors=True)
    mine.mkdir(mode=0o700)
    for name in SCRATCH:
        (mine / name).mkdir(mode=0o700)
    return mine


def remember_processes(directory: Path, processes: list[psutil.Process]) -> None:
    """Write down the engine's processes, so that a later start can end them if this host no longer can."""
    entries = [[process.pid, _started(process.pid)] for process in processes]
    with beside(directory / _PROCESSES) as new:
        new.write_text(json.dumps(entries))


SHARED_MEMORY = Path("/dev/shm")


def shared_memory_of(pids: Iterable[int]) -> set[Path]:
    """Files in `/dev/shm` that the processes have mapped now: semaphores and segments.

    They are told by their inode (proc(5), maps): a semaphore is made under another name and then linked to its own.
    """
    inodes = set()
    for pid in pids:
        with suppress(OSError):
            lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
            inodes |= {line.split()[4] for line in lines if f" {SHARED_MEMORY}/" in line}
    found = set()
    for path in SHARED_MEMORY.iterdir() if inodes and SHARED_MEMORY.is_dir() else []:
        with suppress(OSError):
            if str(path.stat().st_ino) in inodes:
                found.add(path)
    return found


def clear_leftovers(base: Path) -> list[str]:
    """End and remove what hosts that no longer run left below `base`; returns a sentence for each."""
    said = []
    for directory in sorted(base.iterdir()) if base.is_dir() else []:
        if directory.is_dir() and not _owner_lives(directory.name):
            ended = _end_processes(directory)
            shutil.rmtree(directory, ignore_errors=True)
            also = f" and ended {ended} of its processes" if ended else ""
            said.append(f"Cleared what an earlier run (pid {directory.name.split('-')[0]}) had left{also}.")
    return said


def running_hosts(base: Path) -> dict[int, Path]:
    """Hosts that run below `base`: pid to socket, the youngest last."""
    found = [each for each in base.iterdir() if (each / SOCKET_NAME).exists()] if base.is_dir() else []
    alive = [each for each in found if each.name[:1].isdigit() and _owner_lives(each.name)]
    alive.sort(key=lambda each: int(each.name.partition("-")[2] or 0))
    return {int(each.name.partition("-")[0]): each / SOCKET_NAME for each in alive}


def _started(pid: int) -> int | None:
    """Clock ticks from boot to the start of `pid` (field 22 of proc(5) stat), `None` if it doesn't run.

    Unlike a wall-clock start time it does not move when the clock is set. A zombie has ended.
    """
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def _owner_lives(name: str) -> bool:
    pid, _, started = name.partition("-")
    if not (pid.isdigit() and started.isdigit()):
        return True  # Not a name of ours: leave it alone.
    return _started(int(pid)) == int(started)


def _end_processes(directory: Path) -> int:
    try:
        entries = json.loads((directory / _PROCESSES).read_text())
    except (OSError, ValueError):
        return 0
    alive = []
    for pid, started in entries:
        # The number may belong to somebody else by now.
        if started is not None and _started(pid) == started:
            with suppress(psutil.NoSuchProcess):
                process = psutil.Process(pid)
                process.kill()
                alive.append(process)
    psutil.wait_procs(alive, timeout=_KILL_WAIT_S)
    return len(alive)
