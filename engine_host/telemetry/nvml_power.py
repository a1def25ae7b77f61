"""What a GPU draws and how fast it runs: power, energy, clocks, and what holds the clocks down."""

from dataclasses import dataclass, replace
from typing import Any

from engine_host.api.types import Reading
from engine_host.telemetry.nvml_library import Nvml
from engine_host.telemetry.readings import Slowly

MAX_GAP_S = 10.0
"""Power is integrated over gaps of at most this many seconds: what was drawn in longer ones isn't known."""

LIMIT_EVERY_S = 10.0

_MHZ = 1_000_000

# nvmlClocksEventReasons: bit, words, whether it holds the clocks down for power, heat or hardware.
_REASONS = (
    (0x01, "idle", False),
    (0x02, "set by the application clocks", False),
    (0x04, "power limit reached", True),
    (0x08, "hardware slowdown", True),
    (0x10, "kept in step with another GPU (sync boost)", False),
    (0x20, "too hot (software slowdown)", True),
    (0x40, "too hot (hardware slowdown)", True),
    (0x80, "power brake from outside", True),
    (0x100, "set by the display clocks", False),
)
_HARDWARE = 0x08
_NAMED_HARDWARE = 0x40 | 0x80
IDLE = 0x01


@dataclass(frozen=True)
class Energy:
    """Joules since the host started; the last state of the chip's counter (J), or the last power (W, monotonic s)."""

    joules: float = 0.0
    counter: float | None = None
    watts: float | None = None
    at: float = 0.0

    def counted(self, counter: float) -> "Energy":
        """With what the chip counted since; a counter below its last state has begun again at 0."""
        if self.counter is None:
            return replace(self, counter=counter)
        more = counter - self.counter if counter >= self.counter else counter
        return replace(self, joules=self.joules + more, counter=counter)

    def integrated(self, watts: float | None, now: float) -> "Energy":
        """With the power (W) drawn since the last call, the mean of both ends."""
        more = 0.0
        if watts is not None and self.watts is not None and now - self.at <= MAX_GAP_S:
            more = (self.watts + watts) / 2 * (now - self.at)
        return replace(self, joules=self.joules + more, watts=watts, at=now)


NO_ENERGY = Energy()


class PowerMeter:
    """Power, energy, clocks and throttling of the whole GPU; `of` is appended to the labels."""

    def __init__(self, nvml: Nvml, gpu: Any, of: str, energy: Energy) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._of = of
        self.energy = energy
        self._limit = Slowly(LIMIT_EVERY_S, self._read_limit)
        self._most: dict[int, str] = {}
        self.idle = False

    def read(self, now: float) -> dict[str, Reading]:
        """The readings "power", "power_limit", "energy", "clock_sm", "clock_memory", "throttle" at monotonic `now`."""
        calls = self._nvml.calls
        power = self._nvml.reading(f"power{self._of}", "watts", "nvmlDeviceGetPowerUsage", self._watts)
        return {
            "power": power,
            "power_limit": self._limit.get(now),
            "energy": self._read_energy(power, now),
            "clock_sm": self._clock("SM clock", calls.NVML_CLOCK_SM),
            "clock_memory": self._clock("memory clock", calls.NVML_CLOCK_MEM),
            "throttle": self._throttle(),
        }

    def _watts(self) -> float:
        return float(self._nvml.calls.nvmlDeviceGetPowerUsage(self._gpu)) / 1000

    def _read_limit(self) -> Reading:
        call = self._nvml.calls.nvmlDeviceGetEnforcedPowerLimit
        source = "nvmlDeviceGetEnforcedPowerLimit"
        return self._nvml.reading(f"power limit{self._of}", "watts", source, lambda: call(self._gpu) / 1000)

    def _read_energy(self, power: Reading, now: float) -> Reading:
        label, source = f"energy{self._of}", "nvmlDeviceGetTotalEnergyConsumption, since the host started"
        try:
            counter = self._nvml.calls.nvmlDeviceGetTotalEnergyConsumption(self._gpu) / 1000
        except self._nvml.Error as error:
            why = self._nvml.why(error)
            if self._nvml.name(error) not in ("NOT_SUPPORTED", "FUNCTION_NOT_FOUND"):
                return Reading(label, "joules", None, source, why)
            self.energy = self.energy.integrated(power.value, now)
            value = None if power.value is None else self.energy.joules
            return Reading(f"energy (integrated power){self._of}", "joules", value, power.source, power.why)
        self.energy = self.energy.counted(counter)
        return Reading(label, "joules", self.energy.joules, source)

    def _clock(self, label: str, kind: int) -> Reading:
        calls = self._nvml.calls
        source = "nvmlDeviceGetClockInfo"
        reading = self._nvml.reading(
            f"{label}{self._of}", "hertz", source, lambda: calls.nvmlDeviceGetClockInfo(self._gpu, kind) * _MHZ
        )
        if kind not in self._most:
            try:
                self._most[kind] = f"of at most {calls.nvmlDeviceGetMaxClockInfo(self._gpu, kind)} MHz"
            except self._nvml.Error as error:
                self._nvml.why(error)
                self._most[kind] = ""
        if reading.value is None:
            return reading
        return Reading(reading.label, "hertz", reading.value, source, text=self._most[kind])

    def _throttle(self) -> Reading:
        calls = self._nvml.calls
        label, source = f"clocks held down{self._of}", "nvmlDeviceGetCurrentClocksEventReasons"
        try:
            try:
                mask = calls.nvmlDeviceGetCurrentClocksEventReasons(self._gpu)
            except calls.NVMLError_FunctionNotFound:
                # The name of the same call in drivers before 535.
                source = "nvmlDeviceGetCurrentClocksThrottleReasons"
                mask = calls.nvmlDeviceGetCurrentClocksThrottleReasons(self._gpu)
        except self._nvml.Error as error:
            self.idle = False
            return Reading(label, "words", None, source, self._nvml.why(error))
        self.idle = bool(mask & IDLE)
        held, words = throttle_words(mask)
        return Reading(label, "words", float(held), source, text=words)


def throttle_words(mask: int) -> tuple[bool, str]:
    """Whether power, heat or hardware hold the clocks down, and NVML's reasons for the present clocks in words."""
    if mask & _NAMED_HARDWARE:
        # The general bit is set along with those that say which.
        mask &= ~_HARDWARE
    found = [(words, held) for bit, words, held in _REASONS if mask & bit]
    rest = mask & ~sum(bit for bit, *_ in _REASONS)
    words = [words for words, _ in found] + ([f"reason {rest:#x} of NVML"] if rest else [])
    return any(held for _, held in found), ", ".join(words) or "no"


def watts_of(power: Reading) -> float | None:
    """The power of a device as a part of a sum: `None` where it isn't the device's own, as of a MIG slice."""
    return power.value if power.label == "power" and not power.stale else None
