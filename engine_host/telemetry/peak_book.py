"""Which peaks hold for the device that the engine runs on."""

from collections.abc import Callable
from pathlib import Path

from engine_host.telemetry.peaks import PEAKS_FILE, Peaks, load_calibration, peaks_of
from profiles.schema import Peaks as PeakKnobs


class PeakBook:
    """The peaks of a device in a data type: the profile's, else as calibrated here, else by the data sheet.

    The file of calibrations is read when another device, data type or engine asks.
    """

    def __init__(self, data_dir: Path, tell: Callable[[str], None]) -> None:
        self._path = data_dir / PEAKS_FILE
        self._tell = tell
        self._known: tuple[tuple[object, ...], Peaks | None] = ((), None)

    def of(self, device: str, dtype: str, knobs: PeakKnobs, engine: object) -> Peaks | None:
        """Peaks, `None` where nobody knows any."""
        asked = (device, dtype, knobs.tflops, knobs.gb_per_s, id(engine))
        if self._known[0] != asked:
            self._known = (asked, self._find(device, dtype, knobs))
        return self._known[1]

    def _find(self, device: str, dtype: str, knobs: PeakKnobs) -> Peaks | None:
        try:
            measured = load_calibration(self._path, device, dtype)
        except (ValueError, OSError) as error:
            self._tell(str(error))
            measured = None
        own = Peaks(
            knobs.tflops * 1e12 if knobs.tflops is not None else None,
            knobs.gb_per_s * 1e9 if knobs.gb_per_s is not None else None,
            "profile",
        )
        # Each may know one of the two only: a calibration knows the data types it was made in.
        known = [each for each in (own, measured, peaks_of(device, dtype)) if each is not None]
        flops = next((each for each in known if each.flops is not None), None)
        bandwidth = next((each for each in known if each.bandwidth is not None), None)
        sources = dict.fromkeys(each.source for each in (flops, bandwidth) if each is not None)
        if not sources:
            return None
        return Peaks(
            flops.flops if flops is not None else None,
            bandwidth.bandwidth if bandwidth is not None else None,
            ", ".join(sources),
        )
