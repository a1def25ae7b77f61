"""What the flight record costs the engine: snapshots of the page map, and the rest of a step.

vLLM's scheduler runs bare (no model, outputs made up) with 256 decoding requests that hold most of the blocks. What the
recorder adds to a step is the time spent in its own calls: classification, the ring, and deciding on snapshots. Run it
on a calm machine:

    python -m benchmarks.flight_record
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from benchmarks.bare_scheduler import PAGE_TOKENS, bare_config, bare_scheduler, prompt, request, step
from engine_host.engine.recorder import FlightRecorder
from engine_host.engine.scheduler import RecordingScheduler
from engine_host.flight.budget import SHARE

POOLS = (1_000, 10_000, 100_000)
REQUESTS = 256
FILL = 0.8
MAX_STEP_S = 30e-6


class Meter:
    """Seconds spent in the recorder, by step: snapshots, and everything else."""

    def __init__(self) -> None:
        self.snapshots: list[float] = []
        self.rest: list[float] = []
        self._guard, self._snapshot = FlightRecorder.guard, FlightRecorder._snapshot
        self._spent = self._in_snapshot = 0.0

    def install(self) -> None:
        """Measure every recorder from now on."""
        FlightRecorder.guard = lambda *args: self._timed_guard(*args)  # type: ignore[method-assign]
        FlightRecorder._snapshot = lambda recorder: self._timed_snapshot(recorder)  # type: ignore[method-assign, assignment]

    def remove(self) -> None:
        """Measure no more."""
        FlightRecorder.guard, FlightRecorder._snapshot = self._guard, self._snapshot  # type: ignore[method-assign]

    def end_step(self) -> None:
        """What was spent since the step before belongs to this one."""
        self.rest.append(self._spent)
        self._spent = 0.0

    def _timed_guard(self, recorder: FlightRecorder, action: Callable[..., None], *args: Any) -> None:
        self._in_snapshot = 0.0
        began = time.perf_counter()
        self._guard(recorder, action, *args)
        self._spent += time.perf_counter() - began - self._in_snapshot

    def _timed_snapshot(self, recorder: FlightRecorder) -> None:
        began = time.perf_counter()
        self._snapshot(recorder)
        self._in_snapshot = time.perf_counter() - began
        self.snapshots.append(self._in_snapshot)


def filled(folder: Path, blocks: int) -> Any:
    """A recorded scheduler with `REQUESTS` decoding requests that hold `FILL` of its blocks."""
    tokens = max(int(blocks * FILL) * PAGE_TOKENS // REQUESTS - PAGE_TOKENS, 1)
    config = bare_config(folder, max_model_len=32_768, max_num_batched_tokens=16_384, max_num_seqs=REQUESTS)
    config.additional_config = {
        "llmconsole": {"flight_path": str(folder / "flight"), "engine_id": 0, "snapshot_hz": 10}
    }
    scheduler = bare_scheduler(RecordingScheduler, config, blocks)
    for number in range(REQUESTS):
        scheduler.add_request(request(f"chatcmpl-{number:032d}-01234567", prompt(tokens, number), 10_000))
    while any(each.is_prefill_chunk or not each.num_output_tokens for each in scheduler.requests.values()):
        step(scheduler)
    return scheduler


def measure(blocks: int, seconds: float) -> bool:
    """Print a line for a pool of `blocks` blocks; whether it keeps within the limits."""
    meter = Meter()
    with tempfile.TemporaryDirectory() as folder:
        scheduler = filled(Path(folder), blocks)
        # First spend what was saved up while filling: it's the share over time that counts.
        while scheduler._recorder._budget.wait(time.monotonic()) == 0:
            scheduler._recorder._snapshot()
        meter.install()
        began = time.monotonic()
        while time.monotonic() - began < seconds:
            step(scheduler)
            meter.end_step()
        elapsed = time.monotonic() - began
        meter.remove()
        scheduler.shutdown()
    share = sum(meter.snapshots) / elapsed
    # The median: on a shared machine the mean holds what others took of the core.
    rest, mean = statistics.median(meter.rest), statistics.fmean(meter.rest)
    within = share <= SHARE and rest <= MAX_STEP_S
    verdict = "ok" if within else "OVER"
    print(
        f"{blocks:>8} {statistics.median(meter.snapshots) * 1e3:>9.2f} ms {len(meter.snapshots) / elapsed:>7.1f} /s "
        f"{share:>10.2%} {rest * 1e6:>9.1f} µs {mean * 1e6:>9.1f} µs {len(meter.rest):>7}  {verdict}",
        flush=True,
    )
    return within


def main() -> int:
    """0 if every pool keeps within the limits."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=float, default=20.0, help="how long each pool runs")
    options = parser.parse_args()
    print(f"{REQUESTS} decoding requests on {FILL:.0%} of the blocks.")
    print(f"Limits: snapshots {SHARE:.0%} of a core, the rest {MAX_STEP_S * 1e6:.0f} µs a step (median).")
    print(f"{'blocks':>8} {'snapshot':>12} {'taken':>10} {'of a core':>10} {'step adds':>12} {'mean':>12} {'steps':>7}")
    within = [measure(blocks, options.seconds) for blocks in POOLS]
    return 0 if all(within) else 1


if __name__ == "__main__":
    sys.exit(main())
