"""Processes of their own that keep rows, each in its trouble: `python -m tests.ledger.child WHAT FILE`."""

import os
import queue
import resource
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path

from engine_host.ledger.file import open_to_read
from engine_host.ledger.ledger import Ledger
from tests.ledger.rows import KEEPS, request

SOON_S = 60
"""Longest wait for something that takes a moment."""

NOBODY = 65_534


def say(*words: object) -> None:
    """A line for the test."""
    sys.stdout.write(" ".join(map(str, words)) + "\n")
    sys.stdout.flush()


def keep(path: Path, count: int) -> tuple[Ledger, "queue.Queue[str]"]:
    """A ledger that isn't started, with rows that wait, and what it will say."""
    said: queue.Queue[str] = queue.Queue()
    ledger = Ledger(path, lambda: KEEPS, said.put)
    for number in range(count):
        ledger.request(request(id=str(number), time=time.time()))
    return ledger, said


def endless(path: Path) -> None:
    """Hand over 200 rows a second; say after each when that was, how many there are, and how many are written."""
    ledger, _ = keep(path, 0)
    ledger.start()
    number = 0
    while True:
        ledger.request(request(id=str(number), time=time.time()))
        number += 1
        say(time.time(), number, ledger.status().written)
        time.sleep(1 / 200)


def anybody(path: Path) -> None:
    """Keep a row as somebody who may not write there: root may write everywhere."""
    if os.getuid() == 0:
        os.setresuid(NOBODY, NOBODY, NOBODY)
    ledger, said = keep(path, 1)
    ledger.start()
    say(said.get(timeout=SOON_S))
    say(ledger.status().waiting)
    os._exit(0)


def limit(path: Path) -> None:
    """Keep more rows than the limit of a file's size lets through (setrlimit(2))."""
    ledger, said = keep(path, 3000)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200 * 1024, 200 * 1024))
    ledger.start()
    say(said.get(timeout=SOON_S))
    say(ledger.status().waiting)
    os._exit(0)


def disk(path: Path) -> None:
    """Fill a disk of 2 MB, keep rows, make room; in a mount namespace of its own."""
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", path.parent], check=True)
    filler = path.with_name("filler")
    filler.write_bytes(b"x" * (1400 * 1024))
    ledger, said = keep(path, 2000)
    ledger.start()
    say(said.get(timeout=SOON_S))
    filler.unlink()
    say(said.get(timeout=SOON_S))
    ledger.close()
    with closing(open_to_read(path)) as connection:
        say(*connection.execute("SELECT count(*) FROM requests").fetchone())
    say(ledger.status().lost)


if __name__ == "__main__":
    {"endless": endless, "anybody": anybody, "limit": limit, "disk": disk}[sys.argv[1]](Path(sys.argv[2]))
