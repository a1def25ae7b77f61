"""`llmconsole calibrate`, with a measurement that somebody else made."""

import json
import subprocess
from pathlib import Path

import pytest

from console.cli import calibrate as command
from engine_host import runtime


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr(runtime, "running_hosts", lambda base: {})


def answer(monkeypatch: pytest.MonkeyPatch, code: int, out: str = "", err: str = "") -> None:
    def run(command: list[str], **options: object) -> subprocess.CompletedProcess[str]:
        return subprocess.CompletedProcess(command, code, out, err)

    monkeypatch.setattr(subprocess, "run", run)


def test_what_was_measured_is_printed(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    measured = {"device": "NVIDIA H200", "file": "/d/peaks.json", "bfloat16": 7.914e14, "bandwidth": 4.21e12}
    answer(monkeypatch, 0, "a library's noise\n" + json.dumps(measured) + "\n")
    assert command.calibrate() == 0
    printed = capsys.readouterr().out
    for part in ("NVIDIA H200", "bfloat16", "791 TFLOP/s", "4,210 GB/s", "Kept in /d/peaks.json"):
        assert part in printed


def test_why_nothing_could_be_measured_is_said(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    answer(monkeypatch, 1, err="a warning\nThe device can't be measured: out of memory\n")
    assert command.calibrate() == 1
    assert capsys.readouterr().err == "The device can't be measured: out of memory\n"


def test_a_device_at_work_is_not_measured(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(runtime, "running_hosts", lambda base: {1: Path("/run/host.sock")})
    assert command.calibrate() == 1
    assert "stop it first" in capsys.readouterr().err
