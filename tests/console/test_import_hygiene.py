"""What the command may load before it has something to show. Pinned on the module list, not on a clock."""

import subprocess
import sys

import pytest

HEAVY = {"torch", "vllm", "transformers", "numpy", "aiohttp", "textual", "rich", "uvloop", "asyncio"}


def loaded_by(code: str) -> set[str]:
    """The top-level modules a fresh interpreter has loaded after `code`."""
    report = "import sys; print('\\n' + ' '.join({name.partition('.')[0] for name in sys.modules}))"
    ran = subprocess.run([sys.executable, "-c", f"{code}\n{report}"], capture_output=True, text=True, check=True)
    return set(ran.stdout.splitlines()[-1].split())


@pytest.mark.parametrize("arguments", [["--help"], ["console", "--help"], ["serve", "--help"], ["--version"]])
def test_help_and_version_load_nothing_heavy(arguments: list[str]) -> None:
    run = f"import sys; sys.argv = ['llmconsole', *{arguments!r}]\nfrom console.__main__ import main"
    loaded = loaded_by(f"{run}\ntry: main()\nexcept SystemExit as end: assert not end.code, end.code")
    assert "console" in loaded
    assert not loaded & HEAVY


def test_options_and_model_store_load_nothing_heavy() -> None:
    loaded = loaded_by(
        "from engine_host.options import HostOptions\n"
        "from engine_host.models.store import ModelStore, default_source\n"
        "ModelStore(HostOptions().data_dir / 'nowhere').default_model(); default_source()"
    )
    assert not loaded & (HEAVY | {"pydantic"})


def test_the_four_packages_can_be_imported_for_nothing() -> None:
    loaded = loaded_by("import console, engine_host, profiles, widgets, engine_host.models, engine_host.api")
    assert not loaded & (HEAVY | {"pydantic"})
