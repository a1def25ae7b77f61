"""Binding the port, and the connections on it."""

import asyncio
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine_host.port import connections
from engine_host.port.app import make_app
from engine_host.port.connections import SWEEP_S, Doorkeeper
from engine_host.port.server import PortInUseError, start_site, start_unix_site

from .conftest import FakeHost, Port


async def test_a_taken_port_names_its_holder(bare_port: Port) -> None:
    assert bare_port.site.port is not None
    with pytest.raises(PortInUseError) as caught:
        await start_site(make_app(FakeHost()), "127.0.0.1", bare_port.site.port)
    assert str(bare_port.site.port) in str(caught.value)
    assert f"pid {os.getpid()}" in str(caught.value)


async def test_the_unix_socket_is_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "socket"
    path.touch()
    site = await start_unix_site(make_app(FakeHost()), path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert site.port is None
    connector = aiohttp.UnixConnector(str(path))
    async with aiohttp.ClientSession(connector=connector) as client, client.get("http://host/metrics") as response:
        assert response.status == 200
    await site.close()


async def test_extra_routes_come_first() -> None:
    async def handler(request: aiohttp.web.Request) -> aiohttp.web.Response:
        return aiohttp.web.Response(text="ours")

    app = make_app(FakeHost(), extra_routes=[aiohttp.web.get("/load", handler)])
    site = await start_site(app, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{site.port}/load"
    async with aiohttp.ClientSession() as client, client.get(url) as response:
        assert await response.text() == "ours"
    await site.close()


def test_the_port_does_not_import_vllm() -> None:
    code = "import sys, engine_host.port.server; print(*{'vllm', 'torch', 'numpy', 'fastapi'} & set(sys.modules))"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == ""


class Connection:
    def __init__(self) -> None:
        self.connected = True

    def force_close(self) -> None:
        self.connected = False


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def idle_connections(doorkeeper: Doorkeeper, count: int) -> list[Any]:
    connections: list[Any] = [Connection() for _ in range(count)]
    for connection in connections:
        doorkeeper.idle(connection)
    return connections


def test_connections_idle_too_long_are_closed() -> None:
    clock = Clock()
    doorkeeper = Doorkeeper(clock, max_idle=10, timeout_s=60)
    old, busy = idle_connections(doorkeeper, 2)
    doorkeeper.busy(busy)
    clock.now = 30
    (young,) = idle_connections(doorkeeper, 1)
    clock.now = 60
    assert doorkeeper.sweep() == 1
    assert (old.connected, busy.connected, young.connected) == (False, True, True)


def test_the_longest_idle_goes_when_there_are_too_many() -> None:
    doorkeeper = Doorkeeper(Clock(), max_idle=2, timeout_s=60)
    first, second, third = idle_connections(doorkeeper, 3)
    doorkeeper.busy(first)
    doorkeeper.idle(first)
    assert doorkeeper.sweep() == 1
    assert (first.connected, second.connected, third.connected) == (True, False, True)


def test_a_connection_the_client_closed_no_longer_counts() -> None:
    clock = Clock()
    doorkeeper = Doorkeeper(clock, max_idle=1, timeout_s=60)
    gone, here = idle_connections(doorkeeper, 2)
    gone.connected = False
    clock.now = SWEEP_S
    assert doorkeeper.sweep() == 0
    assert here.connected


def test_a_new_connection_has_its_own_deadline_for_its_first_headers() -> None:
    clock, headers_s = Clock(), 15.0
    doorkeeper = Doorkeeper(clock, max_idle=10, timeout_s=75, headers_s=lambda: headers_s)
    all_: list[Any] = [Connection() for _ in range(4)]
    _, answered, working, kept = all_
    for connection in all_:
        doorkeeper.opened(connection)
    for connection in (answered, working, kept):
        doorkeeper.busy(connection)
    doorkeeper.idle(answered)
    clock.now = 14
    assert doorkeeper.sweep() == 0
    clock.now = 15
    assert doorkeeper.sweep() == 1
    assert [each.connected for each in all_] == [False, True, True, True], "only the first request has it"
    clock.now = 75
    doorkeeper.idle(kept)
    doorkeeper.sweep()
    assert [each.connected for each in all_] == [False, False, True, True]


def test_the_deadline_for_headers_is_never_longer_than_that_of_idle_ones() -> None:
    clock = Clock()
    doorkeeper = Doorkeeper(clock, timeout_s=75, headers_s=lambda: 1_000.0)
    doorkeeper.opened(Connection())  # type: ignore[arg-type]
    clock.now = 75
    assert doorkeeper.sweep() == 1


async def test_a_short_deadline_for_headers_is_looked_at_in_time(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []

    async def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 2:
            raise asyncio.CancelledError

    monkeypatch.setattr(connections.asyncio, "sleep", sleep)
    headers = iter((1.0, 60.0))
    with pytest.raises(asyncio.CancelledError):
        await Doorkeeper(Clock(), headers_s=lambda: next(headers)).run()
    assert pauses == [1.0, SWEEP_S]
