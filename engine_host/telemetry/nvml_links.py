"""What goes over a GPU's links, and how wide they are: PCIe and NVLink."""

from typing import Any

from engine_host.api.types import Reading
from engine_host.telemetry.nvml_library import Nvml
from engine_host.telemetry.readings import TWO_READINGS, Implausible, NotYet, Slowly

PCIE_EVERY_S = 5.0
"""NVML measures PCIe throughput while it is asked, about 20 ms a direction: it is asked this seldom."""

LINKS_EVERY_S = 10.0

MAX_NVLINKS = 18
"""NVML_NVLINK_MAX_LINKS: fourth generation (H100) and fifth (B200) have 18."""

BUSY = 0.1
"""A GPU busier than this needs its link at full speed."""

_ALL_LINKS = 0xFFFFFFFF
_KB = 1000
_KIB = 1024


class LinkMeter:
    """PCIe and NVLink of the whole GPU; `of` is appended to the labels, `delay_s` keeps slow calls of GPUs apart."""

    def __init__(self, nvml: Nvml, gpu: Any, of: str, delay_s: float) -> None:
        self._nvml = nvml
        self._gpu = gpu
        self._of = of
        self._pcie = Slowly(PCIE_EVERY_S, self._pcie_throughput, delay_s)
        self._links = Slowly(LINKS_EVERY_S, self._count_links, delay_s)
        self._most: tuple[int, int] | None = None
        self._slow_rounds = 0
        self._counters: tuple[float, int, int] | None = None

    def read(self, now: float, gpm: dict[str, Reading], busy: float | None) -> dict[str, Reading]:
        """The readings "pcie_link", "pcie_rx", "pcie_tx", "nvlink_links", "nvlink_rx", "nvlink_tx" at monotonic `now`.

        `gpm` has those that GPM measured already, `busy` is the utilization, 0 where the GPU says that it idles.
        """
        links = self._links.get(now)
        found = {"pcie_link": self._pcie_link(busy), "nvlink_links": links}
        found |= {name: gpm[name] for name in ("pcie_rx", "pcie_tx", "nvlink_rx", "nvlink_tx") if name in gpm}
        if _missing(gpm.get("pcie_rx")):
            found |= self._pcie.get(now)
        if _missing(gpm.get("nvlink_rx")):
            found |= self._nvlink_throughput(now, links)
        return found

    def _pcie_throughput(self) -> dict[str, Reading]:
        calls = self._nvml.calls
        source = f"nvmlDeviceGetPcieThroughput, every {PCIE_EVERY_S:.0f} s"

        def one(label: str, counter: int) -> Reading:
            return self._nvml.reading(
                f"{label}{self._of}",
                "bytes/s",
                source,
                lambda: calls.nvmlDeviceGetPcieThroughput(self._gpu, counter) * _KB,
            )

        return {
            "pcie_rx": one("PCIe received", calls.NVML_PCIE_UTIL_RX_BYTES),
            "pcie_tx": one("PCIe sent", calls.NVML_PCIE_UTIL_TX_BYTES),
        }

    def _pcie_link(self, busy: float | None) -> Reading:
        calls, gpu = self._nvml.calls, self._gpu
        label, source = f"PCIe link{self._of}", "nvmlDeviceGetCurrPcieLinkGeneration, nvmlDeviceGetCurrPcieLinkWidth"
        try:
            if self._most is None:
                self._most = calls.nvmlDeviceGetMaxPcieLinkGeneration(gpu), calls.nvmlDeviceGetMaxPcieLinkWidth(gpu)
            now = calls.nvmlDeviceGetCurrPcieLinkGeneration(gpu), calls.nvmlDeviceGetCurrPcieLinkWidth(gpu)
        except self._nvml.Error as error:
            return Reading(label, "words", None, source, self._nvml.why(error))
        below = now[0] < self._most[0] or now[1] < self._most[1]
        working = busy is not None and busy > BUSY
        # A link takes its time to speed up: one round below while busy says nothing yet.
        self._slow_rounds = self._slow_rounds + 1 if below and working else 0
        text = _link(now)
        if below:
            text += f" of {_link(self._most)}" + ("" if working else ", as links do at idle")
        return Reading(label, "words", float(self._slow_rounds > 1), source, text=text)

    def _count_links(self) -> Reading:
        calls = self._nvml.calls
        label, source = f"NVLinks active{self._of}", "nvmlDeviceGetNvLinkState"
        active = 0
        for link in range(MAX_NVLINKS):
            try:
                active += bool(calls.nvmlDeviceGetNvLinkState(self._gpu, link))
            except self._nvml.Error as error:
                why = self._nvml.why(error)
                if link == 0:
                    return Reading(label, "count", None, source, why)
                break  # The links are numbered without a gap: this GPU has no more.
        return Reading(label, "count", float(active), source)

    def _nvlink_throughput(self, now: float, links: Reading) -> dict[str, Reading]:
        source = "nvmlDeviceGetFieldValues(NVLINK_THROUGHPUT_DATA_RX, _TX)"
        why = links.why if not links.value else None
        rates: tuple[float | None, float | None] = (None, None)
        if not why and links.value == 0:
            why = "no NVLink is active"
        if not why:
            try:
                rates = self._nvlink_rates(now)
            except NotYet:
                why = TWO_READINGS
            except Implausible as error:
                why = str(error)
            except self._nvml.Error as error:
                why = self._nvml.why(error)
        labels = (f"NVLink received{self._of}", f"NVLink sent{self._of}")
        received, sent = (
            Reading(label, "bytes/s", rate, source, why) for label, rate in zip(labels, rates, strict=True)
        )
        return {"nvlink_rx": received, "nvlink_tx": sent}

    def _nvlink_rates(self, now: float) -> tuple[float, float]:
        calls = self._nvml.calls
        fields = (calls.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_RX, calls.NVML_FI_DEV_NVLINK_THROUGHPUT_DATA_TX)
        answers = calls.nvmlDeviceGetFieldValues(self._gpu, [(field, _ALL_LINKS) for field in fields])
        for answer in answers:
            if answer.nvmlReturn != calls.NVML_SUCCESS:
                raise calls.NVMLError(answer.nvmlReturn)
        received, sent = (int(answer.value.ullVal) for answer in answers)
        before, self._counters = self._counters, (now, received, sent)
        if before is None or now <= before[0]:
            raise NotYet
        if received < before[1] or sent < before[2]:
            raise Implausible("the counters went back")
        return tuple((new - old) * _KIB / (now - before[0]) for new, old in ((received, before[1]), (sent, before[2])))  # type: ignore[return-value]


def _missing(reading: Reading | None) -> bool:
    return reading is None or (reading.value is None and reading.why != TWO_READINGS)


def _link(link: tuple[int, int]) -> str:
    return f"Gen {link[0]} x{link[1]}"
