"""What a device can do at most, for the roofline: by the maker's data sheet, or as it was measured here."""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_host.telemetry.prices import short_name
from profiles.files import beside

PEAKS_FILE = "peaks.json"
"""What the calibration wrote, in the data folder: {device: {dtype: FLOP/s, "bandwidth": bytes/s, "measured": date}}."""


@dataclass(frozen=True)
class Peaks:
    """Dense FLOP/s in one data type and bytes/s to and from the device's memory, and where they are from.

    Either may be `None`: a data sheet may not name the data type, and so may a calibration.
    """

    flops: float | None
    bandwidth: float | None
    source: str


@dataclass(frozen=True)
class Sheet:
    """Figures of a data sheet: dense TFLOP/s (half those "with sparsity") and GB/s (10⁹ bytes).

    `half` is float16 with float32 sums, as PyTorch multiplies; `bfloat16` is the same but where the chip lacks it.
    `fp8` is with float32 sums too. float32 is that of the CUDA cores: TF32 is off in PyTorch and vLLM unless asked for.
    """

    half: float
    float32: float
    gb_per_s: float
    source: str
    fp8: float | None = None
    bfloat16: bool = True

    def tflops(self, dtype: str) -> float | None:
        if dtype == "float32":
            return self.float32
        if dtype == "float16" or (dtype == "bfloat16" and self.bfloat16):
            return self.half
        return self.fp8 if dtype.startswith("fp8") else None


_HOPPER = "NVIDIA H100 Tensor Core GPU data sheet, 2024"
_H200 = "NVIDIA H200 Tensor Core GPU data sheet, 2024"
_GH200 = "NVIDIA GH200 Grace Hopper Superchip data sheet, 2024"
_BLACKWELL = "NVIDIA Blackwell data sheet, 2025"
_A100 = "NVIDIA A100 Tensor Core GPU data sheet, 2022"
_ADA = "NVIDIA Ada GPU Architecture white paper, 2023"
_RTX_BLACKWELL = "NVIDIA RTX Blackwell GPU Architecture white paper, 2025"
_RTX_PRO = "NVIDIA RTX PRO Blackwell GPU Architecture white paper, 2025"
_VOLTA = "NVIDIA V100 Tensor Core GPU data sheet, 2020"

