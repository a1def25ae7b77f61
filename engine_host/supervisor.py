"""The screen: a child process that owns the terminal, started again when it crashes.

A crash of it costs no request: it is only a client of the host.
"""

import asyncio
import os
import signal
import subprocess
import time
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from engine_host.logs.capture import RealDescriptors
from engine_host.terminal import TerminalKeeper

MAX_CRASHES = 3
CRASH_WINDOW_S = 60.0
"""More crashes than `MAX_CRASHES` in this time and the screen is given up: it would only flicker."""

STOP_TIMEOUT_S = 3.0


class ScreenGivenUp(Exception):
    """The screen crashed again and again; the message says what to do."""


class ScreenSupervisor:
    """Starts `argv` on the real terminal and watches over it. `{socket}` in `argv` becomes the host's socket."""

    def __init__(
        self, argv: Sequence[str], socket: Path, descriptors: RealDescriptors, log: Callable[[str], None]
    ) -> None:
        self._argv = [part.replace("{socket}", str(socket)) for part in argv]
        self._descriptors = descriptors
        self._terminal = TerminalKeeper(descriptors.stdin)
        self._log = log
        self._process: subprocess.Popen[bytes] | None = None
        self._crashes: deque[float] = deque()

    def launch(self) -> None:
        """Start the screen now; before the output is captured it paints while everything else still loads."""
        self._process = subprocess.Popen(
            self._argv,
            stdin=self._descriptors.stdin,
            stdout=self._descriptors.stdout,
            stderr=self._descriptors.stderr,
        )

    async def watch(self) -> None:
        """Return when the user quit the screen. Raises `ScreenGivenUp` when it can't be kept up."""
        while True:
            assert self._process is not None
            code = await asyncio.to_thread(self._process.wait)
            if code == 0:
                return
            self._terminal.restore()
            now = time.monotonic()
            self._crashes.append(now)
            while now - self._crashes[0] > CRASH_WINDOW_S:
                self._crashes.popleft()
            how = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            if len(self._crashes) > MAX_CRASHES:
                raise ScreenGivenUp(
                    f"The screen ended {len(self._crashes)} times within a minute (last: {how}). "
                    "Serve without one: `llmconsole serve`."
                )
            self._log(f"The screen ended unexpectedly ({how}) and was started again. Requests were not touched.")
            self.launch()

    def stop(self) -> None:
        """End the screen and leave the terminal as it was found."""
        process = self._process
        if process is not None and process.poll() is None:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT_S)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
                self._terminal.restore()
        elif process is not None and process.returncode != 0:
            self._terminal.restore()

    def say(self, text: str) -> None:
        """Write a line on the real terminal, once the screen has left it."""
        with suppress(OSError):
            os.write(self._descriptors.stderr, f"{text}\n".encode())
