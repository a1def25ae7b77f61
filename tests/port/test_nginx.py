"""The shipped nginx configuration, in the real nginx, in front of the port."""

import asyncio
import json
import os
import shutil
import socket
import tempfile
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from yarl import URL

from .conftest import Gate, Port

SHIPPED = Path(__file__).parents[2] / "deploy" / "nginx.conf"
NGINX = shutil.which("nginx", path=os.environ.get("PATH", "") + ":/usr/sbin")
CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}

pytestmark = pytest.mark.skipif(NGINX is None, reason="nginx is not installed (Debian: apt-get install nginx-light)")

FRAME = """
daemon off;
master_process off;
error_log stderr notice;
pid {folder}/nginx.pid;
events {{}}
http {{
    access_log off;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    include {folder}/llmconsole.conf;
}}
"""


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.fixture
async def nginx(port: Port) -> AsyncIterator[int]:
    """The port of an nginx that runs the shipped file, with the ports of this test in it."""
    assert NGINX is not None
    listening = _free_port()
    shipped = SHIPPED.read_text()
    ours = shipped.replace("listen 80;", f"listen 127.0.0.1:{listening};").replace(
        "server 127.0.0.1:8000;", f"server 127.0.0.1:{port.site.port};"
    )
    assert ours.count(f"127.0.0.1:{listening}") == ours.count(f"127.0.0.1:{port.site.port}") == 1
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "llmconsole.conf").write_text(ours)
        (Path(folder) / "nginx.conf").write_text(FRAME.format(folder=folder))
        command = (NGINX, "-p", folder, "-c", f"{folder}/nginx.conf", "-e", "stderr")
        process = await asyncio.create_subprocess_exec(*command, stderr=asyncio.subprocess.PIPE)
        assert process.stderr is not None
        try:
            # It names the system it runs on once its sockets listen.
            said = b""
            while b"OS: " not in said:
                line = await asyncio.wait_for(process.stderr.readline(), 20)
                assert line, said.decode()
                said += line
            yield listening
        finally:
            process.terminate()
            await process.communicate()


@pytest.fixture
async def front(nginx: int) -> AsyncIterator[aiohttp.ClientSession]:
    """A client of nginx."""
    async with aiohttp.ClientSession(f"http://127.0.0.1:{nginx}") as client:
        yield client


async def test_every_token_is_passed_on_as_it_comes(port: Port, front: aiohttp.ClientSession) -> None:
    permits = asyncio.Semaphore(0)

    async def pace() -> None:
        await permits.acquire()

    port.engine.pace = pace
    permits.release()
    async with asyncio.timeout(20), front.post("/v1/chat/completions", json=CHAT | {"stream": True}) as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        for _ in range(3):
            while b'"content":"' not in (line := await response.content.readline()):
                assert line
            # The next token is not made before this one has come through.
            permits.release()


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_leaves_before_the_first_token_is_aborted(
    port: Port, front: aiohttp.ClientSession, gate: Gate, stream: bool
) -> None:
    port.engine.pace = gate
    request = asyncio.create_task(front.post("/v1/chat/completions", json=CHAT | {"stream": stream}))
    await gate.reached.wait()
    request.cancel()
    await asyncio.wait_for(gate.left.wait(), 20)
    assert not port.engine.running


async def test_a_client_that_leaves_in_the_middle_of_a_stream_is_aborted(
    port: Port, front: aiohttp.ClientSession, gate: Gate
) -> None:
    outputs = iter([False, True])

    async def pace() -> None:
        if next(outputs):
            await gate()

    port.engine.pace = pace
    response = await front.post("/v1/chat/completions", json=CHAT | {"stream": True})
    await gate.reached.wait()
    response.close()
    await asyncio.wait_for(gate.left.wait(), 20)
    assert not port.engine.running


async def test_the_request_id(port: Port, front: aiohttp.ClientSession) -> None:
    async with front.post("/v1/chat/completions", json=CHAT, headers={"X-Request-Id": "a-1"}) as response:
        assert response.headers["X-Request-Id"] == "a-1"
        assert (await response.json())["id"] == "chatcmpl-a-1"
    async with front.post("/v1/chat/completions", json=CHAT) as response:
        assert len(response.headers["X-Request-Id"]) == 32


async def test_a_body_over_the_limit(port: Port, nginx: int) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", nginx)
    writer.write(f"POST /v1/completions HTTP/1.1\r\nHost: x\r\nContent-Length: {32 * 2**20 + 1}\r\n\r\n{{".encode())
    head = await reader.readuntil(b"\r\n\r\n")
    body = await reader.readuntil(b"}}")
    writer.close()
    assert head.startswith(b"HTTP/1.1 413 ")
    assert json.loads(body)["error"]["code"] == 413
    assert port.engine.received == []


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/admin/profile", "//metrics", "/%6detrics", "/v1/../admin"])
async def test_what_is_denied(front: aiohttp.ClientSession, nginx: int, path: str) -> None:
    async with front.get(URL(f"http://127.0.0.1:{nginx}{path}", encoded=True)) as response:
        assert response.status == 403
        assert (await response.json())["error"]["code"] == 403


async def test_a_host_that_is_not_there(port: Port, front: aiohttp.ClientSession) -> None:
    await port.site.close()
    async with front.post("/v1/chat/completions", json=CHAT) as response:
        assert response.status == 503
        assert response.headers["Retry-After"] == "5"
        assert (await response.json())["error"]["code"] == 503
