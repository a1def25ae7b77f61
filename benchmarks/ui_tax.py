"""What the screen costs the streams: with the console on Overview against headless, interleaved, on one running host.

    python -m benchmarks.ui_tax --part engine     # the real engine, 8 streams
    python -m benchmarks.ui_tax --part port       # a stub engine, 50 streams of 30 tokens/s

The screen runs on a terminal of its own (120x40) whose output is read and thrown away, as a terminal would draw it.
"""

import argparse
import asyncio
import fcntl
import os
import pty
import signal
import statistics
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from benchmarks.load import StreamTimes, percentile, run_streams
from benchmarks.start import healthy
from tests.support import free_port, small_model

WARM_SCREEN_S = 3.0
"""The screen's own start is not what is measured."""


@contextmanager
def host(part: str, model: str, port: int) -> Iterator[Path]:
    """A running host; yields its socket."""
    runtime = Path(tempfile.mkdtemp(prefix="llmc-"))
    command = (
        [sys.executable, "-m", "console", "serve", "--model", model, "--port", str(port)]
        if part == "engine"
        else [sys.executable, "-m", "benchmarks.stub_host", "--model", model, "--port", str(port)]
    )
    environment = {**os.environ, "XDG_RUNTIME_DIR": str(runtime), "HF_HUB_OFFLINE": "1"}
    with (runtime / "host.log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        try:
            while not healthy(port):
                if process.poll() is not None:
                    raise SystemExit(f"The host did not start: see {runtime}/host.log")
                time.sleep(0.2)
            (socket,) = (runtime / "llmconsole").glob("*/host.sock")
            yield socket
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


@contextmanager
def screen(socket: Path) -> Iterator[None]:
    """The console on Overview, on a pseudo-terminal of 120x40."""
    leader, follower = pty.openpty()
    fcntl.ioctl(follower, termios.TIOCSWINSZ, struct.pack("HHHH", 40, 120, 0, 0))
    environment = {**os.environ, "TERM": "xterm-256color", "COLORTERM": "truecolor"}
    process = subprocess.Popen(
        [sys.executable, "-m", "console.screen", "--socket", str(socket)],
        stdin=follower,
        stdout=follower,
        stderr=follower,
        env=environment,
    )
    os.close(follower)

    def drain() -> None:
        with suppress(OSError):
            while os.read(leader, 65_536):
                pass

    threading.Thread(target=drain, daemon=True).start()
    try:
        time.sleep(WARM_SCREEN_S)
        assert process.poll() is None, "the screen ended"
        yield
    finally:
        process.terminate()
        process.wait(10)
        os.close(leader)


def rate(streams: list[StreamTimes]) -> float:
    """Tokens per second of all streams together, from the first request to the last token."""
    tokens = sum(len(each.tokens) for each in streams)
    return tokens / (max(each.tokens[-1][0] for each in streams) - min(each.sent for each in streams))


def slow_gaps(streams: list[StreamTimes]) -> float:
    """TTL p99 over all streams, in seconds."""
    return percentile([gap for each in streams for gap in each.gaps], 0.99)


def delays(streams: list[StreamTimes]) -> float:
    """Delivery delay p99, in seconds: from the stub emitting a token to its arrival here."""
    return percentile([at - float(text) for each in streams for at, text in each.tokens], 0.99)


def main() -> None:
    """Print each round, the medians and their ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the default model")
    parser.add_argument("--part", choices=["engine", "port"], default="engine")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--tokens", type=int, default=200)
    options = parser.parse_args()
    model = str(options.model or small_model("bfloat16"))
    port = free_port()
    count = 8 if options.part == "engine" else 50
    slow, name = (slow_gaps, "TTL p99") if options.part == "engine" else (delays, "delivery p99")
    found: dict[bool, list[tuple[float, float]]] = {False: [], True: []}

    def measure(shown: bool, number: int) -> None:
        streams = asyncio.run(run_streams(port, count, options.tokens))
        result = rate(streams), slow(streams)
        found[shown].append(result)
        what = "overview" if shown else "headless"
        print(f"round {number + 1}  {what}  {result[0]:7.1f} tok/s   {name} {result[1] * 1000:7.2f} ms", flush=True)

    with host(options.part, model, port) as socket:
        asyncio.run(run_streams(port, count, 20))
        for number in range(options.rounds):
            # The order changes each round, so that a drift of the machine favours neither.
            for shown in (False, True) if number % 2 == 0 else (True, False):
                if shown:
                    with screen(socket):
                        measure(True, number)
                else:
                    measure(False, number)
    bare, full = ([statistics.median(column) for column in zip(*found[shown], strict=True)] for shown in (False, True))
    print(f"median headless {bare[0]:.1f} tok/s, {name} {bare[1] * 1000:.2f} ms")
    print(f"median overview {full[0]:.1f} tok/s, {name} {full[1] * 1000:.2f} ms")
    print(f"ratio  {full[0] / bare[0]:.3f}x tok/s, {full[1] / bare[1]:.2f}x {name}")


if __name__ == "__main__":
    main()
