"""Peaks by data sheet, and those that were measured."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from engine_host.telemetry.cpu import cpu_name
from engine_host.telemetry.peaks import SHEETS, Peaks, load_calibration, peaks_of, save_calibration


def test_peaks_are_dense_and_by_dtype() -> None:
    h100 = peaks_of("NVIDIA H100 80GB HBM3", "bfloat16")
    assert h100 == Peaks(989.5e12, 3.35e12, "NVIDIA H100 Tensor Core GPU data sheet, 2024")
    assert peaks_of("NVIDIA H100 80GB HBM3", "fp8_e4m3") == Peaks(1979e12, 3.35e12, h100.source)
    assert peaks_of("NVIDIA H100 80GB HBM3", "float32") == Peaks(67e12, 3.35e12, h100.source)


def test_what_a_chip_lacks_is_unknown_and_its_bandwidth_is_not() -> None:
    for name, dtype in (("Tesla T4", "bfloat16"), ("NVIDIA A100-SXM4-40GB", "fp8"), ("NVIDIA L4", "int4")):
        peaks = peaks_of(name, dtype)
        assert peaks is not None
        assert peaks.flops is None
        assert peaks.bandwidth


@pytest.mark.parametrize("name", ["NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GeForce RTX 4090 Laptop GPU", "a CPU"])
def test_no_peaks_for_slices_and_strangers(name: str) -> None:
    assert peaks_of(name, "bfloat16") is None


def test_a_calibration_is_read_back_beside_others(tmp_path: Path) -> None:
    path = tmp_path / "data" / "peaks.json"
    assert load_calibration(path, "one", "float32") is None
    save_calibration(path, "one", {"float32": 1e12, "bandwidth": 2e10, "measured": "2026-01-02"})
    save_calibration(path, "two", {"float32": 3e12, "bandwidth": 4e10, "measured": "2026-01-03"})
    assert load_calibration(path, "one", "float32") == Peaks(1e12, 2e10, "calibration of 2026-01-02")
    assert load_calibration(path, "one", "bfloat16") == Peaks(None, 2e10, "calibration of 2026-01-02")
    assert load_calibration(path, "three", "float32") is None
    assert set(json.loads(path.read_bytes())) == {"one", "two"}


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"one": 3}', '{"one": {"float32": "fast", "measured": "x"}}', '{"one": {}}']
)
def test_a_file_that_is_no_calibration_is_named(tmp_path: Path, text: str) -> None:
    path = tmp_path / "peaks.json"
    path.write_text(text)
    with pytest.raises(ValueError, match=r"peaks\.json is no calibration: remove it"):
        load_calibration(path, "one", "float32")


def test_calibrating_a_cpu_keeps_and_prints_what_it_measured(tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    tiny = ["--device", "cpu", "--largest", "64", "--copy-bytes", "65536", "--seconds", "0"]
    command = [sys.executable, "-m", "engine_host.engine.calibrate", str(tmp_path), *tiny]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = json.loads(done.stdout)
    assert printed["file"] == str(path)
    assert printed["device"] == cpu_name()
    for dtype in ("bfloat16", "float32"):
        peaks = load_calibration(path, cpu_name(), dtype)
        assert peaks is not None
        assert (peaks.flops, peaks.bandwidth) == (printed[dtype], printed["bandwidth"])
        assert min(printed[dtype], printed["bandwidth"]) > 0


def test_a_calibration_never_replaces_a_file_it_does_not_know(tmp_path: Path) -> None:
    path = tmp_path / "peaks.json"
    path.write_text("something else")
    with pytest.raises(ValueError, match="is no calibration"):
        save_calibration(path, "one", {"bandwidth": 1.0, "measured": "2026-01-02"})
    assert path.read_text() == "something else"


def test_the_documentation_has_the_same_peaks() -> None:
    text = (Path(__file__).parents[2] / "docs" / "device.md").read_text()
    for _, sheet in SHEETS:
        assert f"| {sheet.gb_per_s:g} | {sheet.source} |" in text
        assert f"| {sheet.half:g} | {sheet.float32:g} |" in text
