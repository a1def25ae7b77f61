"""Settings of the whole run, and the engine it shares."""

import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from tests.support import LiveHost, free_port, small_model

# A deadline would gate on the clock: the machine may be busy.
settings.register_profile("llmconsole", deadline=None)
settings.load_profile("llmconsole")


@pytest.fixture(scope="session")
def live_host() -> Iterator[LiveHost]:
    """The one host that tests of the whole share; its model is called `stub-model`."""
    port, runtime = free_port(), Path(tempfile.mkdtemp(prefix="llmc-", dir="/tmp"))
    command = [sys.executable, "-m", "console", "serve", "--model", str(small_model("float32")), "--port", str(port)]
    command += ["--dtype=float32", "--max-model-len=2048", "--served-model-name=stub-model"]
    command += ["--enable-auto-tool-choice", "--tool-call-parser=hermes"]
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HF_HUB_OFFLINE": "1"}
    log = (runtime / "log").open("w+")
    process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
    try:
        while not _healthy(port):
            assert process.poll() is None, f"the host did not start:\n{(runtime / 'log').read_text()[-3000:]}"
            time.sleep(0.2)
        (socket,) = (runtime / "llmconsole").glob("*/host.sock")
        yield LiveHost(port, socket, process.pid)
    finally:
        process.terminate()
        process.wait(60)
        log.close()
        shutil.rmtree(runtime, ignore_errors=True)


def _healthy(port: int) -> bool:
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except OSError:
        return False
