"""What sampling eight GPUs once a second costs: CPU time of a process that does nothing else, on a driver library that
answers at once. The real driver's own time comes on top; it waits for the GPU rather than computes.

    python -m benchmarks.telemetry_sampler
"""

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

ROOT = Path(__file__).parents[1]
GPUS = 8
SECONDS = 20
LIMIT = 0.01

_SAMPLE = f"""
import os, time
from engine_host.telemetry.device import DeviceSampler

sampler = DeviceSampler(kind="gpu")
sampler.start()
time.sleep(2)  # The first rounds load the bindings and read what is read seldom.
cpu, wall = time.process_time(), time.monotonic()
time.sleep({SECONDS})
share = (time.process_time() - cpu) / (time.monotonic() - wall)
readings = sampler.readings()
assert all(device.problem is None and device.utilization.value is not None for device in readings), readings
print(len(readings), share, sampler.cost().value)
sampler.stop()
"""


def sampler(out: Callable[[str], None]) -> None:
    """Measure for some twenty seconds and tell the shares of a core."""
    with tempfile.TemporaryDirectory() as folder:
        library = Path(folder) / "libnvidia-ml.so.1"
        source = ROOT / "tests" / "telemetry" / "fake_nvml.c"
        subprocess.run(["cc", "-shared", "-fPIC", "-O1", str(source), "-o", str(library)], check=True)
        for name, without_gpm in (("with GPM (Hopper and later)", False), ("without GPM", True)):
            environment = {"LD_LIBRARY_PATH": folder, "FAKE_NVML_COUNT": str(GPUS), "PYTHONPATH": str(ROOT)}
            inherited = {key: value for key, value in os.environ.items() if key != "CUDA_VISIBLE_DEVICES"}
            if without_gpm:
                environment["FAKE_NVML_GPM"] = "0"
            command = [sys.executable, "-c", _SAMPLE]
            done = subprocess.run(command, env=inherited | environment, check=True, capture_output=True, text=True)
            found, process, thread = done.stdout.split()
            verdict = "below" if float(process) < LIMIT else "NOT below"
            out(
                f"sampler, {found} GPUs at 1 Hz, {name}: the process {float(process):.2%} of a core, {verdict}"
                f" {LIMIT:.0%}; its own account {float(thread):.2%}"
            )


if __name__ == "__main__":
    sampler(print)
