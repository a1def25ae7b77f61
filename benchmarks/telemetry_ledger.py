"""What the ledger costs who hands rows over, and how long a row is on its way to the disk.

    python -m benchmarks.telemetry_ledger

500 requests a second for 10 s into a real file in the temporary folder. No row may be lost.
"""

import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path

import msgspec
import psutil

from benchmarks.load import percentile
from engine_host.api.records import RequestCost, RequestRecord
from engine_host.ledger.file import LEDGER_FILE
from engine_host.ledger.ledger import Ledger
from profiles.schema import Ledger as Rules

ROWS_PER_S = 500
SECONDS = 10

ON_DISK_S = 1.0
"""A row must be on the disk this long after it was handed over."""

REQUEST = RequestRecord(
    id="",
    time=0.0,
    model="SmolLM2-135M-Instruct",
    profile="default",
    tier="standard",
    key="k3x9w2ab",
    lane="interactive",
    path="/v1/chat/completions",
    prompt_tokens=812,
    cached_tokens=512,
    output_tokens=240,
    sequences=1,
    finish_reason="stop",
    error=None,
    guard_s=0.0012,
    queue_s=0.0031,
    prefill_s=0.0421,
    first_decode_s=0.0083,
    delivery_s=0.0004,
    ttft_s=0.0551,
    tpot_s=0.0112,
    ttl_p50_s=0.0109,
    ttl_p99_s=0.0244,
    total_s=2.74,
    pages_peak=66,
    steps=241,
    first_step=100_000,
    last_step=100_240,
    cost=RequestCost(0.011, 0.084, 0.021, 0.000_012, 0.000_093, 0.000_023, 0.000_008),
)


def ledger(out: Callable[[str], None]) -> None:
    """Tell `out` the rows lost, the caller's time for each, the writer's share of a core, and the last row's delay.

    Raises `SystemExit` where rows are lost or come to the disk too late.
    """
    with tempfile.TemporaryDirectory() as folder:
        rules = Rules()
        book = Ledger(Path(folder) / LEDGER_FILE, lambda: rules, out)
        book.start()
        began = time.monotonic()
        spent = []
        for number in range(ROWS_PER_S * SECONDS):
            time.sleep(max(began + number / ROWS_PER_S - time.monotonic(), 0.0))
            record = msgspec.structs.replace(REQUEST, id=f"req-{number}", time=time.time())
            start = time.perf_counter()
            book.request(record)
            spent.append(time.perf_counter() - start)
        last = time.monotonic()
        while book.status().waiting:
            time.sleep(0.005)
        delay = time.monotonic() - last
        cpu = _cpu_of("ledger") / (time.monotonic() - began)
        book.close()
        status, size = book.status(), (Path(folder) / LEDGER_FILE).stat().st_size
    rows = ROWS_PER_S * SECONDS
    out(f"{rows} rows at {ROWS_PER_S} a second: {status.written} written, {status.lost} lost")
    out(f"file: {size / rows:.0f} bytes a row")
    out(f"caller's time per row: p50 {percentile(spent, 0.5) * 1e6:.1f} µs, p99 {percentile(spent, 0.99) * 1e6:.1f} µs")
    out(f"writer: {cpu:.1%} of a core")
    out(f"last row on the disk after {delay * 1e3:.0f} ms")
    if status.written != rows or delay > ON_DISK_S:
        raise SystemExit(f"The ledger must lose nothing and write within {ON_DISK_S:g} s.")


def _cpu_of(name: str) -> float:
    """CPU seconds of the thread of that name."""
    thread = next(each for each in threading.enumerate() if each.name == name)
    times = next(each for each in psutil.Process().threads() if each.id == thread.native_id)
    return float(times.user_time + times.system_time)


if __name__ == "__main__":
    ledger(print)
