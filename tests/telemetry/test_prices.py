"""List prices are found by the names that NVML gives."""

from pathlib import Path

import pytest

from engine_host.telemetry.prices import PRICES, price_of

NAMES = [
    "NVIDIA H200",
    "NVIDIA H100 80GB HBM3",
    "NVIDIA H100 PCIe",
    "NVIDIA H100 NVL",
    "NVIDIA A100-SXM4-40GB",
    "NVIDIA A100-PCIE-40GB",
    "NVIDIA A100-SXM4-80GB",
    "NVIDIA A100 80GB PCIe",
    "NVIDIA L40S",
    "NVIDIA L4",
    "NVIDIA A10",
    "NVIDIA A10G",
    "Tesla T4",
    "Tesla V100-SXM2-16GB",
    "NVIDIA GeForce RTX 4090",
    "NVIDIA GeForce RTX 5090",
    "NVIDIA RTX 6000 Ada Generation",
    "NVIDIA RTX PRO 6000 Blackwell Server Edition",
    "NVIDIA B200",
    "NVIDIA GB200",
    "NVIDIA GH200 480GB",
    "NVIDIA RTX A6000",
]


@pytest.mark.parametrize("name", NAMES)
def test_every_listed_gpu_has_a_price_with_source_and_month(name: str) -> None:
    price = price_of(name)
    assert price is not None
    assert 0.1 < price.usd_per_hour < 20
    assert "," in price.source
    assert price.date.startswith("20")


def test_names_that_contain_each_other_are_told_apart() -> None:
    names = ("NVIDIA L4", "NVIDIA L40", "NVIDIA L40S", "NVIDIA A10", "NVIDIA A10G", "NVIDIA B200", "NVIDIA GB200")
    assert len({price_of(name) for name in names}) == len(names)


@pytest.mark.parametrize(
    "name",
    ["NVIDIA GeForce RTX 4090 Laptop GPU", "NVIDIA H100 80GB HBM3 MIG 1g.10gb", "NVIDIA GH200 480GB MIG 1g.12gb", ""],
)
def test_what_is_not_listed_has_no_price(name: str) -> None:
    assert price_of(name) is None


def test_the_documentation_has_the_same_prices() -> None:
    text = (Path(__file__).parents[2] / "docs" / "device.md").read_text()
    for _, price in PRICES:
        assert f"| {price.usd_per_hour:.2f} | {price.source} | {price.date} |" in text
