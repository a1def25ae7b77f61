"""The sampler itself, on a machine without a GPU."""

import threading

import pytest

from engine_host.telemetry import device
from engine_host.telemetry.device import DeviceSampler


def test_the_sampler_outlives_a_system_that_answers_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OSError(24, "Too many open files")

    sampler = DeviceSampler(kind="cpu")
    with monkeypatch.context() as broken:
        broken.setattr(device, "process_tree_memory", fail)
        broken.setattr("engine_host.telemetry.cpu.memory", fail)
        sampler.sample()
        assert sampler.reading().problem == "Reading the device failed: [Errno 24] Too many open files"
        assert sampler.process_memory() is None
    sampler.sample()
    assert sampler.reading().problem is None


def test_a_stopped_sampler_ends_its_thread() -> None:
    sampler = DeviceSampler(kind="cpu")
    before = set(threading.enumerate())
    sampler.start()
    (thread,) = set(threading.enumerate()) - before
    sampler.stop()
    thread.join(timeout=60)
    assert not thread.is_alive()


def test_a_cpu_has_no_power_to_add_up() -> None:
    sampler = DeviceSampler(kind="cpu")
    sampler.sample()
    assert sampler.watts() is None
    assert len(sampler.readings()) == 1
