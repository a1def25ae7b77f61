"""Makes the traces of a real engine anew: `python -m tests.doctor.record_traces FOLDER`; a few minutes on two cores.

One host serves the default model with little KV memory, and is driven into one trouble after another. What is kept of
each is what the host says of it (steps, shares, snapshot, seconds), and of the requests what their client knows.
"""

import asyncio
import sys
import time
from collections.abc import AsyncIterator, Coroutine
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import numpy as np

from engine_host.api.client import HostClient
from engine_host.api.flight import DECODE, LEFT, FlightReader
from engine_host.api.records import RequestRecord
from engine_host.api.types import ApplyCommand, FlightFile, Snapshot
from engine_host.doctor.record import Named, Processor, Record, save
from profiles.schema import Profile
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
        self._steps, self._shares = 0, 0
        self.ended: list[RequestRecord] = []

    async def begin(self) -> "Scene":
        """Put its profile in force; what comes from here on is its."""
        await self._host.apply_profile(ApplyCommand(profile=self._profile))
        async for snapshot in self._snapshots():
            if snapshot.profile == self._profile and snapshot.state.name == "ready" and snapshot.swap is None:
                break
        self._began = time.time()
        reader = await self._reader()
        self._steps, self._shares = reader.steps_made, reader.read_shares().end
        return self

    async def ask(self, prompt: list[int], tokens: int) -> None:
        """One completion of exactly `tokens` tokens."""
        began = time.time()
        body = {"model": "smollm2-float32", "prompt": prompt, "max_tokens": tokens, "ignore_eos": True}
        async with self._http.post(f"{self._live.url}/v1/completions", json=body) as response:
            said = await response.json()
            assert response.status == 200, said
        self.ended.append(request_record(said["id"], began, len(prompt), tokens))

    async def record(self) -> Record:
        """What is known now."""
        snapshot = await self._host.snapshot()
        reader = await self._reader()
        steps, shares = reader.read_steps(self._steps).rows, reader.read_shares(self._shares).rows
        names = {}
        for serial in np.unique(shares["serial"][~np.isin(shares["kind"], (DECODE, LEFT))]).tolist():
            if (name := reader.request_of(serial)) is not None:
                names[serial] = Named(name, reader.prompt_of(serial))
        now = time.time()
        return Record(
            time=now,
            offset=now - time.monotonic(),
            steps=steps,
            shares=shares,
            names=names,
            profile=Profile.model_validate({"name": self._profile, **toml(PROFILES[self._profile])}),
            snapshot=anonymous(snapshot),
            past=await self._host.history(self._began),
            requests=self.ended,
            processor=Processor(2, 1.4, 0.0),
        )

    async def _snapshots(self) -> AsyncIterator[Snapshot]:
        while True:
            yield await self._host.snapshot()
            await asyncio.sleep(0.1)

    async def _reader(self) -> FlightReader:
        (file,) = (await self._host.snapshot()).flight
        assert isinstance(file, FlightFile)
        return FlightReader(file.path)


def toml(text: str) -> dict[str, Any]:
    """A profile's text as a dictionary."""
    import tomllib

    return tomllib.loads(text)


def anonymous(snapshot: Snapshot) -> Snapshot:
    """Without the paths of the machine it was taken on."""
    return msgspec.structs.replace(
        snapshot, model=msgspec.structs.replace(snapshot.model, path="smollm2-float32"), flight=(), marks=()
    )


def request_record(name: str, began: float, prompt: int, tokens: int) -> RequestRecord:
    """What a client knows of a request that has ended well."""
    return RequestRecord(
        id=name, time=began, model="smollm2-float32", profile="small", tier="standard", key="", lane="short",
        path="/v1/completions", prompt_tokens=prompt, cached_tokens=None, output_tokens=tokens, sequences=1,
        finish_reason="length", error=None, guard_s=None, queue_s=None, prefill_s=None, first_decode_s=None,
        delivery_s=None, ttft_s=None, tpot_s=None, ttl_p50_s=None, ttl_p99_s=None, total_s=time.time() - began,
    )  # fmt: skip


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
