"""What a GPU costs per hour, by its NVML name: public on-demand list prices, which estimate what is truly paid."""

import re
from dataclasses import dataclass


@dataclass(frozen=True)
class Price:
    """USD per hour of one GPU, with the machine around it; whose list price (provider and product), of which month."""

    usd_per_hour: float
    source: str
    date: str


_AWS = "AWS EC2 on-demand, us-east-1, Linux"
_COREWEAVE = "CoreWeave on-demand"
_LAMBDA = "Lambda on-demand"
_RUNPOD = "RunPod on-demand, secure cloud"

# Where a machine has several GPUs, its price is shared out evenly. A GPU that nobody lists publicly is left out.
PRICES: tuple[tuple[str, Price], ...] = (
    (r"GB200", Price(42.00 / 4, f"{_COREWEAVE}, GB200 NVL72, ¼ of a machine of 4", "2025-06")),
    (r"B200", Price(68.80 / 8, f"{_COREWEAVE}, HGX B200, ⅛ of a machine of 8", "2025-06")),
    (r"GH200 .*", Price(1.49, f"{_LAMBDA}, 1× GH200 96 GB", "2025-06")),
    (r"H200", Price(50.44 / 8, f"{_COREWEAVE}, HGX H200, ⅛ of a machine of 8", "2025-06")),
    (r"H100 80GB HBM3", Price(49.24 / 8, f"{_COREWEAVE}, HGX H100, ⅛ of a machine of 8", "2025-06")),
    (r"H100 PCIe", Price(2.49, f"{_LAMBDA}, 1× H100 PCIe", "2025-06")),
    (r"H100 NVL", Price(6.98, "Azure pay-as-you-go, East US, Linux, NC40ads H100 v5", "2025-06")),
    (r"A100-SXM4-80GB", Price(21.60 / 8, f"{_COREWEAVE}, HGX A100 80 GB, ⅛ of a machine of 8", "2025-06")),
    (r"A100 80GB PCIe", Price(1.64, f"{_RUNPOD}, A100 PCIe 80 GB", "2025-06")),
    (r"A100.*40GB", Price(1.29, f"{_LAMBDA}, 1× A100 40 GB", "2025-06")),
    (r"L40S", Price(18.00 / 8, f"{_COREWEAVE}, L40S, ⅛ of a machine of 8", "2025-06")),
    (r"L40", Price(10.00 / 8, f"{_COREWEAVE}, L40, ⅛ of a machine of 8", "2025-06")),
    (r"L4", Price(0.8048, f"{_AWS}, g6.xlarge", "2025-06")),
    (r"A10G", Price(1.006, f"{_AWS}, g5.xlarge", "2025-06")),
    (r"A10", Price(0.75, f"{_LAMBDA}, 1× A10", "2025-06")),
    (r"T4", Price(0.526, f"{_AWS}, g4dn.xlarge", "2025-06")),
    (r"V100-SXM2-16GB", Price(3.06, f"{_AWS}, p3.2xlarge", "2025-06")),
    (
        r"RTX PRO 6000 Blackwell Server Edition",
        Price(20.00 / 8, f"{_COREWEAVE}, RTX PRO 6000, ⅛ of a machine of 8", "2025-06"),
    ),
    (r"RTX PRO 6000 Blackwell Workstation Edition", Price(1.79, f"{_RUNPOD}, RTX PRO 6000", "2025-07")),
    (r"RTX 6000 Ada Generation", Price(0.77, f"{_RUNPOD}, RTX 6000 Ada", "2025-06")),
    (r"RTX A6000", Price(0.80, f"{_LAMBDA}, 1× RTX A6000", "2025-06")),
    (r"RTX 5090", Price(0.94, f"{_RUNPOD}, RTX 5090", "2025-06")),
    (r"RTX 4090", Price(0.69, f"{_RUNPOD}, RTX 4090", "2025-06")),
)

_BRANDS = re.compile(r"(NVIDIA|Tesla|GeForce)\s+")


def short_name(device_name: str) -> str:
    """The NVML name without the brands in front: "NVIDIA GeForce RTX 4090" is "RTX 4090"."""
    return _BRANDS.sub("", device_name).strip()


def price_of(device_name: str) -> Price | None:
    """The list price of a GPU by its NVML name; `None` for one that isn't in the table, and for a MIG slice."""
    name = short_name(device_name)
    if "MIG" in name.split():
        return None
    return next((price for pattern, price in PRICES if re.fullmatch(pattern, name)), None)
