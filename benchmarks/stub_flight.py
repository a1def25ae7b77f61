"""A flight record that lives without an engine: steps and pages as an engine under load would write them.

python -m benchmarks.stub_flight PATH
"""

import sys
import time
from pathlib import Path

import numpy as np

from engine_host.flight.writer import FlightWriter

BLOCKS = 8_192
STREAMS = 50
STEPS_PER_S = 30
STEPS_A_SNAPSHOT = 3


def main() -> None:
    """Write until killed."""
    writer = FlightWriter(Path(sys.argv[1]), engine_id=0, blocks=BLOCKS, block_size=16, page_bytes=2**20)
    refs, cached = np.zeros(BLOCKS, np.uint16), np.zeros(BLOCKS, np.uint8)
    held = {f"chatcmpl-{number}-00000000": [1 + number * 64] for number in range(STREAMS)}
    step = 0
    while True:
        began = time.monotonic()
        writer.write_step(began, (0.0002, 0.03, 0.0002), (0, STREAMS), (STREAMS, 0, 0, 0), 2048, STREAMS, 0)
        if step % STEPS_A_SNAPSHOT == 0:
            for number, (name, blocks) in enumerate(held.items()):
                length = 1 + (step // 16 + number) % 48
                held[name] = list(range(blocks[0], blocks[0] + length))
            refs[:], cached[:] = 0, 1
            for blocks in held.values():
                refs[blocks] = 1
            writer.write_pages(refs, cached, list(held.items()), began)
        step += 1
        time.sleep(max(0.0, 1 / STEPS_PER_S - (time.monotonic() - began)))


if __name__ == "__main__":
    main()
