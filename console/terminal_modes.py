"""Puts the terminal's modes back, also when the host is gone and its shell has taken the terminal over."""

import signal
import termios
from contextlib import suppress
from typing import Any


class TerminalModes:
    """The modes of the terminal on `fd` before the app changed them. Does nothing where `fd` is no terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._before = self._read()
        self._ours: list[Any] | None = None

    def note(self) -> None:
        """Remember the modes as the running app has them."""
        self._ours = self._read()

    def restore(self) -> None:
        """Go back to the modes from before, unless somebody has changed ours since: a shell with modes of its own.

        Once its host is gone the screen is in an orphaned background group. Setting modes fails there, unless the
        signal that would announce it is ignored (tcsetattr(3p)).
        """
        if self._before is None or self._read() != self._ours:
            return
        signal.signal(signal.SIGTTOU, signal.SIG_IGN)
        with suppress(termios.error):
            termios.tcsetattr(self._fd, termios.TCSANOW, self._before)

    def _read(self) -> list[Any] | None:
        try:
            return termios.tcgetattr(self._fd)
        except termios.error:
            return None
