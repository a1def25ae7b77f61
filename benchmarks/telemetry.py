"""What telemetry costs: the streams, the sampler on eight GPUs, the ledger at 500 requests a second.

python -m benchmarks.telemetry                  # all parts
python -m benchmarks.telemetry --part sampler
"""

import argparse
from pathlib import Path

from benchmarks.telemetry_ledger import ledger
from benchmarks.telemetry_sampler import sampler
from benchmarks.telemetry_tax import tax
from tests.support import small_model


def main() -> None:
    """Print each part's figures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", type=Path, help="a model folder; default: the default model")
    parser.add_argument("--part", choices=["tax", "sampler", "ledger"])
    parser.add_argument("--rounds", type=int, default=6)
    options = parser.parse_args()

    def out(line: str) -> None:
        print(line, flush=True)

    if options.part in (None, "sampler"):
        sampler(out)
    if options.part in (None, "ledger"):
        ledger(out)
    if options.part in (None, "tax"):
        tax(out, str(options.model or small_model("bfloat16")), options.rounds)


if __name__ == "__main__":
    main()
