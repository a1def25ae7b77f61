"""Runs a `DeviceSampler` in a process whose `libnvidia-ml.so.1` is the fake one, and answers a test line by line."""

import ctypes
import json
import sys

import msgspec

from engine_host.telemetry.device import DeviceSampler


def main() -> None:
    """Each line of input is [command, argument]; each line of output the answer."""
    now = 0.0
    options = json.loads(sys.argv[1])
    sampler = DeviceSampler(interval_s=0.001, clock=lambda: now, **options)
    for line in sys.stdin:
        command, argument = json.loads(line)
        answer: object = None
        if command == "sample":
            sampler.sample()
            answer = sampler.reading()
        elif command == "reading":
            answer = sampler.reading()
        elif command == "start":
            sampler.start()
        elif command == "advance":
            now += argument
        elif command == "calls":
            answer = ctypes.CDLL("libnvidia-ml.so.1").fakeCalls(argument.encode())
        sys.stdout.write(msgspec.json.encode(answer).decode() + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main()
