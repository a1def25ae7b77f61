"""The real redis-server, on a Unix socket in a folder of its own."""

import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest


@contextmanager
def redis_server() -> Iterator[str]:
    """Its URL while it runs. Skips the test where the program isn't installed."""
    program = shutil.which("redis-server")
    if program is None:
        pytest.skip("redis-server isn't installed (Debian: apt-get install redis-server)")
    with tempfile.TemporaryDirectory(prefix="redis-") as folder:
        socket = Path(folder) / "socket"
        options = ["--port", "0", "--unixsocket", str(socket), "--dir", folder, "--save", "", "--appendonly", "no"]
        server = subprocess.Popen([program, *options], stdout=subprocess.PIPE, text=True)
        try:
            assert server.stdout is not None
            started = any("eady to accept connections" in line for line in server.stdout)
            assert started, f"redis-server ended with {server.wait()}"
            yield f"unix://{socket}"
        finally:
            server.terminate()
            server.communicate()
