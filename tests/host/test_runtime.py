"""A killed host's folder is recognised and cleared; a living one's is left alone."""

import os
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from engine_host.runtime import clear_leftovers, create_runtime_dir, remember_processes

HOST = """
import os, subprocess, sys
from pathlib import Path
import psutil
from engine_host.runtime import create_runtime_dir, remember_processes
directory = create_runtime_dir(Path(sys.argv[1]))
engine = subprocess.Popen(["sleep", "600"], start_new_session=True)
remember_processes(directory, [psutil.Process(engine.pid)])
print(directory, engine.pid, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def other_host(tmp_path: Path):  # type: ignore[no-untyped-def]
    """A second host with one 'engine' process; yields it, its folder and its engine."""
    process = subprocess.Popen(
        [sys.executable, "-c", HOST, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    directory, pid = process.stdout.readline().split()
    engine = psutil.Process(int(pid))
    yield process, Path(directory), engine
    process.kill()
    process.wait()
    if engine.is_running():
        engine.kill()


def test_a_living_hosts_folder_and_engine_are_left_alone(tmp_path: Path, other_host) -> None:  # type: ignore[no-untyped-def]
    _, directory, engine = other_host
    assert clear_leftovers(tmp_path) == []
    assert directory.is_dir()
    assert engine.is_running()


def test_a_dead_hosts_folder_is_removed(tmp_path: Path, other_host) -> None:  # type: ignore[no-untyped-def]
    process, directory, _ = other_host
    process.kill()  # Not waited for: what nobody has reaped yet is dead, too.
    while psutil.Process(process.pid).status() != psutil.STATUS_ZOMBIE:
        os.sched_yield()
    (said,) = clear_leftovers(tmp_path)
    assert str(process.pid) in said
    assert not directory.exists()


def test_what_still_runs_of_a_dead_host_is_ended(tmp_path: Path) -> None:
    engine = subprocess.Popen(["sleep", "600"])
    dead = tmp_path / "999999999-1"
    dead.mkdir()
    remember_processes(dead, [psutil.Process(engine.pid)])
    (said,) = clear_leftovers(tmp_path)
    assert not psutil.pid_exists(engine.pid)
    assert "ended 1" in said


def test_a_number_taken_over_by_another_process_is_not_ended(tmp_path: Path) -> None:
    other = subprocess.Popen(["sleep", "600"])
    dead = tmp_path / "999999999-1"
    dead.mkdir()
    (dead / "processes.json").write_text(f"[[{other.pid}, 1]]")
    clear_leftovers(tmp_path)
    assert other.poll() is None
    other.kill()
    other.wait()


def test_folders_that_are_not_ours_stay(tmp_path: Path) -> None:
    (tmp_path / "somebody").mkdir()
    assert clear_leftovers(tmp_path) == []
    assert (tmp_path / "somebody").is_dir()


def test_the_folder_is_private(tmp_path: Path) -> None:
    assert create_runtime_dir(tmp_path / "x").stat().st_mode & 0o077 == 0
