"""Sets the project up in `.venv` from its lock file; quick when there is nothing to do, safe to interrupt.

Runs on any Python 3 far enough to say which one is needed, and needs nothing but the standard library.
"""

from __future__ import annotations

import argparse
import ctypes
import fcntl
import hashlib
import json
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"
STAMP = VENV / ".set-up.json"
# There while packages are being installed: found at the start, it means that an earlier run didn't finish.
UNFINISHED = VENV / ".unfinished"
LOG = VENV / "setup.log"

OLDEST = (3, 11)
TORCH_CPU_INDEX = "https://download.pytorch.org/whl/cpu"
DRIVER_FILE = Path("/proc/driver/nvidia/version")
SMI_TIMEOUT_S = 20
POLL_S = 0.2


class SetupError(Exception):
    """Set-up can't go on; the text says what to do."""


def main() -> int:
    """Set up; 0 when `.venv` is ready."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--device", choices=("auto", "cpu", "cuda"), default="auto")
    wanted = parser.parse_args().device
    try:
        if sys.version_info < OLDEST:
            raise SetupError(
                "llmconsole needs Python {}.{} or newer; {} is {}.{}. Name another: make PYTHON=python3.12".format(
                    *OLDEST, sys.executable, *sys.version_info[:2]
                )
            )
        with Path(__file__).open() as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)  # one set-up at a time
            if not is_ready(wanted):
                set_up(detect_device() if wanted == "auto" else wanted)
    except SetupError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    except KeyboardInterrupt:
        sys.stderr.write("\nInterrupted. The next make setup starts over.\n")
        return 130
    return 0


def is_ready(wanted: str) -> bool:
    """Whether an earlier run finished for the same lock, project, Python and device."""
    try:
        stamp = json.loads(STAMP.read_text())
        device = stamp["device"]
    except (OSError, ValueError, KeyError, TypeError):
        return False
    # Asking the driver can take seconds, so signs of one are enough here.
    right_device = device == wanted or (wanted == "auto" and (device == "cuda") == driver_signs())
    return right_device and not UNFINISHED.exists() and PYTHON.exists() and stamp.get("key") == key_of(device)


def key_of(device: str) -> str:
    """What a finished set-up depends on."""
    digest = hashlib.sha256(f"{ROOT} {sys.version}".encode())
    for file in (lock_file(device), ROOT / "pyproject.toml", Path(__file__)):
        digest.update(file.read_bytes())
    return digest.hexdigest()


def lock_file(device: str) -> Path:
    return ROOT / "locks" / f"{device}.txt"


def driver_signs() -> bool:
    return DRIVER_FILE.exists() or shutil.which("nvidia-smi") is not None


def detect_device() -> str:
    """`cuda` where a working NVIDIA driver is found, else `cpu`."""
    return "cuda" if driver_signs() and (_smi_lists_a_gpu() or _nvml_finds_a_gpu()) else "cpu"


def _smi_lists_a_gpu() -> bool:
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"], capture_output=True, text=True, timeout=SMI_TIMEOUT_S, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return listed.returncode == 0 and "GPU" in listed.stdout


def _nvml_finds_a_gpu() -> bool:
    """The same by the driver's library, for containers that have it without its command."""
    try:
        nvml = ctypes.CDLL("libnvidia-ml.so.1")
        if nvml.nvmlInit_v2() != 0:
            return False
        count = ctypes.c_uint()
        found = nvml.nvmlDeviceGetCount_v2(ctypes.byref(count)) == 0
        nvml.nvmlShutdown()
    except (OSError, AttributeError):
        return False
    return found and count.value > 0


