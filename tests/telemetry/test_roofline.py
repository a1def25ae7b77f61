"""Each phase against the device's peaks, and the verdicts."""

import pytest

from engine_host.api.figures import BILL_PARTS, BillPart, Roofline
from engine_host.telemetry.meter import Fed
from engine_host.telemetry.peaks import Peaks
from engine_host.telemetry.roofline import WINDOW_S, RooflineWindow
from engine_host.telemetry.split import NOTHING, Spent

PEAKS = Peaks(100.0, 10.0, "data sheet")


def fed(until: float, prefill: Spent = NOTHING, decode: Spent = NOTHING, io: float = 0.0) -> Fed:
    seconds: dict[BillPart, float] = dict.fromkeys(BILL_PARTS, 0.0)
    seconds["io"] = io
    return Fed(until, seconds, prefill, decode)


def figures(
    *given: Fed, peaks: Peaks | None = PEAKS, now: float = 10.0, known: bool = True, devices: int = 1
) -> Roofline:
    window = RooflineWindow()
    for each in given:
        window.add(each)
    return window.figures(now, peaks, known=known, devices=devices)


def test_prefill_and_decode_are_told_apart_over_the_time_each_computed() -> None:
    found = figures(
        fed(1.0, Spent(2.0, 160.0, 4.0, 1), Spent(4.0, 8.0, 28.0, 2)), fed(2.0, decode=Spent(1.0, 2.0, 7.0, 1))
    )
    prefill, decode = found.prefill, found.decode
    assert (prefill.flops_per_s, prefill.bytes_per_s) == (80.0, 2.0)
    assert (prefill.flops_utilization, prefill.bandwidth_utilization) == (0.8, pytest.approx(0.2))
    assert (decode.flops_per_s, decode.bytes_per_s) == (2.0, 7.0)
    assert (decode.flops_utilization, decode.bandwidth_utilization) == (pytest.approx(0.02), pytest.approx(0.7))
    assert (prefill.verdict, decode.verdict) == ("compute-bound", "bandwidth-bound")
    assert decode.why == "decode reaches 2% of the arithmetic and 70% of the bandwidth there is (est.)."


def test_far_below_both_peaks_it_is_the_host_or_the_launches() -> None:
    small = Spent(6.0, 6.0, 6.0, 9)
    assert figures(fed(1.0, decode=small, io=1.9)).decode.verdict == "launch-bound"
    assert figures(fed(1.0, decode=small, io=2.0)).decode.verdict == "starved"
    choosing = fed(1.0, decode=small, io=1.0)
    choosing.seconds["scheduling"] = 1.0
    assert figures(choosing).decode.verdict == "starved"
    # The host keeps both devices waiting; what they computed is told for one.
    assert figures(fed(1.0, decode=small, io=2.0), devices=2).decode.verdict == "launch-bound"


def test_what_is_not_known_has_no_verdict() -> None:
    work = Spent(1.0, 1.0, 1.0, 1)
    none = figures(fed(1.0, decode=work), peaks=None)
    assert (none.decode.verdict, none.decode.flops_utilization, none.decode.flops_per_s) == ("unknown", None, 1.0)
    assert none.peak_flops.value is None
    assert none.peak_flops.why == "no peak known: set it in the profile, or run llmconsole calibrate"
    half = figures(fed(1.0, decode=work), peaks=Peaks(None, 10.0, "data sheet"))
    assert (half.decode.verdict, half.decode.bandwidth_utilization) == ("unknown", 0.1)
    half = figures(fed(1.0, decode=work), peaks=Peaks(100.0, None, "data sheet"))
    assert (half.decode.verdict, half.decode.flops_utilization) == ("unknown", 0.01)
    assert half.decode.bandwidth_utilization is None
    assert figures(fed(1.0, decode=work), known=False).decode.flops_per_s is None
    assert figures().prefill.why == "No prefill in the last minute."


def test_what_is_older_than_the_window_counts_no_more() -> None:
    old, new = fed(1.0, prefill=Spent(1.0, 99.0, 0.0, 1)), fed(30.0, prefill=Spent(1.0, 10.0, 0.0, 1))
    assert figures(old, new, now=30.0).prefill.flops_per_s == 54.5
    assert figures(old, new, now=1.0 + WINDOW_S + 0.5).prefill.flops_per_s == 10.0


def test_it_does_not_grow_though_nobody_looks() -> None:
    window = RooflineWindow()
    for second in range(500):
        window.add(fed(float(second), decode=Spent(1.0, 1.0, 1.0, 1)))
    assert len(window._slices) == WINDOW_S + 1
