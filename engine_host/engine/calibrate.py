"""Measures what this device can do at most: dense matrix products and copies of memory. A program of its own.

Nothing else should use the device meanwhile. The figures are what PyTorch reaches, which is a little below a data
sheet's and what an engine can hope for.
"""

import argparse
import json
import sys
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path

import torch

from engine_host.telemetry.cpu import cpu_name
from engine_host.telemetry.peaks import PEAKS_FILE, save_calibration

DTYPES = (torch.bfloat16, torch.float16, torch.float32)

SECONDS = 1.0
"""Time for each figure: best of as many runs as fit, three at least."""

SMALLEST = 256
LARGEST = {"cpu": 4096, "cuda": 16384}
"""Rows and columns of the square matrices: they double from the smallest while one product takes less than `ENOUGH_S`,
since small ones keep the device from its peak and a slow data type would take minutes for large ones."""

ENOUGH_S = 0.02

COPY_BYTES = 1 << 30
"""Far above any cache: the largest of GPUs hold 126 MB (B200), those of servers' CPUs a few hundred."""

_MIN_RUNS = 3


def matmul_flops(device: str, dtype: torch.dtype, largest: int, seconds: float = SECONDS) -> float:
    """Dense FLOP/s of a square matrix product; a product of n×n matrices counts 2n³. TF32 is off, PyTorch's default.

    Raises `RuntimeError` where the device can't multiply in the data type.
    """
    size = min(SMALLEST, largest)
    while True:
        left = torch.randn(size, size, device=device, dtype=torch.float32).to(dtype)
        product = torch.empty_like(left)

        def multiply(left: torch.Tensor = left, product: torch.Tensor = product) -> None:
            torch.mm(left, left, out=product)

        if size >= largest or _best(device, multiply, 0.0) >= ENOUGH_S:
            return 2 * size**3 / _best(device, multiply, seconds)
        size = min(size * 2, largest)


def copy_bandwidth(device: str, size: int = COPY_BYTES, seconds: float = SECONDS) -> float:
    """Bytes read plus bytes written per second, copying `size` bytes within the device's memory."""
    source = torch.ones(size, device=device, dtype=torch.uint8)
    target = torch.empty_like(source)
    return 2 * size / _best(device, lambda: target.copy_(source), seconds)


def calibrate(
    device: str, largest: int | None = None, copy_bytes: int = COPY_BYTES, seconds: float = SECONDS
) -> dict[str, float]:
    """FLOP/s by data type, without those that the device can't do, and bytes/s as "bandwidth"."""
    measured = {}
    for dtype in DTYPES:
        try:
            flops = matmul_flops(device, dtype, largest or LARGEST[device], seconds)
        except (RuntimeError, NotImplementedError):
            continue
        measured[str(dtype).removeprefix("torch.")] = flops
    measured["bandwidth"] = copy_bandwidth(device, copy_bytes, seconds)
    return measured


def device_name(device: str) -> str:
    """The name that the device's readings have."""
    return cpu_name() if device == "cpu" else torch.cuda.get_device_name()


def _best(device: str, run: Callable[[], object], seconds: float) -> float:
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    run()  # The first run loads kernels and touches memory.
    wait()
    best, runs, end = float("inf"), 0, time.perf_counter() + seconds
    while runs < _MIN_RUNS or time.perf_counter() < end:
        begun = time.perf_counter()
        run()
        wait()
        best = min(best, time.perf_counter() - begun)
        runs += 1
    return best


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, keep it in the folder given, and print it as one JSON object; 1 and a sentence if that can't be done."""
    parser = argparse.ArgumentParser(prog="calibrate")
    parser.add_argument("folder", type=Path)
    parser.add_argument("--device", choices=("cpu", "cuda"))
    parser.add_argument("--largest", type=int)
    parser.add_argument("--copy-bytes", type=int, default=COPY_BYTES)
    parser.add_argument("--seconds", type=float, default=SECONDS)
    given = parser.parse_args(arguments)
    file = given.folder / PEAKS_FILE
    device = given.device or ("cuda" if torch.cuda.is_available() else "cpu")
    try:
        name = device_name(device)
        measured = calibrate(device, given.largest, given.copy_bytes, given.seconds)
        save_calibration(file, name, {**measured, "measured": datetime.now(UTC).date().isoformat()})
    except (RuntimeError, AssertionError) as error:  # Out of memory, or PyTorch without this device.
        sys.stderr.write(f"The device can't be measured: {str(error).splitlines()[0]}\n")
        return 1
    except (OSError, ValueError) as error:
        sys.stderr.write(f"The figures can't be kept: {error}\n")
        return 1
    sys.stdout.write(json.dumps({"device": name, "file": str(file), **measured}) + "\n")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
