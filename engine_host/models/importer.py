"""Runs the import's child process and hands on what it reports."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from engine_host.models.errors import ModelImportError

_EXIT_WAIT_S = 5.0


@dataclass(frozen=True)
class ImportProgress:
    """What the import is doing ("reading", "dequantizing", "writing" …); `fraction` of that, 0 to 1, where known."""

    phase: str
    fraction: float | None


OnProgress = Callable[[ImportProgress], None]


def convert(source: Path, target: Path, dtype: str, lock: IO[bytes], on_progress: OnProgress) -> dict[str, Any]:
    """Make `source` a model folder at `target`; returns what the child found out about it.

    The child inherits `lock`, so that the store stays locked until it is gone, whatever becomes of this process.
    Raises `ModelImportError`. Whatever ends it, nothing stays at `target` unless it returns.
    """
    log = target.with_suffix(".log")
    try:
        with log.open("wb") as noise:
            child = _start(source, target, dtype, lock, noise)
            try:
                outcome = _follow(child, on_progress)
                _wait(child)
            finally:
                _end(child)
        if "result" not in outcome:
            raise ModelImportError(str(outcome.get("error") or _death(source, child.returncode, log)))
        result: dict[str, Any] = outcome["result"]
        return result
    except BaseException:
        shutil.rmtree(target, ignore_errors=True)
        raise
    finally:
        log.unlink(missing_ok=True)


def _start(source: Path, target: Path, dtype: str, lock: IO[bytes], noise: IO[bytes]) -> subprocess.Popen[bytes]:
    # No network and no GPU: everything is in the file, and the GPU may be serving.
    quiet = {"HF_HUB_OFFLINE": "1", "CUDA_VISIBLE_DEVICES": "", "TOKENIZERS_PARALLELISM": "false"}
    return subprocess.Popen(
        [sys.executable, "-m", "engine_host.models.convert", str(source), str(target), dtype],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=noise,
        env=os.environ | quiet,
        pass_fds=(lock.fileno(),),
        start_new_session=True,  # Ctrl+C is for this process, which then ends the child.
    )


def _follow(child: subprocess.Popen[bytes], on_progress: OnProgress) -> dict[str, Any]:
    """Report progress until the child's last word; empty if it died without one."""
    assert child.stdout is not None
    for line in child.stdout:
        event = json.loads(line)
        if "phase" not in event:
            return dict(event)
        total = event["total"]
        on_progress(ImportProgress(event["phase"], event["done"] / total if total else None))
    return {}


def _wait(child: subprocess.Popen[bytes]) -> None:
    """Let a child that has said its last word, or closed its output, end by itself."""
    with suppress(subprocess.TimeoutExpired):
        child.wait(_EXIT_WAIT_S)


def _end(child: subprocess.Popen[bytes]) -> None:
    child.kill()
    child.wait()
    for pipe in (child.stdin, child.stdout):
        if pipe is not None:
            with suppress(OSError):
                pipe.close()


def _death(source: Path, code: int, log: Path) -> str:
    if code == -9:
        return f"The import of {source} was killed, most likely because memory ran out. Close other programs first."
    lines = log.read_text(errors="replace").strip().splitlines()
    return f"The import of {source} failed: {lines[-1][:300] if lines else f'it ended with code {code}'}."
