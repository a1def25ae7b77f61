"""What the gateway costs, and what it does for those who matter most.

    python -m benchmarks.gateway [--part overhead|mixed|disconnect|all] [--model FOLDER]

overhead: with every rule on (keys, budgets in SQLite, caps, prompt limits, tiers, deadlines) against the same port with
none, on a stub engine: the time to first token of requests that come while others stream, and the CPU of requests that
come one after the other; rounds alternate between the two servers.
mixed: premium requests among a crowd of best-effort ones, a fifth of them with long prompts, on the real engine:
premium's TTFT and TTL against vLLM's own server, first come first served, and against a reserve instead of setting
requests aside. disconnect: from the moment a client leaves to the moment its pages are free, on the real engine.
"""

import argparse
import asyncio
import itertools
import random
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import aiohttp
import psutil
import uvloop

from benchmarks.load import percentile
from benchmarks.port import serve_on_port
from benchmarks.start import peer
from engine_host.api.client import HostClient
from engine_host.api.flight import FlightReader
from engine_host.api.types import ApplyCommand, Snapshot
from engine_host.gateway.keys import KEYS_FILE, KeyStore
from profiles.schema import Profile
from tests.support import LiveHost, free_port, running_host, small_model

ADDED_MS = 0.5
"""Most that the gateway may add to the time to first token, at the median, in milliseconds."""

CPU_MS = 1.0
"""Most CPU it may cost a request, in milliseconds."""

FREE_S = 0.1
"""Within this time after a client has left its pages must be free."""

SEED = 7

# Overhead.

RULES = Profile.model_validate(
    {
        "name": "everything",
        "keys": {"required": "always", "requests_per_minute": 10**6, "tokens_per_day": 10**9, "usd_per_day": 1e6},
        "cost": {"usd_per_hour": 2.0},
        "gateway": {
            "prompts": {"hard_limit": 1500, "soft_limit": 1000, "over_soft": "compress", "max_tokens": 1000},
            "breaker": {"queue_delay_s": 5.0},
        },
        "tiers": {
            "standard": {
                "tokens_per_minute": 10**8,
                "tokens_per_second": 10**8,
                "ttft_deadline_s": 30.0,
                "ttl_deadline_s": 30.0,
                "max_active": 1000,
            }
        },
    }
)


CHAT = {"messages": [{"role": "user", "content": "Count the lamps. " * 12}], "stream": True}
STREAMS, QUICK, SLOW, TOKENS_PER_S = 16, 8, 900, 30
"""Streams that go on in the background, the tokens of a short and of a long reply, and the pace of the long ones."""


async def serve(kind: str, model: str) -> None:
    """Serve the stub engine on a free port, with every rule or with none, until SIGTERM."""
    from engine_host.books import RequestBook, Served
    from engine_host.engine.gateway import Gateway
    from engine_host.engine.serve_args import parse_serve_args
    from engine_host.engine.serving import build_serving
    from engine_host.engine.stub import StubEngine
    from engine_host.gateway.admission import Admission
    from engine_host.gateway.budgets import open_budgets
    from engine_host.gateway.seats import Capacity
    from engine_host.port.auth import Authenticator
    from engine_host.telemetry.hub import TelemetryHub
    from engine_host.telemetry.meter import CostMeter

    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    args = parse_serve_args(model, [], {"max_model_len": 2048})

    class Engine(StubEngine):
        async def generate(self, prompt: Any, sampling_params: Any, request_id: str, **options: Any) -> Any:
            """Long replies at the pace of an engine, short ones at once."""
            async for output in super().generate(prompt, sampling_params, request_id, **options):
                if sampling_params.max_tokens > QUICK:
                    await asyncio.sleep(1 / TOKENS_PER_S)
                yield output

    engine = Engine(args)
    if kind == "off":
        await serve_on_port(await build_serving(engine, args), Profile.model_validate({"name": "none"}), stop)
        return
    folder = Path(tempfile.mkdtemp(prefix="llmc-"))
    keys = KeyStore(folder / KEYS_FILE)
    print("key", keys.create("benchmark")[1], flush=True)
    hub, budgets = TelemetryHub(), open_budgets(None, folder)
    admission = Admission(lambda: RULES, lambda: budgets, lambda: hub.usd_per_token(2.0))
    book = RequestBook(CostMeter(0.0, 0.0), hub, lambda: Served("model", "none"), time.monotonic, time.time)
    gateway = Gateway(hub, admission, lambda: Capacity(slots=1000), book)
    gateway.attach(engine)
    auth = Authenticator(keys, lambda: RULES.keys, lambda: frozenset())
    await serve_on_port(await build_serving(gateway, args), RULES, stop, auth=auth)
    await admission.stop()
    await budgets.close()


