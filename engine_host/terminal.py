"""The terminal's modes, kept by the host in case the screen dies without putting them back."""

import os
import termios
from contextlib import suppress

# Leave what a full-screen program may have turned on: kitty keys, mouse, focus, bracketed paste, in-band resize,
# synchronised output, alternate screen, hidden cursor, colours. See "Control sequences" of xterm and the kitty
# keyboard protocol.
_LEAVE = (
    b"\x1b[<u\x1b[?1000l\x1b[?1002l\x1b[?1003l\x1b[?1006l\x1b[?1015l\x1b[?1016l\x1b[?1004l\x1b[?2004l\x1b[?2048l"
    b"\x1b[?2026l\x1b[?1049l\x1b[?25h\x1b[0m"
)


class TerminalKeeper:
    """Remembers the modes of the terminal on `fd` and puts them back. Does nothing where `fd` is no terminal."""

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._modes = termios.tcgetattr(fd) if os.isatty(fd) else None

    def restore(self) -> None:
        """Put the modes back as they were; a terminal that is gone is no error."""
        if self._modes is None:
            return
        with suppress(OSError, termios.error):
            os.write(self._fd, _LEAVE)
            termios.tcsetattr(self._fd, termios.TCSANOW, self._modes)
