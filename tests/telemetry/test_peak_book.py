"""Which peaks hold: the profile's, else those measured here, else the data sheet's."""

from pathlib import Path

from engine_host.telemetry.peak_book import PeakBook
from engine_host.telemetry.peaks import PEAKS_FILE, peaks_of, save_calibration
from profiles.schema import Peaks as Knobs

H100 = "NVIDIA H100 80GB HBM3"
NONE = Knobs()


def test_the_profile_goes_before_what_was_measured_and_that_before_the_sheet(tmp_path: Path) -> None:
    book = PeakBook(tmp_path, lambda sentence: None)
    assert book.of(H100, "bfloat16", NONE, "first") == peaks_of(H100, "bfloat16")
    save_calibration(tmp_path / PEAKS_FILE, H100, {"bfloat16": 7e14, "bandwidth": 3e12, "measured": "2026-01-02"})
    measured = book.of(H100, "bfloat16", NONE, "second")
    assert measured is not None
    assert (measured.flops, measured.bandwidth, measured.source) == (7e14, 3e12, "calibration of 2026-01-02")
    own = book.of(H100, "bfloat16", Knobs(tflops=500.0), "second")
    assert own is not None
    assert (own.flops, own.bandwidth) == (5e14, 3e12)
    assert own.source == "profile, calibration of 2026-01-02"
    # A calibration in one data type says nothing of another's arithmetic.
    other = book.of(H100, "float16", NONE, "second")
    sheet = peaks_of(H100, "float16")
    assert other is not None
    assert sheet is not None
    assert (other.flops, other.bandwidth) == (sheet.flops, 3e12)
    assert other.source == f"{sheet.source}, calibration of 2026-01-02"
    alone = book.of("a CPU", "float32", Knobs(gb_per_s=20.0), "second")
    assert alone is not None
    assert (alone.flops, alone.bandwidth, alone.source) == (None, 2e10, "profile")


def test_the_file_is_read_once_for_an_engine_and_a_broken_one_is_told_once(tmp_path: Path) -> None:
    (tmp_path / PEAKS_FILE).write_text("{")
    told: list[str] = []
    book = PeakBook(tmp_path, told.append)
    for engine in ("first", "first", "second"):
        assert book.of(H100, "bfloat16", NONE, engine) == peaks_of(H100, "bfloat16")
    assert len(told) == 2
