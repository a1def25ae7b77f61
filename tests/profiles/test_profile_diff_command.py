"""`llmconsole profile diff`, as it is typed."""

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from console.cli.profiles import app

SHAPE = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


@pytest.fixture
def mine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The user's folder of profiles."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    folder = tmp_path / "llmconsole" / "profiles"
    folder.mkdir(parents=True)
    return folder


@pytest.fixture
def model(tmp_path: Path) -> Path:
    (tmp_path / "config.json").write_text(json.dumps(SHAPE))
    return tmp_path


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["diff", *arguments])


def row(result: Result, name: str) -> list[str]:
    return next(line.removeprefix(name).split() for line in result.output.splitlines() if line.startswith(name))


def test_two_profiles_show_what_is_live_and_what_is_a_rebuild(mine: Path) -> None:
    (mine / "next.toml").write_text("[engine]\ngpu_memory_utilization = 0.9\n[scheduler]\ntoken_budget = 5000\n")
    (mine / "far.toml").write_text("[scheduler]\ntoken_budget = 9000\n")
    live = run("next", "far")
    assert row(live, "scheduler.token_budget") == ["5000", "9000", "tokens", "live"]
    assert "live" in live.output.splitlines()[-1]
    rebuild = run("balanced", "far")
    assert row(rebuild, "scheduler.token_budget")[:4] == ["4096", "9000", "tokens", "rebuild"]
    assert "The engine is rebuilt." in rebuild.output


def test_one_profile_is_compared_with_the_default(mine: Path) -> None:
    (mine / "mine.toml").write_text("[scheduler]\nwatermark = 0.25\n")
    assert row(run("mine"), "scheduler.watermark") == ["0.0", "0.25", "fraction", "live"]


def test_a_model_adds_the_memory_and_one_that_is_too_large_for_it_is_refused(mine: Path, model: Path) -> None:
    (mine / "large.toml").write_text('[engine]\nblock_size = 32\nkv_cache_memory = "1GiB"\n')
    (mine / "tight.toml").write_text('[engine]\nblock_size = 32\nkv_cache_memory = "32MiB"\n')
    fits = run("tight", "large", "--model", str(model))
    assert row(fits, "KV pages") == ["44", "pages", "1,455", "pages"]
    assert row(fits, "weights") == ["n/a", "n/a"]
    assert fits.exit_code == 0
    refused = run("large", "tight", "--model", str(model))
    assert "engine.max_model_len = 1408" in refused.output
    assert refused.exit_code == 1


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("balancd",), "Did you mean balanced?"),
        (("balanced", "throughput", "--model", "nothing-here"), "no model"),
        (("balanced", "throughput", "--model", "owner/name"), "no config.json"),
    ],
)
def test_what_is_not_there_is_a_sentence(mine: Path, arguments: tuple[str, ...], sentence: str) -> None:
    result = run(*arguments)
    assert sentence in result.output
    assert result.exit_code == 1
