"""Makes the traces of a real engine anew: `python -m tests.doctor.record_traces FOLDER`; a few minutes on two cores.

One host serves the default model with little KV memory, and is driven into one trouble after another. What is kept of
each is the host's own record (`GET /admin/record`), from where it began.
"""

import asyncio
import json
import socket
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from dataclasses import replace
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np

from engine_host.api.client import HostClient
from engine_host.api.figures import Telemetry
from engine_host.api.types import ApplyCommand, Snapshot
from engine_host.doctor.record import Record, parse, save
from tests.support import LiveHost, running_host

# 66 pages of 32 tokens, 720 KiB each. The longest context takes 48 of them.
SMALL = """
description = "Little KV memory, large steps"
[engine]
kv_cache_memory = "47MiB"
block_size = 32
max_model_len = 1536
enforce_eager = true
[scheduler]
token_budget = 1024
max_active = 16
long_prefill_threshold = 0
"""
PROFILES = {
    "small": SMALL,
    "target": f"{SMALL}\n[targets]\nttl_ms = 200",
    "one": SMALL.replace("max_active = 16", "max_active = 1"),
    "wide": SMALL.replace("block_size = 32", "block_size = 128"),
}


class Scene:
    """One trouble: the requests that make it, and the record that is left of it."""

    def __init__(self, live: LiveHost, host: HostClient, http: aiohttp.ClientSession, profile: str) -> None:
        self._live, self._host, self._http, self._profile = live, host, http, profile
        self._began = time.time()

    async def begin(self) -> "Scene":
        """Put its profile in force; what comes from here on is its."""
        await self._host.apply_profile(ApplyCommand(profile=self._profile))
        async for snapshot in self._snapshots():
            if snapshot.profile == self._profile and snapshot.state.name == "ready" and snapshot.swap is None:
                break
        self._began = time.time()
        return self

    async def ask(self, prompt: list[int], tokens: int) -> None:
        """One completion of exactly `tokens` tokens."""
        body = {"model": "smollm2-float32", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        async with self._http.post(f"{self._live.url}/v1/completions", json=body) as response:
            assert response.status == 200, await response.text()

    async def ask_and_look_away(self, prompt: list[int], tokens: int, seconds: float) -> None:
        """Ask for a stream, and read nothing of it for a while."""
        body = {"model": "smollm2-float32", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True, "stream": True}
        content = json.dumps(body).encode()
        with socket.socket() as client:
            client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 2048)
            client.connect(("127.0.0.1", self._live.port))
            client.sendall(
                b"POST /v1/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
                b"Content-Length: %d\r\n\r\n%b" % (len(content), content)
            )
            await asyncio.sleep(seconds)

    async def record(self) -> Record:
        """What the host's own record has of it."""
        record = parse(await self._host.record())
        steps = record.steps[record.steps["time"] + record.offset >= self._began]
        shares = record.shares[record.shares["step"] >= steps["number"][0]]
        return replace(
            record,
            steps=steps,
            shares=shares,
            names={serial: name for serial, name in record.names.items() if serial in shares["serial"]},
            snapshot=anonymous(record.snapshot),
            telemetry=anonymous_too(record.telemetry),
            past=[each for each in record.past if each.time >= self._began],
            requests=[each for each in record.requests if each.time >= self._began],
        )

    async def _snapshots(self) -> AsyncIterator[Snapshot]:
        while True:
            yield await self._host.snapshot()
            await asyncio.sleep(0.1)


def anonymous(snapshot: Snapshot) -> Snapshot:
    """Without the paths of the machine it was taken on."""
    model = msgspec.structs.replace(snapshot.model, path="smollm2-float32")
    return msgspec.structs.replace(snapshot, model=model, flight=(), marks=())


def anonymous_too(telemetry: Telemetry | None) -> Telemetry | None:
    """The same of what is measured."""
    if telemetry is None or telemetry.ledger is None:
        return telemetry
    return msgspec.structs.replace(telemetry, ledger=msgspec.structs.replace(telemetry.ledger, path="ledger.db"))


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt that begins like no other."""
    drawn: list[int] = np.random.default_rng(seed).integers(100, 40_000, tokens).tolist()
    return drawn


async def main(folder: Path, live: LiveHost) -> None:
    """All scenes, one after another."""
    host, http = HostClient(str(live.socket)), aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=280))

    async def kept(name: str, scene: Scene, *requests: Coroutine[Any, Any, None]) -> None:
        await asyncio.gather(*requests)
        await asyncio.sleep(1.1)  # The second that is filling becomes a point of the history.
        save(await scene.record(), folder / f"{name}.npz")

    async def later(seconds: float, request: Coroutine[Any, Any, None]) -> None:
        await asyncio.sleep(seconds)
        await request

    try:
        scene = await Scene(live, host, http, "small").begin()
        await kept(
            "healthy",
            scene,
            *(later(0.7 * i, scene.ask(prompt(64, 100) + prompt(12, i), 24)) for i in range(24)),
        )
        scene = await Scene(live, host, http, "target").begin()
        await kept(
            "long-prompts",
            scene,
            *(scene.ask(prompt(40, 200 + i), 120) for i in range(3)),
            *(later(0.5 + 2.0 * i, scene.ask(prompt(1100, 300 + i), 2)) for i in range(3)),
        )
        scene = await Scene(live, host, http, "small").begin()
        await kept("preempting", scene, *(scene.ask(prompt(120, 400 + i), 220) for i in range(9)))
        scene = await Scene(live, host, http, "small").begin()
        away = asyncio.create_task(scene.ask_and_look_away(prompt(40, 700), 300, 9.0))
        await asyncio.sleep(8.0)
        save(await scene.record(), folder / "not-reading.npz")
        await away
        scene = await Scene(live, host, http, "one").begin()
        queue = [asyncio.create_task(later(0.5 * i, scene.ask(prompt(40, 500 + i), 40))) for i in range(50)]
        await asyncio.sleep(26)
        save(await scene.record(), folder / "queue.npz")
        for each in queue:
            each.cancel()
        await asyncio.gather(*queue, return_exceptions=True)
        scene = await Scene(live, host, http, "wide").begin()
        await kept("short-prompts", scene, *(later(0.1 * i, scene.ask(prompt(40, 600 + i), 2)) for i in range(24)))
    finally:
        await http.close()
        await host.close()


if __name__ == "__main__":
    target = Path(sys.argv[1])
    target.mkdir(parents=True, exist_ok=True)
    with running_host(profiles=PROFILES) as running:
        asyncio.run(main(target, running))
