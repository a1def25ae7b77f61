"""How busy a GPU is: the best measure that NVML offers for it, under the name of what was measured."""

from typing import Any, Protocol

from engine_host.api.types import Reading
from engine_host.telemetry.nvml_library import Nvml
from engine_host.telemetry.readings import TWO_READINGS, Implausible, NotYet, Unit, fraction

_MIB = 1 << 20


class UtilizationMeter(Protocol):
    """One way to measure."""

    def read(self) -> dict[str, Reading]:
        """The reading "utilization", and what else comes with it; since the last read, or over NVML's own period."""

    def close(self) -> None:
        """Give back what NVML allocated."""


# Name, label, unit, NVML's metric. A slice has no share of PCIe and NVLink of its own.
_GPM: tuple[tuple[str, str, Unit, str], ...] = (
    ("utilization", "SM active", "fraction", "SM_UTIL"),
    ("sm_occupancy", "SM occupancy", "fraction", "SM_OCCUPANCY"),
    ("tensor_active", "tensor active", "fraction", "ANY_TENSOR_UTIL"),
    ("dram_bandwidth", "DRAM bandwidth used", "fraction", "DRAM_BW_UTIL"),
)
_GPM_LINKS: tuple[tuple[str, str, Unit, str], ...] = (
    ("pcie_rx", "PCIe received", "bytes/s", "PCIE_RX_PER_SEC"),
    ("pcie_tx", "PCIe sent", "bytes/s", "PCIE_TX_PER_SEC"),
    ("nvlink_rx", "NVLink received", "bytes/s", "NVLINK_TOTAL_RX_PER_SEC"),
    ("nvlink_tx", "NVLink sent", "bytes/s", "NVLINK_TOTAL_TX_PER_SEC"),
)


class GpmMeter:
    """GPM (Hopper and later): everything averaged between two reads, out of one pair of samples. Also for a slice."""

    def __init__(self, nvml: Nvml, gpu: Any, gpu_instance: int | None) -> None:
        calls = nvml.calls
        self._nvml = nvml
        self._gpu = gpu
        self._gpu_instance = gpu_instance
        self._of = "" if gpu_instance is None else " (slice)"
        self._metrics = _GPM + (_GPM_LINKS if gpu_instance is None else ())
        if not calls.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise calls.NVMLError(calls.NVML_ERROR_NOT_SUPPORTED)
        self._before = calls.nvmlGpmSampleAlloc()
        self._after = calls.nvmlGpmSampleAlloc()
        try:
            self._sample(self._before)
        except nvml.Error:
            self.close()
            raise
        self._fresh = True

    def _sample(self, into: Any) -> None:
        if self._gpu_instance is None:
            self._nvml.calls.nvmlGpmSampleGet(self._gpu, into)
        else:
            self._nvml.calls.nvmlGpmMigSampleGet(self._gpu, self._gpu_instance, into)

    def read(self) -> dict[str, Reading]:
        """All metrics since the last read."""
        if self._fresh:
            # The first sample was taken moments ago: a difference over so short a time is noise.
            self._fresh = False
            return self._nothing(TWO_READINGS)
        try:
            answers = self._measure()
        except self._nvml.Error as error:
            return self._nothing(self._nvml.why(error))
        return {
            metric[0]: self._reading(metric, answer) for metric, answer in zip(self._metrics, answers, strict=False)
        }

    def _measure(self) -> Any:
        calls = self._nvml.calls
        self._sample(self._after)
        request = calls.c_nvmlGpmMetricsGet_t()
        request.version = calls.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = len(self._metrics)
        request.sample1, request.sample2 = self._before, self._after
        for slot, (*_, metric) in enumerate(self._metrics):
            request.metrics[slot].metricId = getattr(calls, f"NVML_GPM_METRIC_{metric}")
        self._before, self._after = self._after, self._before
        return calls.nvmlGpmMetricsGet(request).metrics

    def _reading(self, metric: tuple[str, str, Unit, str], answer: Any) -> Reading:
        _, label, unit, name = metric
        source = f"nvmlGpmMetricsGet({name})"

        def value() -> float:
            if answer.nvmlReturn != self._nvml.calls.NVML_SUCCESS:
                raise self._nvml.calls.NVMLError(answer.nvmlReturn)
            if unit == "fraction":
                return fraction(answer.value, source)
            if not 0 <= answer.value < float("inf"):
                raise Implausible(f"{source} reported {answer.value:g} MiB/s")
            return float(answer.value * _MIB)

        return self._nvml.reading(label + self._of, unit, source, value)

    def _nothing(self, why: str) -> dict[str, Reading]:
        return {
            name: Reading(label + self._of, unit, None, f"nvmlGpmMetricsGet({metric})", why)
            for name, label, unit, metric in self._metrics
        }

    def close(self) -> None:
        """Give back both samples."""
        for sample in (self._before, self._after):
            self._nvml.calls.nvmlGpmSampleFree(sample)


