"""What all telemetry together costs the streams: tokens per second against a host that measures nothing, interleaved.

    python -m benchmarks.telemetry_tax

Both run the real engine on this machine, side by side, and one of them at a time is asked.
"""

import argparse
import asyncio
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.load import run_streams
from benchmarks.start import healthy
from benchmarks.ui_tax import rate, slow_gaps
from tests.support import free_port, small_model

AIM = 0.99


@contextmanager
def host(module: str, model: str) -> Iterator[int]:
    """`python -m MODULE serve`, with a home of its own; yields its port."""
    port, runtime = free_port(), Path(tempfile.mkdtemp(prefix="llmc-"))
    environment = {
        **os.environ,
        "XDG_RUNTIME_DIR": str(runtime),
        "XDG_DATA_HOME": str(runtime / "data"),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", module, "serve", "--model", model, "--port", str(port)]
    with (runtime / "log").open("wb") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, stdin=subprocess.DEVNULL, env=environment)
        try:
            while not healthy(port):
                if process.poll() is not None:
                    raise SystemExit(f"{module} did not start: see {runtime}/log")
                time.sleep(0.2)
            yield port
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def tax(out: Callable[[str], None], model: str, rounds: int = 6, streams: int = 8, tokens: int = 100) -> None:
    """Measure, and tell each round, the medians and their ratio."""
    found: dict[str, list[tuple[float, float]]] = {"bare": [], "full": []}
    with ExitStack() as hosts:
        ports = {
            "bare": hosts.enter_context(host("benchmarks.bare_host", model)),
            "full": hosts.enter_context(host("console", model)),
        }
        for port in ports.values():
            asyncio.run(run_streams(port, streams, 20))
        for number in range(rounds):
            # The order changes each round, so that a drift of the machine favours neither.
            for name in ("bare", "full") if number % 2 == 0 else ("full", "bare"):
                seen = asyncio.run(run_streams(ports[name], streams, tokens))
                found[name].append((rate(seen), slow_gaps(seen)))
            bare, full = found["bare"][-1], found["full"][-1]
            out(f"round {number + 1}  bare {bare[0]:7.2f} tok/s  full {full[0]:7.2f} tok/s  {full[0] / bare[0]:.3f}x")
    (bare_rate, bare_slow), (full_rate, full_slow) = (
        [statistics.median(column) for column in zip(*found[name], strict=True)] for name in ("bare", "full")
    )
    ratio = full_rate / bare_rate
    paired = statistics.median(full[0] / bare[0] for bare, full in zip(found["bare"], found["full"], strict=True))
    verdict = "holds" if ratio >= AIM else "MISSED"
    out(f"all telemetry: {ratio:.3f}x tokens/s ({full_rate:.1f} against {bare_rate:.1f}), aim {AIM}x: {verdict}")
    out(f"               {paired:.3f}x as the median of rounds; TTL p99 {full_slow / bare_slow:.2f}x")


def main() -> None:
    """Print what was found."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the default model")
    parser.add_argument("--rounds", type=int, default=6)
    parser.add_argument("--streams", type=int, default=8)
    parser.add_argument("--tokens", type=int, default=100)
    options = parser.parse_args()
    model = str(options.model or small_model("bfloat16"))
    tax(lambda line: print(line, flush=True), model, options.rounds, options.streams, options.tokens)


if __name__ == "__main__":
    main()
