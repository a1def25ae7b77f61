"""Runs a `DeviceSampler` in a process whose `libnvidia-ml.so.1` is the fake one, and answers a test line by line."""

import ctypes
import json
import sys
import threading
import time

import msgspec

from engine_host.telemetry.device import DeviceSampler


def threads() -> list[threading.Thread]:
    """The sampler's threads, those that are held by the driver among them."""
    return [thread for thread in threading.enumerate() if thread.name == "device-sampler"]


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
        elif command == "readings":
            answer = sampler.readings()
        elif command == "watts":
            answer = sampler.watts(argument)
        elif command == "cost":
            answer = sampler.cost()
        elif command == "fresh":
            while sampler.reading().memory_used.value is None:
                time.sleep(0.001)
            answer = sampler.reading()
        elif command == "threads":
            answer = len(threads())
        elif command == "wait_for_threads":
            while len(threads()) != argument:
                time.sleep(0.001)
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
