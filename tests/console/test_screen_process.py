"""The screen as a process on a real (pseudo) terminal: what it imports before it paints, and how it ends."""

import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

HEAVY = ("aiohttp", "numpy", "pydantic", "torch", "transformers", "vllm")

FIRST_PAINT = f"""
import os, sys
from console import app, screen
paint = app.ConsoleApp.call_after_refresh
def painted(self, *args, **kwargs):
    def report():
        heavy = [name for name in {HEAVY} if name in sys.modules]
        open(os.environ["REPORT"], "w").write(" ".join(heavy) or "none")
        self.exit(return_code=7)
    for coroutine in args[1:]:
        coroutine.close()
    return paint(self, report)
app.ConsoleApp.call_after_refresh = painted
sys.exit(screen.main(["--socket", "/nonexistent/host.sock"]))
"""


class Terminal:
    """A child on a pseudo-terminal of 80×24; `output` is all it wrote so far."""

    def __init__(self, argv: list[str], **environment: str) -> None:
        self._master, slave = pty.openpty()
        termios.tcsetwinsize(slave, (24, 80))
        self.before = termios.tcgetattr(slave)
        self._slave = slave
        env = {**os.environ, "TERM": "xterm-256color", **environment}
        self.process = subprocess.Popen(argv, stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True)
        self.output = b""
        self.outlived = False  # whether a child of it writes on when it's gone

    def read_until(self, text: bytes) -> None:
        """Read what it writes until `text` is part of it. Fails when the child ends first."""
        while text not in self.output:
            assert self._read(), f"ended before {text!r}: {self.output[-2000:]!r}"

    def press(self, keys: bytes) -> None:
        os.write(self._master, keys)

    def wait(self) -> int:
        """Read until it ends; its exit code."""
        while self.process.poll() is None:
            self._read()
        while select.select([self._master], [], [], 0)[0] and self._read():
            pass
        return self.process.returncode

    def modes(self) -> list[object]:
        return list(termios.tcgetattr(self._slave))

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
            self.process.wait()
        self.hang_up()

    def hang_up(self) -> None:
        """Close the terminal."""
        for descriptor in (self._master, self._slave):
            with suppress(OSError):
                os.close(descriptor)

    def _read(self) -> bool:
        if not select.select([self._master], [], [], 0.05)[0]:
            return self.outlived or self.process.poll() is None
        self.output += os.read(self._master, 65536)
        return True


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    socket = str(tmp_path / "host.sock")
    running = Terminal([sys.executable, "-m", "console.screen", "--socket", socket], XDG_CONFIG_HOME=str(tmp_path))
    running.read_until(b"host")
    yield running
    running.close()


def test_nothing_heavy_is_imported_before_the_first_paint(tmp_path: Path) -> None:
    report = tmp_path / "report"
    running = Terminal([sys.executable, "-c", FIRST_PAINT], REPORT=str(report), XDG_CONFIG_HOME=str(tmp_path))
    try:
        assert running.wait() == 7
    finally:
        running.close()
    assert report.read_text() == "none"


def assert_restored(terminal: Terminal) -> None:
    assert terminal.modes() == terminal.before
    assert terminal.output.rfind(b"\x1b[?1049l") > terminal.output.rfind(b"\x1b[?1049h"), "alternate screen left"
    assert terminal.output.rfind(b"\x1b[<u") > terminal.output.rfind(b"\x1b[>1u"), "Kitty keys off"
    assert terminal.output.rfind(b"\x1b[?25h") > terminal.output.rfind(b"\x1b[?25l"), "cursor shown"


def test_the_user_quits(terminal: Terminal) -> None:
    terminal.press(b"q")
    assert terminal.wait() == 0
    assert_restored(terminal)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 143), (signal.SIGHUP, 129)])
def test_signals_restore_the_terminal(terminal: Terminal, number: signal.Signals, code: int) -> None:
    terminal.process.send_signal(number)
    assert terminal.wait() == code
    assert_restored(terminal)


def test_interrupts_do_not_end_it(terminal: Terminal) -> None:
    for _ in range(2):
        terminal.process.send_signal(signal.SIGINT)
        terminal.press(b"\x03")
    terminal.read_until(b"Ctrl+Q")
    terminal.press(b"q")
    assert terminal.wait() == 0
    assert_restored(terminal)


def test_without_its_host_it_ends_with_a_sentence(tmp_path: Path) -> None:
    host = "import subprocess, sys; subprocess.run([sys.executable, '-m', 'console.screen', '--socket', '/none'])"
    running = Terminal([sys.executable, "-c", host], XDG_CONFIG_HOME=str(tmp_path))
    try:
        running.read_until(b"host")
        running.outlived = True
        running.process.kill()
        running.read_until(b"\x1b[?1049l")
        running.read_until(b"console ends")
    finally:
        running.close()


def test_a_terminal_that_is_gone_ends_it(terminal: Terminal) -> None:
    terminal.hang_up()
    terminal.process.send_signal(signal.SIGHUP)
    assert terminal.process.wait() == 129


def test_it_ends_even_when_the_app_is_stuck() -> None:
    stuck = "import threading; from console.lifeline import end_for_certain; end_for_certain(9); l = threading.Lock(); "
    ended = subprocess.run([sys.executable, "-c", f"{stuck} l.acquire(); l.acquire()"], check=False)
    assert ended.returncode == 9


def test_a_dumb_terminal_is_refused(tmp_path: Path) -> None:
    running = Terminal([sys.executable, "-m", "console.screen", "--socket", "/none"], TERM="dumb")
    try:
        assert running.wait() == 2
        assert b"llmconsole serve" in running.output
        assert b"\x1b" not in running.output
    finally:
        running.close()
