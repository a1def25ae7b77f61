"""`llmconsole` as a person meets it: in a real terminal, on the real engine."""

import os
import re
import shutil
import subprocess
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from tests.support import free_port, small_model

pytestmark = [
    pytest.mark.engine,
    pytest.mark.terminal,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("tmux") is None, reason="tmux isn't installed (Debian: apt-get install tmux)"),
]

PATIENCE_S = 240.0
"""How long to look for something before giving up; nothing is asserted about how long it takes."""


class Terminal:
    """A tmux server of its own with one window of 120x40 running a shell."""

    def __init__(self, home: Path) -> None:
        self.runtime = Path(f"/tmp/llmt-{uuid.uuid4().hex[:8]}")
        self.runtime.mkdir()
        self._socket = str(self.runtime / "tmux")
        environment = {"HOME": str(home), "XDG_RUNTIME_DIR": str(self.runtime), "HF_HUB_OFFLINE": "1", "PS1": "$ "}
        settings = [part for name, value in environment.items() for part in ("-e", f"{name}={value}")]
        self._tmux("new-session", "-d", "-x", "120", "-y", "40", *settings, "sh")

    def _tmux(self, *arguments: str) -> str:
        command = ["tmux", "-f", "/dev/null", "-S", self._socket, *arguments]
        # A size in the environment would be believed instead of the terminal's own.
        environment = {name: value for name, value in os.environ.items() if name not in ("COLUMNS", "LINES")}
        return subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout

    def type(self, *keys: str) -> None:
        """Press keys; a name tmux knows (Enter, Escape, F1) is that key, anything else is typed."""
        self._tmux("send-keys", *keys)

    def screen(self) -> str:
        """What is on the screen."""
        return self._tmux("capture-pane", "-p")

    def wait(self, pattern: str) -> str:
        """The screen once it matches `pattern`."""
        return self.until(lambda text: re.search(pattern, text) is not None, f"{pattern!r} on the screen")

    def until(self, wanted: Callable[[str], bool], what: str) -> str:
        """The screen once `wanted` holds of it."""
        give_up = time.monotonic() + PATIENCE_S
        while not wanted(text := self.screen()):
            assert time.monotonic() < give_up, f"never saw {what}; the last screen:\n{text}"
            time.sleep(0.1)
        return text

    def family(self) -> list[psutil.Process]:
        """Everything that runs below the shell."""
        shell = int(self._tmux("display-message", "-p", "#{pane_pid}"))
        return psutil.Process(shell).children(recursive=True)

    def close(self) -> None:
        """Close the window, as a dropped connection does."""
        with suppress(subprocess.CalledProcessError):
            self._tmux("kill-server")


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    opened = Terminal(tmp_path)
    family: list[psutil.Process] = []
    yield opened
    with suppress(subprocess.CalledProcessError):
        family = opened.family()
    opened.close()
    _, alive = psutil.wait_procs(family, timeout=15)
    for process in alive:
        process.kill()
    shutil.rmtree(opened.runtime, ignore_errors=True)


def start(terminal: Terminal) -> None:
    command = f"{sys.executable} -m console --model {small_model('float32')} --port {free_port()}"
    terminal.type(
        f"cd {os.getcwd()} && {command} --kv-cache-memory-bytes=134217728 --max-model-len=2048; echo ended with $?",
        "Enter",
    )


def folders(terminal: Terminal) -> list[Path]:
    return list((terminal.runtime / "llmconsole").iterdir())


def used_share(screen: str) -> int:
    match = re.search(r"(\d+) % used", screen)
    return int(match[1]) if match else 0


def test_start_chat_watch_the_pages_and_quit(terminal: Terminal) -> None:
    start(terminal)
    terminal.wait("● ready")
    family = terminal.family()
    assert any("EngineCore" in process.name() for process in family)

    terminal.wait("KV pages")
    terminal.type("2")
    terminal.wait("Ask something")
    terminal.type("-l", "Write a very long story about a lighthouse keeper and his seven cats.")
    terminal.type("Enter")
    terminal.wait("assistant")
    terminal.type("F1")
    terminal.until(lambda text: used_share(text) > 0 and "1 running" in text, "a running request and its pages")

    terminal.type("F2")
    terminal.wait("esc stops the reply|tok/s")
    terminal.type("Escape")
    terminal.wait(r"TTFT \d")
    terminal.type("F1")
    terminal.until(lambda text: " 0 running" in text and " 0 % used" in text, "the pages given back")

    terminal.type("C-q")
    shell = terminal.wait(r"ended with 0")
    assert "Traceback" not in shell
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert folders(terminal) == []


def test_closing_the_terminal_during_the_import_leaves_nothing(terminal: Terminal) -> None:
    start(terminal)
    terminal.wait("import .*working")
    family = terminal.family()
    assert len(family) >= 3
    terminal.close()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []


def test_a_killed_host_leaves_a_restored_terminal_and_no_engine(terminal: Terminal) -> None:
    start(terminal)
    terminal.wait("import .*working")
    host, *others = terminal.family()
    host.kill()
    _, alive = psutil.wait_procs(others, timeout=10)
    assert alive == []
    terminal.wait("The host of this console is gone")
    terminal.type("-l", "stty -a | grep -c ' icanon'")
    terminal.type("Enter")
    terminal.wait(r"(?m)^1$")
