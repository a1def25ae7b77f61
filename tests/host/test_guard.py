"""The engine's processes share the host's fate, and none of the terminal's signals."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator

import psutil
import pytest

HOST = """
import multiprocessing, os, sys, time
from multiprocessing import forkserver
from engine_host.engine.process import start_forkserver

def worker():
    time.sleep(600)

def engine(connection):
    child = multiprocessing.get_context("fork").Process(target=worker)
    child.start()
    connection.send([os.getpid(), child.pid])
    time.sleep(600)

if __name__ == "__main__":
    import engine_host.engine.process as process
    process.PRELOAD = ("engine_host.engine.guard",)
    server = start_forkserver()
    ours, theirs = multiprocessing.Pipe()
    multiprocessing.get_context("forkserver").Process(target=engine, args=(theirs,)).start()
    print(server, *ours.recv(), flush=True)
    time.sleep(600)
"""


@pytest.fixture
def host(tmp_path) -> Iterator[tuple[subprocess.Popen[str], list[psutil.Process]]]:  # type: ignore[no-untyped-def]
    """A host with a forkserver, an engine forked from it, and a worker forked by the engine."""
    script = tmp_path / "host.py"
    script.write_text(HOST)
    process = subprocess.Popen(
        [sys.executable, str(script)],
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    assert process.stdout is not None
    children = [psutil.Process(int(pid)) for pid in process.stdout.readline().split()]
    assert len(children) == 3
    yield process, children
    for each in (process, *children):
        if each.pid and psutil.pid_exists(each.pid):
            each.kill()
    process.wait()


def test_everything_ends_when_the_host_is_killed(host) -> None:  # type: ignore[no-untyped-def]
    process, children = host
    process.kill()
    process.wait()
    _, alive = psutil.wait_procs(children, timeout=10)
    assert alive == []


def test_the_engine_ends_when_the_forkserver_is_killed(host) -> None:  # type: ignore[no-untyped-def]
    _, (server, engine, worker) = host
    server.kill()
    _, alive = psutil.wait_procs([engine, worker], timeout=10)
    assert alive == []


def test_a_worker_ends_with_its_engine_and_the_forkserver_stays(host) -> None:  # type: ignore[no-untyped-def]
    _, (server, engine, worker) = host
    engine.kill()
    _, alive = psutil.wait_procs([worker], timeout=10)
    assert alive == []
    assert server.is_running()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP, signal.SIGQUIT, signal.SIGTSTP])
def test_a_signal_to_the_terminals_group_does_not_reach_the_engine(host, number) -> None:  # type: ignore[no-untyped-def]
    process, children = host
    assert all(os.getpgid(child.pid) != os.getpgid(process.pid) for child in children)
    process.send_signal(signal.SIGSTOP)  # Keep the host alive: the engine would end with it.
    os.killpg(process.pid, number)
    assert all(child.is_running() and child.status() != psutil.STATUS_ZOMBIE for child in children)