SHEETS: tuple[tuple[str, Sheet], ...] = (
    (r"GB200", Sheet(2500, 80, 8000, _BLACKWELL, fp8=5000)),
    (r"B200", Sheet(2250, 75, 8000, _BLACKWELL, fp8=4500)),
    (r"GH200 480GB", Sheet(990, 67, 4000, _GH200, fp8=1979)),
    (r"GH200 144G.*", Sheet(990, 67, 4900, _GH200, fp8=1979)),
    (r"H200", Sheet(989.5, 67, 4800, _H200, fp8=1979)),
    (r"H200 NVL", Sheet(835.5, 60, 4800, _H200, fp8=1670.5)),
    (r"H100 80GB HBM3", Sheet(989.5, 67, 3350, _HOPPER, fp8=1979)),
    (r"H100 NVL", Sheet(835.5, 60, 3900, _HOPPER, fp8=1670.5)),
    (r"H100 PCIe", Sheet(756.5, 51, 2000, "NVIDIA H100 Tensor Core GPU data sheet, 2022", fp8=1513)),
    (r"A100-SXM.-80GB", Sheet(312, 19.5, 2039, _A100)),
    (r"A100 80GB PCIe", Sheet(312, 19.5, 1935, _A100)),
    (r"A100.*40GB", Sheet(312, 19.5, 1555, "NVIDIA A100 Tensor Core GPU data sheet, 2020")),
    (r"A10", Sheet(125, 31.2, 600, "NVIDIA A10 Tensor Core GPU data sheet, 2021")),
    (r"A40", Sheet(149.7, 37.4, 696, "NVIDIA A40 data sheet, 2021")),
    (r"A30", Sheet(165, 10.3, 933, "NVIDIA A30 Tensor Core GPU data sheet, 2021")),
    (r"L40S", Sheet(362.05, 91.6, 864, "NVIDIA L40S data sheet, 2023", fp8=733)),
    (r"L40", Sheet(181.05, 90.5, 864, "NVIDIA L40 data sheet, 2023", fp8=362)),
    (r"L4", Sheet(121, 30.3, 300, "NVIDIA L4 Tensor Core GPU data sheet, 2023", fp8=242.5)),
    (r"T4", Sheet(65, 8.1, 320, "NVIDIA T4 Tensor Core GPU data sheet, 2019", bfloat16=False)),
    (r"V100-SXM2-..GB", Sheet(125, 15.7, 900, _VOLTA, bfloat16=False)),
    (r"V100-PCIE-..GB", Sheet(112, 14, 900, _VOLTA, bfloat16=False)),
    (r"V100S-PCIE-32GB", Sheet(130, 16.4, 1134, _VOLTA, bfloat16=False)),
    (r"RTX A6000", Sheet(154.8, 38.7, 768, "NVIDIA Ampere GA102 GPU Architecture white paper, 2021")),
    (r"RTX 6000 Ada Generation", Sheet(364.2, 91.1, 960, _ADA, fp8=728.5)),
    (r"RTX 4090", Sheet(165.2, 82.6, 1008, _ADA, fp8=330.3)),
    (r"RTX 5090", Sheet(209.5, 104.8, 1792, _RTX_BLACKWELL, fp8=419)),
    (r"RTX PRO 6000 Blackwell Workstation Edition", Sheet(503.8, 126, 1792, _RTX_PRO, fp8=1007.6)),
    (r"H20", Sheet(148, 44, 4000, "NVIDIA H20 product brief, 2023", fp8=296)),
)


def peaks_of(device_name: str, dtype: str) -> Peaks | None:
    """A GPU's peaks by its NVML name, dense, for "bfloat16", "float16", "float32" or "fp8…".

    `None` for a GPU that isn't in the table and for a MIG slice, which has a share of them that no data sheet gives.
    """
    sheet = next((sheet for pattern, sheet in SHEETS if re.fullmatch(pattern, short_name(device_name))), None)
    if sheet is None:
        return None
    tflops = sheet.tflops(dtype)
    return Peaks(None if tflops is None else tflops * 1e12, sheet.gb_per_s * 1e9, sheet.source)


def load_calibration(path: Path, device_name: str, dtype: str) -> Peaks | None:
    """What `llmconsole calibrate` measured on this device, from its file; `None` without the file or the device.

    Raises `ValueError` with a sentence if the file can't be understood.
    """
    device = _calibrations(path).get(device_name)
    if device is None:
        return None
    try:
        flops, bandwidth = device.get(dtype), device.get("bandwidth")
        return Peaks(
            None if flops is None else float(flops),
            None if bandwidth is None else float(bandwidth),
            f"calibration of {device['measured']}",
        )
    except (AttributeError, KeyError, TypeError, ValueError):
        raise ValueError(_not_understood(path)) from None


def save_calibration(path: Path, device_name: str, measured: dict[str, float | str]) -> None:
    """Keep what was measured on a device beside what is known of others. Raises `OSError` and `ValueError`."""
    known = _calibrations(path) | {device_name: measured}
    path.parent.mkdir(parents=True, exist_ok=True)
    with beside(path) as new:
        new.write_text(json.dumps(known, indent=2) + "\n")


def _calibrations(path: Path) -> dict[str, Any]:
    try:
        known = json.loads(path.read_bytes())
    except FileNotFoundError:
        return {}
    except ValueError:
        raise ValueError(_not_understood(path)) from None
    if not isinstance(known, dict):
        raise ValueError(_not_understood(path))
    return known


def _not_understood(path: Path) -> str:
    return f"{path} is no calibration: remove it and run llmconsole calibrate again."
