"""`llmconsole serve` as a process: its start, its failures, its death. The engine is real.

How it ends when told to is looked at where the tests' shared hosts end: `running_host`.
"""

import json
import os
import shutil
import socket
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.support import free_port, shared_memory, small_model

SMALL_ENGINE = ("--kv-cache-memory-bytes=134217728", "--max-model-len=512", "--max-num-seqs=4")


class Served:
    """A running `llmconsole serve` with folders of its own."""

    def __init__(self, home: Path, *arguments: str) -> None:
        self.port = free_port()
        # Short: sockets lie in it.
        self.runtime = Path(f"/tmp/llmc-{os.getpid()}")
        self.runtime.mkdir(exist_ok=True)
        command = [sys.executable, "-m", "console", "serve", "--port", str(self.port), *arguments]
        environment = {**os.environ, "HOME": str(home), "XDG_RUNTIME_DIR": str(self.runtime), "HF_HUB_OFFLINE": "1"}
        self.process = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True, env=environment
        )

    def events(self) -> Iterator[dict[str, Any]]:
        """The JSON lines on standard error, until it ends."""
        assert self.process.stderr is not None
        for line in self.process.stderr:
            yield json.loads(line)

    def wait_for(self, text: str) -> dict[str, Any]:
        """The first line that contains `text`."""
        seen = []
        for event in self.events():
            seen.append(event["event"])
            if text in event["event"]:
                return event
        raise AssertionError(f"{text!r} was never logged; the last lines: {seen[-15:]}")

    def get(self, path: str) -> tuple[int, dict[str, str]]:
        """Status and headers of a GET."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=30) as reply:
                return reply.status, dict(reply.headers)
        except urllib.error.HTTPError as error:
            return error.code, dict(error.headers)

    def family(self) -> list[psutil.Process]:
        """All processes below the host."""
        return psutil.Process(self.process.pid).children(recursive=True)

    def wait_listening(self) -> None:
        """Until the port takes a connection."""
        while True:
            assert self.process.poll() is None
            with socket.socket() as probe:
                if probe.connect_ex(("127.0.0.1", self.port)) == 0:
                    return


Serve = Callable[..., Served]


@pytest.fixture
def serve(tmp_path: Path) -> Iterator[Serve]:
    started: list[Served] = []

    def start(*arguments: str) -> Served:
        started.append(Served(tmp_path, *arguments))
        return started[-1]

    yield start
    for served in started:
        family = served.family() if served.process.poll() is None else []
        served.process.kill()
        served.process.wait()
        psutil.wait_procs(family, timeout=10)
        shutil.rmtree(served.runtime, ignore_errors=True)


@pytest.fixture
def no_model(tmp_path: Path) -> str:
    """A folder without a model in it."""
    (tmp_path / "no-model").mkdir()
    return str(tmp_path / "no-model")


def test_a_taken_port_ends_it_before_the_model_loads(serve: Serve, no_model: str) -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        served = serve("--port", str(port), "--model", no_model)
        events = [event["event"] for event in served.events()]
    assert served.process.wait(30) == 1
    assert any(str(port) in event and "use" in event for event in events)
    assert not any("no-model" in event for event in events)


def test_a_folder_without_a_model_is_a_sentence_and_exit_code_1(serve: Serve, no_model: str) -> None:
    served = serve("--model", no_model)
    errors = [event["event"] for event in served.events() if event["level"] == "error"]
    assert served.process.wait(60) == 1
    assert any("The model was not found" in error for error in errors)
    assert not any("Traceback" in error for error in errors)


@pytest.mark.engine
def test_killed_during_the_load_nothing_of_it_stays(serve: Serve, no_model: str) -> None:
    served = serve("--model", str(small_model("float32")), *SMALL_ENGINE)
    served.wait_listening()
    status, headers = served.get("/v1/models")
    assert status == 503
    assert int(headers["Retry-After"]) > 0
    served.wait_for("Starting to load model")
    family = served.family()
    segments = shared_memory(family)
    assert any("EngineCore" in process.name() for process in family)
    served.process.kill()
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert not [segment for segment in segments if os.path.exists(segment)]

    folders = list((served.runtime / "llmconsole").iterdir())
    assert len(folders) == 1
    next_one = serve("--model", no_model)
    next_one.wait_for("Cleared what an earlier run")
    assert not folders[0].exists()
