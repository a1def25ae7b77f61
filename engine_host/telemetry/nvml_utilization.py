"""How busy a GPU is: the best measure that NVML offers for it, under the name of what was measured."""

from typing import Any, Protocol

from engine_host.telemetry.readings import NotYet, fraction


class UtilizationMeter(Protocol):
    """One way to measure. `read` raises `NVMLError`, `NotYet` or `Implausible`."""

    label: str
    source: str

    def read(self) -> float:
        """The share (0 to 1) since the last read, or over NVML's own sampling period."""

    def close(self) -> None:
        """Give back what NVML allocated."""


class GpmMeter:
    """Share of the SMs that were busy, averaged between two reads (GPM: Hopper and later). Also for a MIG slice."""

    source = "nvmlGpmMetricsGet(SM_UTIL)"

    def __init__(self, nvml: Any, gpu: Any, gpu_instance: int | None) -> None:
        self.label = "SM active" if gpu_instance is None else "SM active (slice)"
        self._nvml = nvml
        self._gpu = gpu
        self._gpu_instance = gpu_instance
        if not nvml.nvmlGpmQueryDeviceSupport(gpu).isSupportedDevice:
            raise nvml.NVMLError(nvml.NVML_ERROR_NOT_SUPPORTED)
        self._before = nvml.nvmlGpmSampleAlloc()
        self._after = nvml.nvmlGpmSampleAlloc()
        try:
            self._sample(self._before)
        except nvml.NVMLError:
            self.close()
            raise
        self._fresh = True

    def _sample(self, into: Any) -> None:
        if self._gpu_instance is None:
            self._nvml.nvmlGpmSampleGet(self._gpu, into)
        else:
            self._nvml.nvmlGpmMigSampleGet(self._gpu, self._gpu_instance, into)

    def read(self) -> float:
        """The share since the last read."""
        if self._fresh:
            # The first sample was taken moments ago: a difference over so short a time is noise.
            self._fresh = False
            raise NotYet
        self._sample(self._after)
        request = self._nvml.c_nvmlGpmMetricsGet_t()
        request.version = self._nvml.NVML_GPM_METRICS_GET_VERSION
        request.numMetrics = 1
        request.sample1, request.sample2 = self._before, self._after
        request.metrics[0].metricId = self._nvml.NVML_GPM_METRIC_SM_UTIL
        self._before, self._after = self._after, self._before
        metric = self._nvml.nvmlGpmMetricsGet(request).metrics[0]
        if metric.nvmlReturn != self._nvml.NVML_SUCCESS:
            raise self._nvml.NVMLError(metric.nvmlReturn)
        return fraction(metric.value, self.source)

    def close(self) -> None:
        """Give back both samples."""
        for sample in (self._before, self._after):
            self._nvml.nvmlGpmSampleFree(sample)


class ProcessMeter:
    """SM utilization summed over the processes on the GPU, over the driver's last sampling period."""

    label = "SM busy (processes)"
    source = "nvmlDeviceGetProcessUtilization"

    def __init__(self, nvml: Any, gpu: Any) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._seen = 0
        self._samples()
        self._fresh = True

    def _samples(self) -> list[int]:
        nvml = self._nvml
        try:
            samples = nvml.nvmlDeviceGetProcessUtilization(self._gpu, self._seen)
        except nvml.NVMLError as error:
            # Only processes with some utilization are listed: none listed means none was busy.
            if error.value in (nvml.NVML_SUCCESS, nvml.NVML_ERROR_NOT_FOUND):
                return []
            raise
        fresh = [sample for sample in samples if sample.timeStamp > self._seen]
        self._seen = max((sample.timeStamp for sample in fresh), default=self._seen)
        return [sample.smUtil for sample in fresh]

    def read(self) -> float:
        """The sum; processes sampled at slightly different times can add to more than the whole, which is cut off."""
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

    def __init__(self, nvml: Any, gpu: Any) -> None:
        self._nvml = nvml
        self._gpu = gpu
        nvml.nvmlDeviceGetUtilizationRates(gpu)

    def read(self) -> float:
        """The share."""
        return fraction(self._nvml.nvmlDeviceGetUtilizationRates(self._gpu).gpu, self.source)

    def close(self) -> None:
        """Nothing is held."""


def choose_meter(nvml: Any, gpu: Any, gpu_instance: int | None) -> UtilizationMeter:
    """The best meter that works on this GPU, or on the MIG slice `gpu_instance` of it.

    Raises the `NVMLError` of the last one tried. A slice has GPM or nothing: the others measure the whole GPU.
    """
    try:
        return GpmMeter(nvml, gpu, gpu_instance)
    except nvml.NVMLError:
        if gpu_instance is not None:
            raise
    try:
        return ProcessMeter(nvml, gpu)
    except nvml.NVMLError:
        return KernelMeter(nvml, gpu)