class ProcessMeter:
    """SM utilization summed over the processes on the GPU, over the driver's last sampling period."""

    label = "SM busy (processes)"
    source = "nvmlDeviceGetProcessUtilization"

    def __init__(self, nvml: Nvml, gpu: Any) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._seen = 0
        self._samples()
        self._fresh = True

    def _samples(self) -> list[int]:
        calls = self._nvml.calls
        try:
            samples = calls.nvmlDeviceGetProcessUtilization(self._gpu, self._seen)
        except calls.NVMLError as error:
            # Only processes with some utilization are listed: none listed means none was busy.
            if error.value in (calls.NVML_SUCCESS, calls.NVML_ERROR_NOT_FOUND):
                return []
            raise
        fresh = [sample for sample in samples if sample.timeStamp > self._seen]
        self._seen = max((sample.timeStamp for sample in fresh), default=self._seen)
        return [sample.smUtil for sample in fresh]

    def read(self) -> dict[str, Reading]:
        """The sum; processes sampled at slightly different times can add to more than the whole, which is cut off."""
        return {"utilization": self._nvml.reading(self.label, "fraction", self.source, self._sum)}

    def _sum(self) -> float:
        shares = [fraction(percent, self.source) for percent in self._samples()]
        if self._fresh:
            # The driver's buffer reaches back to before anybody asked.
            self._fresh = False
            raise NotYet
        return min(sum(shares), 1.0)

    def close(self) -> None:
        """Nothing is held."""


class KernelMeter:
    """Share of time with at least one kernel running, over the driver's last sampling period; says little of SMs."""

    label = "kernel-busy"
    source = "nvmlDeviceGetUtilizationRates"

    def __init__(self, nvml: Nvml, gpu: Any) -> None:
        self._nvml = nvml
        self._gpu = gpu
        nvml.calls.nvmlDeviceGetUtilizationRates(gpu)

    def read(self) -> dict[str, Reading]:
        """The share."""
        return {"utilization": self._nvml.reading(self.label, "fraction", self.source, self._share)}

    def _share(self) -> float:
        return fraction(self._nvml.calls.nvmlDeviceGetUtilizationRates(self._gpu).gpu, self.source)

    def close(self) -> None:
        """Nothing is held."""


class NoMeter:
    """NVML has no measure of this GPU or slice; `why` in a few words."""

    def __init__(self, why: str) -> None:
        self._why = why

    def read(self) -> dict[str, Reading]:
        """That nothing is known."""
        return {"utilization": Reading("utilization", "fraction", None, "none", self._why)}

    def close(self) -> None:
        """Nothing is held."""


def choose_meter(nvml: Nvml, gpu: Any, gpu_instance: int | None) -> UtilizationMeter:
    """The best meter that works on this GPU, or on the MIG slice `gpu_instance` of it.

    A slice has GPM or nothing: the others measure the whole GPU.
    """
    try:
        return GpmMeter(nvml, gpu, gpu_instance)
    except nvml.Error as error:
        if gpu_instance is not None:
            return NoMeter(nvml.why(error))
    try:
        return ProcessMeter(nvml, gpu)
    except nvml.Error:
        pass
    try:
        return KernelMeter(nvml, gpu)
    except nvml.Error as error:
        return NoMeter(nvml.why(error))


def without_gpm() -> dict[str, Reading]:
    """What only GPM knows, as unknown."""
    return {
        name: Reading(label, unit, None, f"nvmlGpmMetricsGet({metric})", "needs GPM: a Hopper or newer GPU")
        for name, label, unit, metric in _GPM[1:]
    }
