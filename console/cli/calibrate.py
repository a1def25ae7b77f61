"""`llmconsole calibrate`: measures the peaks that the roofline is drawn against."""

import json
import subprocess
import sys

from console.cli.output import error, say, table


def calibrate() -> int:
    """Measure in a process of its own, which has PyTorch, and print what it found. The exit code."""
    from engine_host.options import HostOptions
    from engine_host.runtime import running_hosts

    options = HostOptions()
    if running_hosts(options.runtime_dir):
        error("A host runs on this machine, and what it computes would make the figures too low: stop it first.")
        return 1
    say("Measuring takes some ten seconds. Nothing else should use the device.")
    command = [sys.executable, "-m", "engine_host.engine.calibrate", str(options.data_dir)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except KeyboardInterrupt:
        error("The measurement was interrupted; nothing of it was kept.")
        return 130
    if done.returncode != 0:
        error((done.stderr.strip() or f"The measurement ended with code {done.returncode}.").splitlines()[-1])
        return 1
    _print(json.loads(done.stdout.splitlines()[-1]))
    return 0


def _print(measured: dict[str, float | str]) -> None:
    say(f"{measured.pop('device')}:")
    file = measured.pop("file")
    bandwidth = float(measured.pop("bandwidth"))
    rows = [
        (f"matrix product, {dtype}", f"{_figure(float(flops) / 1e12)} TFLOP/s") for dtype, flops in measured.items()
    ]
    rows.append(("copy, read and write together", f"{_figure(bandwidth / 1e9)} GB/s"))
    table(("Measured", "At most"), rows, right=("At most",))
    say(f"Kept in {file}. Hosts started from now on use it where a profile sets no peaks.")


def _figure(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
