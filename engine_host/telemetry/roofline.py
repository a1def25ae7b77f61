"""How far each phase is from what the device can do, and what holds it back. Every rate here is an estimate."""

from collections import deque
from dataclasses import dataclass

from engine_host.api.figures import Phase, PhaseRoofline, Roofline, Verdict
from engine_host.api.types import Reading
from engine_host.telemetry.meter import Fed
from engine_host.telemetry.peaks import Peaks
from engine_host.telemetry.split import NOTHING, Spent

WINDOW_S = 60.0

BOUND_AT = 0.4
"""From this share of a peak on, that peak is what bounds the phase: real kernels reach some 50 to 80 % of what a data
sheet says, and the estimate counts only traffic and arithmetic that can't be avoided."""

STARVED_AT = 0.25
"""From this share of time on in which requests are there and the device computes nothing, the host holds it back."""


@dataclass(frozen=True)
class _Slice:
    at: float
    prefill: Spent
    decode: Spent
    worked: float
    waited: float


class RooflineWindow:
    """The phases' work over the last minute. `add` is given what the meter has booked."""

    def __init__(self) -> None:
        self._slices: deque[_Slice] = deque()

    def add(self, fed: Fed) -> None:
        """Take in what was just booked."""
        worked = fed.prefill.seconds + fed.decode.seconds
        waited = fed.seconds["io"] + fed.seconds["scheduling"]
        if worked or waited:
            self._slices.append(_Slice(fed.until, fed.prefill, fed.decode, worked, waited))
            # Also where nobody looks.
            self._forget(fed.until)

    def figures(self, now: float, peaks: Peaks | None, *, known: bool, devices: int) -> Roofline:
        """Both phases against `peaks`; `known` tells whether there is an estimate of the model's work at all."""
        self._forget(now)
        # What the meter books counts every device; what a device computes is told for one.
        waited = sum(each.waited for each in self._slices) / devices
        worked = sum(each.worked for each in self._slices)
        host = waited / (worked + waited) if worked + waited else 0.0
        prefill = sum((each.prefill for each in self._slices), NOTHING)
        decode = sum((each.decode for each in self._slices), NOTHING)
        why = "no peak known: set it in the profile, or run llmconsole calibrate" if peaks is None else peaks.source
        flops, bandwidth = (peaks.flops, peaks.bandwidth) if peaks is not None else (None, None)
        return Roofline(
            window_s=WINDOW_S,
            prefill=_phase("prefill", prefill, flops, bandwidth, host, known),
            decode=_phase("decode", decode, flops, bandwidth, host, known),
            peak_flops=Reading("peak arithmetic", "flop/s", flops, why, None if flops else why),
            peak_bandwidth=Reading("peak memory bandwidth", "bytes/s", bandwidth, why, None if bandwidth else why),
        )

    def _forget(self, now: float) -> None:
        while self._slices and self._slices[0].at < now - WINDOW_S:
            self._slices.popleft()


def _phase(
    phase: Phase, spent: Spent, peak_flops: float | None, peak_bandwidth: float | None, host: float, known: bool
) -> PhaseRoofline:
    if not known:
        return PhaseRoofline(phase, None, None, None, None, "unknown", "vLLM has no estimate of this model's work.")
    if not spent.seconds:
        return PhaseRoofline(phase, None, None, None, None, "unknown", f"No {phase} in the last minute.")
    flops, traffic = spent.flops / spent.seconds, spent.bytes_ / spent.seconds
    of_flops = flops / peak_flops if peak_flops else None
    of_bandwidth = traffic / peak_bandwidth if peak_bandwidth else None
    verdict, why = _verdict(phase, of_flops, of_bandwidth, host)
    return PhaseRoofline(phase, flops, traffic, of_flops, of_bandwidth, verdict, why)


def _verdict(phase: Phase, of_flops: float | None, of_bandwidth: float | None, host: float) -> tuple[Verdict, str]:
    if of_flops is None or of_bandwidth is None:
        return "unknown", "The device's peaks are not known."
    reached = f"{of_flops:.0%} of the arithmetic and {of_bandwidth:.0%} of the bandwidth there is (est.)"
    if max(of_flops, of_bandwidth) >= BOUND_AT:
        bound: Verdict = "compute-bound" if of_flops >= of_bandwidth else "bandwidth-bound"
        return bound, f"{phase} reaches {reached}."
    if host >= STARVED_AT:
        return "starved", f"For {host:.0%} of the time the device waits for the host though requests are there."
    return "launch-bound", f"{phase} reaches only {reached}: steps are too small for the device, or its kernels."
