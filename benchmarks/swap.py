"""What changing a running engine costs: a live knob, a rebuild and a crash, under load, against a cold `vllm serve`.

    python -m benchmarks.swap [--streams 8] [--rounds 3]

Printed: the steps until a live knob holds, the longest time a stream went without a token in a rebuild and in a crash,
that time over the start of `vllm serve` with the same model in the same run, where a rebuild's time goes, and how many
streams ended whole. Run it on a calm machine.
"""

import argparse
import asyncio
import json
import os
import signal
import statistics
import time
from pathlib import Path
from typing import Any

import aiohttp
import psutil

from benchmarks.start import peer, time_start
from engine_host.api.client import HostClient
from engine_host.api.flight import FlightReader
from engine_host.api.types import ApplyCommand, ChangeRecord
from tests.support import LiveHost, free_port, running_host, small_model

LIMIT = 0.3
"""Most a rebuild may go without tokens, as a share of a cold start of `vllm serve`."""

PROFILES = {
    name: f'[engine]\nkv_cache_memory = "512MiB"\nblock_size = {block}\nenforce_eager = true\nmax_model_len = 4096\n'
    f"[scheduler]\ntoken_budget = {budget}\nmax_active = 16\n[recovery]\nmax_failures = 100\n"
    for name, block, budget in (("one", 32, 512), ("one-narrow", 32, 64), ("two", 64, 512), ("two-narrow", 64, 64))
}


class Stream:
    """One stream of `tokens` tokens. `longest` is the longest time between two of them, in seconds."""

    def __init__(self, session: aiohttp.ClientSession, number: int, tokens: int) -> None:
        self.tokens, self.longest, self.whole = 0, 0.0, False
        self._wanted = tokens
        self.task = asyncio.create_task(self._read(session, number))

    async def _read(self, session: aiohttp.ClientSession, number: int) -> None:
        body = {"model": "m", "prompt": f"Story {number}:", "max_tokens": self._wanted, "ignore_eos": True}
        body |= {"stream": True, "temperature": 0, "stream_options": {"include_usage": True}}
        last = 0.0
        async with session.post("/v1/completions", json=body) as reply:
            async for line in reply.content:
                if not line.startswith(b"data: {"):
                    continue
                event = json.loads(line[6:])
                if event.get("usage"):
                    self.whole = event["usage"]["completion_tokens"] == self._wanted
                if event.get("choices"):
                    now = time.monotonic()
                    self.longest = max(self.longest, now - last if last else 0.0)
                    self.tokens, last = self.tokens + 1, now


async def run(host: LiveHost, streams: int, rounds: int) -> dict[str, list[Any]]:
    """All three changes, `rounds` times each."""
    found: dict[str, list[Any]] = {"steps": [], "rebuild": [], "crash": [], "kept": [], "phases": []}
    client = HostClient(str(host.socket))
    async with aiohttp.ClientSession(host.url, timeout=aiohttp.ClientTimeout(total=None)) as session:
        for number in range(rounds):
            for kind in ("live", "rebuild", "crash"):
                running = [Stream(session, each, 150) for each in range(streams)]
                while min(each.tokens for each in running) < 10:  # noqa: ASYNC110 - they are polled together
                    await asyncio.sleep(0.05)
                if kind == "live":
                    found["steps"].append(await _live(client))
                elif kind == "rebuild":
                    await _applied(client, "two" if number % 2 == 0 else "one")
                    found["phases"].append((await client.snapshot()).state.phase_seconds)
                else:
                    _kill(host)
                await asyncio.gather(*(each.task for each in running))
                if kind != "live":
                    found[kind].append(max(each.longest for each in running))
                found["kept"].append(sum(each.whole for each in running))
    await client.close()
    return found


async def _live(client: HostClient) -> int:
    """Steps from the reply to `apply` to the first that has the new token budget."""
    reader = FlightReader((await client.snapshot()).flight[0].path)
    generation = reader.control["generation"]
    profile = (await client.snapshot()).profile
    await _applied(client, f"{profile}-narrow")
    before = reader.steps_made
    while reader.steps_made < before + 5:  # noqa: ASYNC110 - another process makes them
        await asyncio.sleep(0.01)
    rows = [row for row in reader.read_steps(before).rows if row["generation"] > generation]
    steps = int(rows[0]["number"]) - before
    await _applied(client, profile)
    return steps


async def _applied(client: HostClient, profile: str) -> ChangeRecord:
    reply = await client.apply_profile(ApplyCommand(profile, who="benchmark"))
    if not reply.ok:
        raise SystemExit(reply.message)
    while (record := (await client.changes())[-1]).outcome == "running":  # noqa: ASYNC110
        await asyncio.sleep(0.05)
    if record.outcome != "done":
        raise SystemExit(f"{profile} was not applied: {record.message}")
    return record


def _kill(host: LiveHost) -> None:
    for process in psutil.Process(host.pid).children(recursive=True):
        if "EngineCore" in " ".join(process.cmdline()):
            os.kill(process.pid, signal.SIGKILL)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    port, model = free_port(), str(small_model("float32"))
    command = [*peer(model, port), "--max-model-len=4096"]
    cold = [time_start(command, port, Path("/tmp/swap-vllm-serve.log"))[0]]
    with running_host("--served-model-name=m", profiles=PROFILES) as host:
        found = asyncio.run(run(host, options.streams, options.rounds))
    cold.append(time_start(command, port, Path("/tmp/swap-vllm-serve.log"))[0])
    start = statistics.median(cold)
    print(f"a cold start of vllm serve: {start:.1f} s ({', '.join(f'{each:.1f}' for each in cold)})")
    print(f"live: in force at step {max(found['steps'])} after the reply ({found['steps']})")
    for kind in ("rebuild", "crash"):
        stalls = ", ".join(f"{each:.2f}" for each in found[kind])
        print(f"{kind}: {statistics.median(found[kind]):.2f} s without tokens ({stalls}), ", end="")
        print(f"{statistics.median(found[kind]) / start:.2f}x of a cold start (at most {LIMIT}x for a rebuild)")
    for phases in found["phases"]:
        print("  rebuild:", ", ".join(f"{name} {seconds:.2f} s" for name, seconds in phases.items()))
    print(f"streams kept: {sum(found['kept'])} of {len(found['kept']) * options.streams}")


if __name__ == "__main__":
    main()
