"""A port on a stub engine, and one on the real engine."""

import asyncio
from argparse import Namespace
from collections.abc import AsyncIterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import pytest

from engine_host.api.types import EngineState
from engine_host.gateway.sessions import SessionBook
from engine_host.port.app import make_app
from engine_host.port.backend import Serving
from engine_host.port.server import Site, start_site
from engine_host.port.stream import OpenStreams
from profiles.schema import Profile
from tests.support import LiveHost, small_model

MODEL_NAME = "stub-model"


@pytest.fixture(scope="session")
def model_folder() -> Path:
    return small_model("float32")


@dataclass
class FakeHost:
    """A host whose state a test sets."""

    backend: Serving | None = None
    state: EngineState = field(default_factory=lambda: EngineState("ready", 0.0))
    health: str | None = None
    streams: OpenStreams = field(default_factory=OpenStreams)
    admitting: asyncio.Event | None = None
    profile: Profile = field(default_factory=lambda: Profile.model_validate({"name": "test"}))

    book: SessionBook | None = None

    def rules(self) -> Profile:
        return self.profile

    def sessions(self) -> SessionBook | None:
        return self.book

    async def admission(self) -> None:
        if self.admitting is not None:
            await self.admitting.wait()

    def engine_state(self) -> EngineState:
        return self.state

    def serving(self) -> Serving | None:
        return self.backend

    def retry_after_s(self) -> int:
        return 7

    async def metrics_text(self) -> bytes:
        return b"llmconsole_up 1\n"

    async def check_health(self) -> str | None:
        return self.health


@dataclass
class Port:
    """A bound port, its stub engine, and a client."""

    host: FakeHost
    engine: Any
    site: Site
    client: aiohttp.ClientSession

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.site.port}"

    async def post(self, path: str, body: Any, **options: Any) -> tuple[int, Any]:
        """POST JSON; the status and the decoded reply."""
        async with self.client.post(path, json=body, **options) as response:
            return response.status, await response.json()


@pytest.fixture(scope="session")
def serve_args(model_folder: Path) -> Namespace:
    from engine_host.engine.serve_args import parse_serve_args

    return parse_serve_args(str(model_folder), ["--served-model-name", MODEL_NAME], {"max_model_len": 2048})


@pytest.fixture(scope="session")
def stub_engine(serve_args: Namespace) -> Any:
    from engine_host.engine.stub import StubEngine

    return StubEngine(serve_args)


@pytest.fixture(scope="session")
async def stub_serving(stub_engine: Any, serve_args: Namespace) -> Any:
    from engine_host.engine.serving import build_serving

    return await build_serving(stub_engine, serve_args)


@pytest.fixture
async def port(stub_engine: Any, stub_serving: Any) -> AsyncIterator[Port]:
    from engine_host.engine.stub import _at_once, counting

    stub_engine.script, stub_engine.pace = counting, _at_once
    stub_engine.received.clear()
    stub_engine.aborted.clear()
    host = FakeHost(stub_serving)
    site = await start_site(make_app(host), "127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{site.port}") as client:
        yield Port(host, stub_engine, site, client)
    await site.close()


@pytest.fixture
async def bare_port() -> AsyncIterator[Port]:
    """A port whose engine isn't there yet."""
    host = FakeHost(None, EngineState("starting", 0.0, "weights"))
    site = await start_site(make_app(host), "127.0.0.1", 0)
    async with aiohttp.ClientSession(f"http://127.0.0.1:{site.port}") as client:
        yield Port(host, None, site, client)
    await site.close()


@pytest.fixture(scope="session")
def port_url(live_host: LiveHost) -> str:
    """The URL of the port on the real engine."""
    return live_host.url


@pytest.fixture
def gate() -> "Gate":
    return Gate()


class Gate:
    """A pace for the stub engine that stops at the first output, and tells when it is left."""

    def __init__(self) -> None:
        self.reached = asyncio.Event()
        self.left = asyncio.Event()

    async def __call__(self) -> None:
        self.reached.set()
        try:
            await asyncio.Event().wait()
        finally:
            self.left.set()
