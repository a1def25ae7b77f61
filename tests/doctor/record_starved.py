"""Makes the trace of a starved host anew: `python -m tests.doctor.record_starved FOLDER`.

vLLM's scheduler runs alone, on the true clock. What stands for the model takes 10 ms a step, and after every second one
nobody calls the scheduler for 20 ms, as when its process gets no processor.
"""

import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.bare_scheduler import bare_config, bare_scheduler, produce, prompt, request
from engine_host.api.flight import FlightReader
from engine_host.doctor.record import Processor, Record, save
from engine_host.engine.scheduler import RecordingScheduler
from tests.doctor.recorded import trace


def main(folder: Path) -> None:
    """One record of 60 steps."""
    with tempfile.TemporaryDirectory() as runtime:
        config = bare_config(Path(runtime))
        path = f"{runtime}/flight"
        config.additional_config = {"llmconsole": {"flight_path": path, "engine_id": 0, "snapshot_hz": 10}}
        scheduler: Any = bare_scheduler(RecordingScheduler, config, 65)
        scheduler.add_request(request("r-0123abcd", prompt(40, 1), 60))
        while scheduler.has_requests():
            output = scheduler.schedule()
            time.sleep(0.01)
            scheduler.update_from_output(output, produce(scheduler, output))
            if len(FlightReader(path).read_steps()) % 2:
                time.sleep(0.02)
        reader, now, healthy = FlightReader(path), time.time(), trace("healthy")
        record = Record(
            time=now,
            offset=now - time.monotonic(),
            steps=reader.read_steps().rows,
            shares=reader.read_shares().rows,
            names={},
            profile=healthy.profile,
            snapshot=healthy.snapshot,
            processor=Processor(2, 7.5, 0.01),
        )
    save(record, folder / "host-starved.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
