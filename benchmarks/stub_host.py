"""The whole host with a stub engine in place of vLLM's: 30 tokens a second a stream, each saying when it was emitted.

python -m benchmarks.stub_host --model FOLDER --port 8000
"""

import argparse
import asyncio
import atexit
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from engine_host.building import EngineBuilder
from engine_host.main import run
from engine_host.options import HostOptions
from profiles.schema import Profile

TOKENS_PER_S = 30.0


class Stamped:
    """A delta whose text is the moment it is emitted: after the pause before it, not when the script made it."""

    tokens, index, stop_reason = 1, 0, None

    def __init__(self, finish_reason: str | None) -> None:
        self.finish_reason = finish_reason

    @property
    def text(self) -> str:
        """Monotonic seconds now."""
        return f" {time.monotonic():.6f}"


def _stub_engine(args: Any) -> Any:
    from engine_host.engine.stub import StubEngine

    def stamped(_: list[int], params: Any) -> Iterable[Any]:
        for number in range(params.max_tokens):
            yield Stamped("length" if number + 1 == params.max_tokens else None)

    class Engine(StubEngine):
        errored = False

        def shutdown(self, timeout: float | None = None) -> None:
            pass

    async def pace() -> None:
        # All streams share the beat of a scheduler step, as they do in an engine.
        await asyncio.sleep(1 / TOKENS_PER_S - time.monotonic() % (1 / TOKENS_PER_S))

    return Engine(args, stamped, pace)


def _build(self: EngineBuilder, profile: Profile, path: Path, flight_path: Path) -> tuple[Any, Any]:
    from engine_host.engine.serve_args import parse_serve_args

    args = parse_serve_args(str(path), self._options.serve_args, profile.engine_arguments(self.device))
    # As in an engine, the record is written by another process.
    writer = subprocess.Popen([sys.executable, "-m", "benchmarks.stub_flight", str(flight_path)])
    atexit.register(writer.kill)
    engine = _stub_engine(args)
    while not flight_path.exists():
        time.sleep(0.01)
    return engine, args


def main() -> int:
    """Run until told to quit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True)
    parser.add_argument("--port", type=int, required=True)
    options = parser.parse_args()
    EngineBuilder._build = _build  # type: ignore[method-assign]
    return run(HostOptions(model=options.model, port=options.port), None)


if __name__ == "__main__":
    sys.exit(main())