class Server:
    """One of the two: `ttft` in seconds, `cpu` in seconds a request, a list of each round's."""

    def __init__(self, kind: str, model: str) -> None:
        command = [sys.executable, "-m", "benchmarks.gateway", "--model", model, "--serve", kind]
        self.kind = kind
        self.process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.headers: dict[str, str] = {}
        self.ttft: list[list[float]] = []
        self.cpu: list[float] = []
        for line in self.process.stdout:
            name, _, value = line.strip().partition(" ")
            if name == "key":
                self.headers = {"Authorization": f"Bearer {value}"}
            elif name == "port":
                self.url = f"http://127.0.0.1:{value}"
                return
        raise SystemExit(f"the server did not start: run {' '.join(command)}")

    async def round(self, requests: int) -> None:
        """First the CPU of requests from four clients, then the time to first token among `STREAMS` streams."""
        async with aiohttp.ClientSession(self.url, headers=self.headers) as session:

            async def one(tokens: int) -> float:
                body = {**CHAT, "max_tokens": tokens}
                sent = time.perf_counter()
                async with session.post("/v1/chat/completions", json=body) as reply:
                    await reply.content.readany()
                    first = time.perf_counter() - sent
                    if reply.status != 200:
                        raise SystemExit(await reply.text())
                    await reply.read()
                return first

            async def client() -> None:
                for _ in range(requests // 4):
                    await one(QUICK)

            before = self.process.cpu_times()
            await asyncio.gather(*(client() for _ in range(4)))
            after = self.process.cpu_times()
            self.cpu.append((after.user + after.system - before.user - before.system) / (requests // 4 * 4))

            pauses = random.Random(SEED)
            streams = [asyncio.create_task(one(SLOW)) for _ in range(STREAMS)]
            await asyncio.sleep(1)
            arriving = []
            for _ in range(requests):
                arriving.append(asyncio.create_task(one(QUICK)))
                await asyncio.sleep(pauses.expovariate(1 / 0.05))
            self.ttft.append(list(await asyncio.gather(*arriving)))
            for each in streams:
                each.cancel()
            await asyncio.gather(*streams, return_exceptions=True)


def overhead(model: str, rounds: int, requests: int) -> bool:
    """Print the gateway's share of the time to first token and of the CPU."""
    servers = [Server("off", model), Server("on", model)]
    try:
        for each in servers:
            uvloop.run(each.round(40))
            each.ttft.clear()
            each.cpu.clear()
        for _ in range(rounds):
            for each in servers:
                uvloop.run(each.round(requests))
    finally:
        for each in servers:
            each.process.terminate()
            each.process.wait(20)
    off, on = servers
    p50, p99 = (
        1000
        * statistics.median(percentile(b, share) - percentile(a, share) for a, b in zip(off.ttft, on.ttft, strict=True))
        for share in (0.5, 0.99)
    )
    cpu = 1000 * statistics.median(b - a for a, b in zip(off.cpu, on.cpu, strict=True))
    for each in servers:
        all_of_them = [value for values in each.ttft for value in values]
        print(
            f"{each.kind:4} TTFT p50 {1000 * percentile(all_of_them, 0.5):.2f} ms, "
            f"p99 {1000 * percentile(all_of_them, 0.99):.2f} ms, "
            f"{1000 * statistics.median(each.cpu):.2f} CPU-ms a request"
        )
    ok = p50 <= ADDED_MS and cpu <= CPU_MS
    print(
        f"the gateway adds {p50:.2f} ms at p50 (at most {ADDED_MS}), {p99:.2f} ms at p99, "
        f"{cpu:.2f} CPU-ms a request (at most {CPU_MS}): {'ok' if ok else 'MISSED'}"
    )
    return ok


# Mixed load.

TINY = """
[engine]
kv_cache_memory = "512MiB"
block_size = 32
enforce_eager = true
[scheduler]
token_budget = 1024
max_active = 4
long_prefill_threshold = 256
[headroom]
max_active = 4.0
[keys]
required = "never"
[gateway.lanes]
long_prompt = 600
long_prefill = 1000
"""
PROFILES = {
    "checkpoint": TINY,
    "reserve": f"{TINY}checkpoint = false\nreserve = 0.25\n",
    "neither": f"{TINY}checkpoint = false\n",
}


async def mixed_round(url: str, keys: dict[str, str], premium: int) -> tuple[list[float], list[float], float]:
    """TTFT and TTL of `premium` requests in seconds, and tokens a second of the crowd they come among."""
    chance = random.Random(SEED)
    done, ttft, ttl, crowd = False, [], [], 0
    async with aiohttp.ClientSession(url, timeout=aiohttp.ClientTimeout(total=None)) as session:

        async def one(tier: str, words: int, tokens: int) -> list[float]:
            text = f"Story {chance.random()}: " + "owl " * words
            body = {"model": "m", "prompt": text, "max_tokens": tokens, "ignore_eos": True, "stream": True}
            headers = {"Authorization": f"Bearer {keys[tier]}"} if keys else {}
            times = [time.monotonic()]
            async with session.post("/v1/completions", json=body, headers=headers) as reply:
                async for line in reply.content:
                    if line.startswith(b"data: {"):
                        times.append(time.monotonic())
            return times

        async def crowd_member() -> None:
            nonlocal crowd
            while not done:
                long = chance.random() < 0.2
                times = await one("best-effort", 900 if long else 20, 40)
                crowd += len(times) - 1

        members = [asyncio.create_task(crowd_member()) for _ in range(8)]
        began = time.monotonic()
        await asyncio.sleep(5)
        for _ in range(premium):
            times = await one("premium", 20, 12)
            ttft.append(times[1] - times[0])
            ttl += [b - a for a, b in itertools.pairwise(times[1:])]
            await asyncio.sleep(chance.uniform(0.2, 1.0))
        elapsed = time.monotonic() - began
        done = True
        for each in members:
            each.cancel()
        await asyncio.gather(*members, return_exceptions=True)
    return ttft, ttl, crowd / elapsed


@contextmanager
def vllm_serve(model: str) -> Iterator[str]:
    """The URL of vLLM's own server, first come first served, with the same sizes."""
    port = free_port()
    flags = ["--served-model-name=m", "--max-model-len=4096", "--kv-cache-memory-bytes=536870912", "--block-size=32",
             "--max-num-seqs=4", "--max-num-batched-tokens=1024", "--long-prefill-token-threshold=256"]  # fmt: skip
    with Path("/tmp/gateway-vllm-serve.log").open("w") as log:
        process = psutil.Popen([*peer(model, port), *flags], stdout=log, stderr=log)
    try:
        uvloop.run(_healthy(port))
        yield f"http://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(60)


async def _healthy(port: int) -> None:
    async with aiohttp.ClientSession(f"http://127.0.0.1:{port}") as session:
        for _ in range(1200):
            try:
                async with session.get("/health") as reply:
                    if reply.status == 200:
                        return
            except aiohttp.ClientError:
                pass
            await asyncio.sleep(0.1)
    raise SystemExit("vllm serve did not start")


def mixed(model: str, premium: int) -> bool:
    """Print premium's latencies on vLLM's server and on ours."""
    found: dict[str, tuple[list[float], list[float], float]] = {}
    with vllm_serve(model) as url:
        found["vllm serve, fcfs"] = uvloop.run(mixed_round(url, {}, premium))
    with running_host("--served-model-name=m", "--max-model-len=4096", profiles=PROFILES) as host:
        store = KeyStore(host.data / KEYS_FILE)
        keys = {tier: store.create(tier, tier=tier)[1] for tier in ("premium", "best-effort")}
        for name in PROFILES:
            uvloop.run(_apply(host, name))
            found[name] = uvloop.run(mixed_round(host.url, keys, premium))
    for name, (ttft, ttl, crowd) in found.items():
        print(
            f"{name:16} premium TTFT p50 {percentile(ttft, 0.5):.2f} s, p99 {percentile(ttft, 0.99):.2f} s; "
            f"TTL p50 {1000 * percentile(ttl, 0.5):.0f} ms, p99 {1000 * percentile(ttl, 0.99):.0f} ms; "
            f"crowd {crowd:.0f} tokens/s"
        )
    peer_, ours = found["vllm serve, fcfs"], found["checkpoint"]
    for what, number in (("TTFT", 0), ("TTL", 1)):
        ratio = percentile(ours[number], 0.99) / percentile(peer_[number], 0.99)  # type: ignore[type-var,arg-type]
        print(f"premium {what} p99: {ratio:.2f}x of vllm serve")
    return percentile(ours[0], 0.99) < percentile(peer_[0], 0.99)


async def _apply(host: LiveHost, profile: str) -> None:
    client = HostClient(str(host.socket))
    reply = await client.apply_profile(ApplyCommand(profile, who="benchmark"))
    await client.close()
    if not reply.ok:
        raise SystemExit(reply.message)


# Disconnect.


async def disconnects(host: LiveHost, rounds: int) -> dict[str, list[float]]:
    """Seconds from leaving to pages free, by where the request was and whether it streamed."""
    client = HostClient(str(host.socket))
    found: dict[str, list[float]] = {}
    reader = FlightReader((await client.snapshot()).flight[0].path)
    async with aiohttp.ClientSession(host.url) as session:
        for where, words, state in (("prefill", 1500, "prefill"), ("decode", 10, "decode")):
            for stream in (True, False):
                for number in range(rounds):
                    body = {"model": "m", "prompt": f"{number} " + f"{where} " * words, "max_tokens": 500}
                    body |= {"ignore_eos": True, "stream": stream}

                    name = f"{where}-{stream}-{number}"

                    async def ask(body: dict[str, Any] = body, name: str = name) -> None:
                        async with session.post("/v1/completions", json=body, headers={"X-Request-Id": name}) as reply:
                            await reply.read()

                    def there(shown: Snapshot, name: str = name, state: str = state) -> bool:
                        return any(name in row.id and row.state == state and row.pages for row in shown.requests)

                    task = asyncio.create_task(ask())
                    await _until(client, there)
                    left = time.monotonic()
                    task.cancel()
                    while reader.read_pages().used:  # noqa: ASYNC110 - another process frees them
                        await asyncio.sleep(0.002)
                    found.setdefault(f"{where}, {'streaming' if stream else 'whole reply'}", []).append(
                        time.monotonic() - left
                    )
    await client.close()
    return found


async def _until(client: HostClient, wanted: Any) -> Snapshot:
    while not wanted(shown := await client.snapshot()):  # noqa: ASYNC110
        await asyncio.sleep(0.005)
    return shown


def disconnect(rounds: int) -> bool:
    """Print how long pages stay held after their client has left.

    An abort takes effect when the step ends that is being made: steps are kept as short here as a GPU's.
    """
    profiles = {"disconnect": TINY.replace("token_budget = 1024", "token_budget = 64")}
    with running_host("--served-model-name=m", "--max-model-len=4096", profiles=profiles) as host:
        found = uvloop.run(disconnects(host, rounds))
    for name, times in found.items():
        print(f"{name:24} p50 {1000 * statistics.median(times):.0f} ms, at most {1000 * max(times):.0f} ms")
    slowest = max(max(times) for times in found.values())
    ok = slowest <= FREE_S
    print(f"client gone to pages free: at most {1000 * slowest:.0f} ms (limit {1000 * FREE_S:.0f}): ", end="")
    print("ok" if ok else "MISSED")
    return ok


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--part", choices=["overhead", "mixed", "disconnect", "all"], default="all")
    parser.add_argument("--model", help="a model folder; default: the default model")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--premium", type=int, default=40)
    parser.add_argument("--serve", choices=["off", "on"])
    options = parser.parse_args()
    model = options.model or str(small_model("float32"))
    if options.serve:
        uvloop.run(serve(options.serve, model))
        return
    ok = True
    if options.part in ("overhead", "all"):
        ok &= overhead(model, options.rounds, options.requests)
    if options.part in ("mixed", "all"):
        ok &= mixed(model, options.premium)
    if options.part in ("disconnect", "all"):
        ok &= disconnect(options.rounds)
    sys.exit(not ok)


if __name__ == "__main__":
    main()
