"""How long from the command to a ready engine, ours against `vllm serve`, interleaved in one run.

Both start with the same model and the same flags, and are ready when `/health` answers 200. Run it on a calm machine:

    python -m benchmarks.start --rounds 3
"""

import argparse
import os
import signal
import statistics
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from tests.support import free_port, small_model

FLAGS = (
    "--enforce-eager",
    "--kv-cache-memory-bytes=536870912",
    "--block-size=32",
    "--max-num-seqs=16",
    "--max-num-batched-tokens=1024",
)
TIMEOUT_S = 180.0


def ours(model: str, port: int) -> list[str]:
    """The command that starts our host."""
    return [str(Path(sys.executable).with_name("llmconsole")), "serve", "--model", model, "--port", str(port), *FLAGS]


def peer(model: str, port: int) -> list[str]:
    """The command that starts `vllm serve`; as a module, since the CPU package's own command is broken."""
    module = "vllm.entrypoints.openai.api_server"
    return [sys.executable, "-m", module, "--model", model, "--port", str(port), "--host", "127.0.0.1", *FLAGS]


def healthy(port: int) -> bool:
    """Whether `/health` answers 200."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=1) as reply:
            return bool(reply.status == 200)
    except (OSError, urllib.error.URLError):
        return False


def time_start(command: list[str], port: int, log: Path) -> tuple[float, float]:
    """Seconds from the command to ready, and from SIGTERM to the end of the process."""
    with log.open("wb") as out:
        began = time.monotonic()
        process = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL, env=environment())
        while not healthy(port):
            if process.poll() is not None or time.monotonic() - began > TIMEOUT_S:
                process.kill()
                raise SystemExit(f"It did not start: see {log}")
            time.sleep(0.02)
        ready = time.monotonic() - began
        process.send_signal(signal.SIGTERM)
        asked = time.monotonic()
        process.wait(60)
        return ready, time.monotonic() - asked


def environment() -> dict[str, str]:
    """Offline for both, so that neither waits for a hub."""
    return {**os.environ, "HF_HUB_OFFLINE": "1", "VLLM_NO_USAGE_STATS": "1"}


def main() -> None:
    """Print each round and the medians."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the default model")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--logs", type=Path, default=Path("/tmp"))
    options = parser.parse_args()
    model = str(options.model or small_model("bfloat16"))
    found: dict[str, list[float]] = {"llmconsole": [], "vllm serve": []}
    for number in range(options.rounds):
        for name, command in (("llmconsole", ours), ("vllm serve", peer)):
            port = free_port()
            log = options.logs / f"start-{name.replace(' ', '-')}-{number}.log"
            ready, down = time_start(command(model, port), port, log)
            found[name].append(ready)
            print(f"round {number + 1}  {name:<11} ready {ready:6.2f} s   shutdown {down:5.2f} s", flush=True)
    mine, theirs = (statistics.median(found[name]) for name in ("llmconsole", "vllm serve"))
    print(f"median      llmconsole {mine:.2f} s, vllm serve {theirs:.2f} s: {mine / theirs:.2f}x")


if __name__ == "__main__":
    main()
