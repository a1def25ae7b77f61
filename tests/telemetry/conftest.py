"""A GPU made of text files: the real bindings on a fake driver library, in a process of its own."""

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import pytest

from engine_host.api.types import Device, Reading

HERE = Path(__file__).parent


class FakeGpu:
    """Tells the fake driver what to answer, and asks the sampler in the child what it makes of it."""

    def __init__(self, folder: Path, library: Path | None, visible_devices: str | None, **options: object) -> None:
        self._control = folder / "control"
        self._told: dict[str, float] = {}
        self.tell()
        self._pipes = 0
        self._library = folder / "libnvidia-ml.so.1"
        if library is None:
            # An empty file is found before any real driver's library, and can't be loaded.
            self._library.touch()
        else:
            self.install(library)
        environment = {
            "FAKE_NVML_CONTROL": str(self._control),
            "LD_LIBRARY_PATH": str(folder),
            "PYTHONPATH": str(HERE.parents[1]),
        }
        inherited = {name: value for name, value in os.environ.items() if name != "CUDA_VISIBLE_DEVICES"}
        if visible_devices is not None:
            environment["CUDA_VISIBLE_DEVICES"] = visible_devices
        self._child = subprocess.Popen(
            [sys.executable, str(HERE / "fake_nvml_child.py"), json.dumps(options)],
            env=inherited | environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def install(self, library: Path) -> None:
        """Put the driver's library where the loader looks."""
        self._library.unlink(missing_ok=True)
        self._library.symlink_to(library)

    def tell(self, **settings: float) -> None:
        """Change answers of the fake driver, from its next call on."""
        self._told |= settings
        beside = self._control.with_suffix(".new")
        beside.write_text("".join(f"{key} {value}\n" for key, value in self._told.items()))
        beside.replace(self._control)

    def sample(self) -> Device:
        """Let the sampler read the device once."""
        return msgspec.convert(self._ask("sample"), Device)

    def sample_all(self) -> tuple[Device, ...]:
        """The same, of all devices."""
        self._ask("sample")
        return msgspec.convert(self._ask("readings"), tuple[Device, ...])

    def reading(self) -> Device:
        """What the sampler says now, without reading."""
        return msgspec.convert(self._ask("reading"), Device)

    def watts(self, devices: int | None = None) -> float | None:
        """The power of all devices, or of the first so many."""
        answer = self._ask("watts", devices)
        return None if answer is None else float(answer)

    def cost(self) -> Reading:
        """What sampling costs."""
        return msgspec.convert(self._ask("cost"), Reading)

    def wait_for_an_answer(self) -> Device:
        """Wait until a reading is fresh again."""
        return msgspec.convert(self._ask("fresh"), Device)

    def threads(self) -> int:
        """How many of the sampler's threads there are."""
        return int(self._ask("threads"))

    def wait_for_threads(self, count: int) -> None:
        """Wait until there are so many."""
        self._ask("wait_for_threads", count)

    def start(self) -> None:
        """Let the sampler read on its own thread."""
        self._ask("start")

    def advance(self, seconds: float) -> None:
        """Move the sampler's clock."""
        self._ask("advance", seconds)

    def calls(self, function: str) -> int:
        """How often the driver's function was called."""
        return int(self._ask("calls", function))

    def hang(self, function: str) -> None:
        """Let every later call of a function wait for a `while_hanging` block to end."""
        self._pipes += 1
        # A pipe for each call: a second writer of the same one could still meet the reader of the first.
        os.mkfifo(self._control.with_suffix(f".{self._pipes}"))
        self.tell(**{f"hang.{function}": self._pipes})

    @contextmanager
    def while_hanging(self, function: str) -> Iterator[None]:
        """Wait for a call of the function to hang; that call goes on at the end of the block, the next one hangs."""
        with self._control.with_suffix(f".{self._pipes}").open("w"):
            yield
            self.hang(function)

    def close(self) -> None:
        """End the child."""
        self._child.kill()
        self._child.communicate()

    def _ask(self, command: str, argument: object = None) -> Any:
        assert self._child.stdin is not None
        assert self._child.stdout is not None
        self._child.stdin.write(json.dumps([command, argument]) + "\n")
        self._child.stdin.flush()
        return json.loads(self._child.stdout.readline())


@pytest.fixture(scope="session")
def nvml_library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The fake driver library, compiled."""
    target = tmp_path_factory.mktemp("nvml") / "fake.so"
    command = ["cc", "-shared", "-fPIC", "-O1", "-Wall", "-Werror", str(HERE / "fake_nvml.c"), "-o", str(target)]
    subprocess.run(command, check=True)
    return target


MakeGpu = Callable[..., FakeGpu]


@pytest.fixture
def make_gpu(tmp_path: Path, nvml_library: Path) -> Iterator[MakeGpu]:
    """Makes the test's GPU; `installed=False` leaves the driver library out, the rest goes to `DeviceSampler`."""
    made: list[FakeGpu] = []

    def make(installed: bool = True, visible_devices: str | None = None, **options: object) -> FakeGpu:
        made.append(FakeGpu(tmp_path, nvml_library if installed else None, visible_devices, **options))
        return made[-1]

    yield make
    for gpu in made:
        gpu.close()


@pytest.fixture
def gpu(make_gpu: MakeGpu) -> FakeGpu:
    """A whole, healthy GPU."""
    return make_gpu()
