"""What a streamed token costs on our port and on vLLM's own server, over the same stub engine.

    python -m benchmarks.port [--model FOLDER] [--streams 64] [--tokens 500] [--rounds 5]

Both servers run all the time; rounds alternate between them, so that a noisy machine is noisy for both. In a round,
`--streams` chat streams run at once, one token of each at every wake-up, as fast as the server can. CPU is the server
process's own (user + system), and holds the stub engine's share, which is the same on both sides.
"""

import argparse
import asyncio
import json
import signal
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from typing import Any

import psutil
import uvloop

from profiles.schema import Profile

BODY = {"messages": [{"role": "user", "content": "Count."}], "stream": True, "ignore_eos": True}
TARGET = 0.4
"""CPU per token on our port over CPU per token on vLLM's: the most it may be."""


@dataclass
class Server:
    """One server process; `costs` in CPU milliseconds a token, `rates` in tokens a second."""

    name: str
    process: psutil.Popen
    port: int
    costs: list[float]
    rates: list[float]


class Steps:
    """Wakes every waiting stream at once, over and over, as an engine's step does."""

    def __init__(self) -> None:
        self._next: asyncio.Future[None] | None = None
        self._task: asyncio.Task[None] | None = None

    async def __call__(self) -> None:
        loop = asyncio.get_running_loop()
        if self._next is None:
            self._next = loop.create_future()
            self._task = loop.create_task(self._wake())
        await self._next

    async def _wake(self) -> None:
        await asyncio.sleep(0)
        waiting, self._next = self._next, None
        assert waiting is not None
        waiting.set_result(None)


async def serve(kind: str, model: str) -> None:
    """Serve the stub engine on a free port, printed as `port N`, until SIGTERM."""
    from engine_host.engine.serve_args import parse_serve_args
    from engine_host.engine.stub import StubEngine

    args = parse_serve_args(model, ["--disable-uvicorn-access-log"], {"max_model_len": 2048})
    engine = StubEngine(args, pace=Steps())
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    if kind == "ours":
        await _serve_ours(engine, args, stop)
    else:
        await _serve_vllm(engine, args, stop)


async def _serve_ours(engine: Any, args: argparse.Namespace, stop: asyncio.Event) -> None:
    from engine_host.engine.serving import build_serving

    await serve_on_port(await build_serving(engine, args), Profile.model_validate({"name": "benchmark"}), stop)


async def serve_on_port(serving: Any, profile: Profile, stop: asyncio.Event, **options: Any) -> None:
    """Serve on a free port, printed as `port N`, until `stop`; `options` are those of `make_app`."""
    from engine_host.api.types import EngineState
    from engine_host.port.app import make_app
    from engine_host.port.server import start_site
    from engine_host.port.stream import OpenStreams

    class Host:
        streams = OpenStreams()

        def rules(self) -> Profile:
            return profile

        def sessions(self) -> None:
            return None

        async def admission(self) -> None:
            return None

        def engine_state(self) -> EngineState:
            return EngineState("ready", 0.0)

        def serving(self) -> Any:
            return serving

        def retry_after_s(self) -> int:
            return 1

        async def metrics_text(self) -> bytes:
            return b""

        async def check_health(self) -> str | None:
            return None

    site = await start_site(make_app(Host(), **options), "127.0.0.1", 0)
    print("port", site.port, flush=True)
    await stop.wait()


async def _serve_vllm(engine: Any, args: argparse.Namespace, stop: asyncio.Event) -> None:
    import uvicorn
    from vllm.entrypoints.launchers.api_server.app_state import init_app_state
    from vllm.entrypoints.launchers.app import build_app

    tasks = await engine.get_supported_tasks()
    app = build_app(args, tasks, engine.model_config)
    await init_app_state(engine, app.state, args, tasks)
    # As vLLM's launcher configures it; the loop is already uvloop.
    config = uvicorn.Config(app, port=0, log_level="warning", access_log=False, lifespan="off", http="httptools")
    server = uvicorn.Server(config)
    task = asyncio.create_task(server.serve())
    while not server.started:  # noqa: ASYNC110 - uvicorn has no event for it
        await asyncio.sleep(0.01)
    print("port", server.servers[0].sockets[0].getsockname()[1], flush=True)
    await stop.wait()
    server.should_exit = True
    await task


async def one_stream(port: int, body: bytes) -> int:
    """Run one stream to its end; returns its number of text chunks."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=2**20)
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        b"Connection: close\r\nContent-Length: %d\r\n\r\n%b" % (len(body), body)
    )
    count = 0
    tail = b""
    while data := await reader.read(2**18):
        data = tail + data
        count += data.count(b'"delta":{"content":')
        # A needle cut in two is found with the next piece; one that was counted is not kept.
        cut = max(data.rfind(b"\n"), 0)
        tail = data[cut:] if b'"delta":{"content":' not in data[cut:] else b""
    writer.close()
    return count


async def measure(server: Server, streams: int, tokens: int) -> None:
    """One round on one server."""
    body = json.dumps({**BODY, "max_tokens": tokens}).encode()
    before, started = server.process.cpu_times(), time.perf_counter()
    counts = await asyncio.gather(*(one_stream(server.port, body) for _ in range(streams)))
    elapsed, after = time.perf_counter() - started, server.process.cpu_times()
    if sum(counts) < 0.99 * streams * tokens:
        raise SystemExit(f"{server.name} sent {sum(counts)} tokens of {streams * tokens}")
    cpu = (after.user - before.user) + (after.system - before.system)
    server.costs.append(cpu * 1000 / (streams * tokens))
    server.rates.append(streams * tokens / elapsed)


def start(kind: str, model: str) -> Server:
    """Start a server process and wait until it listens."""
    command = [sys.executable, "-m", "benchmarks.port", "--model", model, "--serve", kind]
    process = psutil.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    for line in process.stdout:
        if line.startswith("port "):
            return Server(kind, process, int(line.split()[1]), [], [])
    raise SystemExit(f"the server {kind!r} did not start: run {' '.join(command)}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", help="a model folder; default: the default model")
    parser.add_argument("--streams", type=int, default=64)
    parser.add_argument("--tokens", type=int, default=500)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--serve", choices=["ours", "vllm"])
    options = parser.parse_args()
    if options.model is None:
        from tests.support import small_model

        options.model = str(small_model("float32"))
    if options.serve:
        uvloop.run(serve(options.serve, options.model))
        return
    servers = []
    try:
        for kind in ("vllm", "ours"):
            servers.append(start(kind, options.model))
        for server in servers:
            uvloop.run(measure(server, options.streams, options.tokens))
            server.costs.clear()
            server.rates.clear()
        for _ in range(options.rounds):
            for server in servers:
                uvloop.run(measure(server, options.streams, options.tokens))
    finally:
        for server in servers:
            server.process.terminate()
            server.process.wait(20)
    for server in servers:
        cost, rate = statistics.median(server.costs), statistics.median(server.rates)
        spread = f"{min(server.costs):.4f}-{max(server.costs):.4f}"
        print(f"{server.name:5} {cost:.4f} CPU-ms a token ({spread}), {rate:,.0f} tokens/s")
    ratio = statistics.median(ours / theirs for theirs, ours in zip(servers[0].costs, servers[1].costs, strict=True))
    print(f"ours costs {ratio:.2f}x of vllm (at most {TARGET}x): {'ok' if ratio <= TARGET else 'MISSED'}")
    sys.exit(ratio > TARGET)


if __name__ == "__main__":
    main()
