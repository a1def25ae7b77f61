"""The screen's keeper: a crash is mended, a quit is obeyed, the terminal is put back."""

import os
import pty
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

from engine_host.logs.capture import RealDescriptors
from engine_host.supervisor import MAX_CRASHES, ScreenGivenUp, ScreenSupervisor

COUNTED = """
import sys, termios, tty
from pathlib import Path
count = Path(sys.argv[1])
runs = int(count.read_text()) + 1 if count.exists() else 1
count.write_text(str(runs))
tty.setraw(0)
sys.exit(0 if runs > int(sys.argv[2]) else 3)
"""


@pytest.fixture
def terminal() -> Iterator[RealDescriptors]:
    leader, follower = pty.openpty()
    yield RealDescriptors(follower, follower, follower)
    os.close(leader)
    os.close(follower)


def supervise(terminal: RealDescriptors, count: Path, crashes: int) -> tuple[ScreenSupervisor, list[str]]:
    """A supervisor of a screen that crashes `crashes` times, in raw mode each time, and then quits."""
    said: list[str] = []
    argv = [sys.executable, "-c", COUNTED, str(count), str(crashes)]
    return ScreenSupervisor(argv, Path("/nowhere"), terminal, said.append), said


async def test_a_quit_ends_the_watch(terminal: RealDescriptors, tmp_path: Path) -> None:
    supervisor, said = supervise(terminal, tmp_path / "runs", crashes=0)
    supervisor.launch()
    await supervisor.watch()
    assert (tmp_path / "runs").read_text() == "1"
    assert said == []


async def test_a_crashed_screen_is_started_again_and_said(terminal: RealDescriptors, tmp_path: Path) -> None:
    supervisor, said = supervise(terminal, tmp_path / "runs", crashes=2)
    supervisor.launch()
    await supervisor.watch()
    assert (tmp_path / "runs").read_text() == "3"
    assert len(said) == 2
    assert "exit code 3" in said[0]


async def test_a_screen_that_keeps_crashing_is_given_up_with_the_terminal_restored(
    terminal: RealDescriptors, tmp_path: Path
) -> None:
    before = termios.tcgetattr(terminal.stdin)
    supervisor, _ = supervise(terminal, tmp_path / "runs", crashes=99)
    supervisor.launch()
    with pytest.raises(ScreenGivenUp, match="llmconsole serve"):
        await supervisor.watch()
    assert (tmp_path / "runs").read_text() == str(MAX_CRASHES + 1)
    assert termios.tcgetattr(terminal.stdin) == before


async def test_a_screen_that_ignores_the_request_to_end_is_ended(
    terminal: RealDescriptors, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_host.supervisor.STOP_TIMEOUT_S", 0.2)
    before = termios.tcgetattr(terminal.stdin)
    script = (
        "import signal, sys, time, tty; signal.signal(signal.SIGTERM, signal.SIG_IGN); tty.setraw(0); "
        "open(sys.argv[1], 'w').close(); time.sleep(600)"
    )
    argv = [sys.executable, "-c", script, str(tmp_path / "up")]
    supervisor = ScreenSupervisor(argv, Path("/nowhere"), terminal, print)
    supervisor.launch()
    while not (tmp_path / "up").exists():
        os.sched_yield()
    supervisor.stop()
    assert termios.tcgetattr(terminal.stdin) == before


async def test_the_screen_is_told_the_hosts_socket(terminal: RealDescriptors, tmp_path: Path) -> None:
    argv = [
        sys.executable,
        "-c",
        "import sys; open(sys.argv[1], 'w').write(sys.argv[2])",
        str(tmp_path / "o"),
        "{socket}",
    ]
    supervisor = ScreenSupervisor(argv, Path("/run/x.sock"), terminal, print)
    supervisor.launch()
    await supervisor.watch()
    assert (tmp_path / "o").read_text() == "/run/x.sock"