def set_up(device: str) -> None:
    """Install everything into `.venv`; an unfinished or broken one is made anew."""
    found = "NVIDIA driver found" if device == "cuda" else "no NVIDIA driver in use"
    say(f"Setting up llmconsole for {device} ({found}).")
    STAMP.unlink(missing_ok=True)
    if UNFINISHED.exists() or not runs(PYTHON):
        make_venv()
    UNFINISHED.touch()
    LOG.write_text("")
    lock = lock_file(device)
    pins = re.findall(r"^[\w.-]+==\S+", lock.read_text(), re.MULTILINE)
    say(f"Installing {len(pins)} packages; the first time takes a few minutes.")
    install_torch(pins)
    pip(["-r", str(lock)], len(pins), "The packages of the lock file")
    # The build back-end is in the lock, so nothing more is fetched.
    pip(["--no-build-isolation", "-e", str(ROOT)], 1, "llmconsole itself")
    beside = STAMP.with_suffix(".new")
    beside.write_text(json.dumps({"device": device, "key": key_of(device)}))
    beside.replace(STAMP)
    UNFINISHED.unlink()
    say("Set up.")


def make_venv() -> None:
    say(f"Creating {VENV} with Python {sys.version.split()[0]}.")
    made = subprocess.run(
        [sys.executable, "-m", "venv", "--clear", str(VENV)], capture_output=True, text=True, check=False
    )
    if made.returncode != 0 or not runs(PYTHON):
        raise SetupError(
            f"{VENV} can't be created. On Debian and Ubuntu: apt install python3-venv.\n"
            f"{tail(made.stdout + made.stderr)}"
        )


def runs(python: Path) -> bool:
    """Whether `python` is there, runs, has pip, and is new enough."""
    try:
        ran = subprocess.run(
            [str(python), "-c", f"import pip, sys; sys.exit(sys.version_info < {OLDEST})"],
            capture_output=True,
            check=False,
        )
    except OSError:
        return False
    return ran.returncode == 0


def install_torch(pins: list[str]) -> None:
    """First the package that isn't on every index: the CPU build of torch."""
    torch = [pin for pin in pins if pin.startswith("torch==") and pin.endswith("+cpu")]
    if not torch:
        return
    if not pip(torch, 1, torch[0], may_fail=True):
        say(f"The package index in use has no {torch[0]}; taking it from {TORCH_CPU_INDEX}.")
        pip(["--extra-index-url", TORCH_CPU_INDEX, *torch], 1, torch[0])


def pip(arguments: list[str], total: int, what: str, may_fail: bool = False) -> bool:
    """Run `pip install --no-deps` quietly, showing how far it is; its output is in `setup.log`."""
    command = [str(PYTHON), "-m", "pip", "install", "--no-deps", "--no-input", "--disable-pip-version-check"]
    begin = LOG.stat().st_size
    with LOG.open("ab") as log:
        process = subprocess.Popen([*command, "--progress-bar", "off", *arguments], stdout=log, stderr=log)
    try:
        while process.poll() is None:
            show_progress(what, begin, total)
            time.sleep(POLL_S)
    finally:
        process.terminate()
        process.wait()
        end_progress()
    if process.returncode == 0 or may_fail:
        return process.returncode == 0
    raise SetupError(
        f"{what} can't be installed; pip said:\n{tail(LOG.read_bytes()[begin:].decode(errors='replace'))}\n"
        f"All of it is in {LOG}. When that is mended, run make setup again."
    )


def show_progress(what: str, begin: int, total: int) -> None:
    """One line that is written over, and only on a terminal."""
    if not sys.stdout.isatty() or total == 1:
        return
    lines = LOG.read_bytes()[begin:].decode(errors="replace").splitlines()
    found = sum(line.startswith(("Collecting ", "Requirement already satisfied")) for line in lines)
    if any(line.startswith("Installing collected packages") for line in lines):
        done = sum(1 for _ in VENV.glob("lib/python*/site-packages/*.dist-info"))
        step = f"installing {min(done, total)} of {total}"
    else:
        step = f"fetching {found} of {total}"
    sys.stdout.write(f"\r\x1b[K{what}: {step}")
    sys.stdout.flush()


def end_progress() -> None:
    if sys.stdout.isatty():
        sys.stdout.write("\r\x1b[K")


def say(sentence: str) -> None:
    sys.stdout.write(f"{sentence}\n")
    sys.stdout.flush()


def tail(text: str) -> str:
    return "\n".join(f"  {line}" for line in text.strip().splitlines()[-12:])


if __name__ == "__main__":
    sys.exit(main())
