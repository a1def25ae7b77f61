"""Catches descriptors 1 and 2 of this process and of all its children.

A pipe is put over both before anything heavy loads, so that vLLM, C++ and progress bars end up in the ring, and not a
byte reaches the terminal. One thread reads the pipe and never stops: a full pipe would block the engine.
"""

import os
import re
import sys
import threading
from dataclasses import dataclass

from engine_host.logs.parse import parse_line
from engine_host.logs.ring import LogRing

_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_SPLIT = re.compile(rb"[\r\n]")
_MAX_PARTIAL = 65_536


class LineSplitter:
    """Bytes in, lines out. A carriage return ends a line too: progress bars rewrite theirs with it."""

    def __init__(self) -> None:
        self._partial = b""

    def feed(self, data: bytes) -> list[str]:
        """Lines completed by `data`, decoded, without colours and control characters; empty ones are left out."""
        *lines, self._partial = _SPLIT.split(self._partial + data)
        if len(self._partial) > _MAX_PARTIAL:
            lines.append(self._partial)
            self._partial = b""
        decoded = (_ANSI.sub("", line.decode("utf-8", "replace")).rstrip() for line in lines)
        return [line for line in decoded if line]


@dataclass(frozen=True)
class RealDescriptors:
    """Duplicates of the descriptors 0, 1 and 2 the process was started with, not inherited by children."""

    stdin: int
    stdout: int
    stderr: int


def save_descriptors() -> RealDescriptors:
    """Keep the real standard descriptors before `capture_output` covers them."""
    saved = [os.dup(fd) for fd in (0, 1, 2)]
    for fd in saved:
        os.set_inheritable(fd, False)
    return RealDescriptors(*saved)


def capture_output(ring: LogRing) -> None:
    """From here on everything written to descriptors 1 and 2, by this process or a child, becomes records in `ring`."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    os.dup2(write_end, 1)
    os.dup2(write_end, 2)
    os.close(write_end)
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.close(null)
    threading.Thread(target=_read_forever, args=(read_end, ring), name="log-capture", daemon=True).start()


def _read_forever(fd: int, ring: LogRing) -> None:
    splitter = LineSplitter()
    while data := os.read(fd, 65_536):
        for line in splitter.feed(data):
            ring.append(*parse_line(line))
