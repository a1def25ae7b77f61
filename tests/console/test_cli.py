"""The command line as a user types it: what reaches the host, what is said, and the exit code."""

import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from console import __main__ as command
from engine_host.options import HostOptions

Cli = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty home."""
    for variable, folder in {"XDG_DATA_HOME": "data", "XDG_CONFIG_HOME": "config", "XDG_STATE_HOME": "state"}.items():
        monkeypatch.setenv(variable, str(tmp_path / folder))
    monkeypatch.setenv("HOME", str(tmp_path))
    return tmp_path


@pytest.fixture
def cli(home: Path) -> Cli:
    """Run `llmconsole` in a process of its own, with no terminal."""

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "console", *arguments],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
            env=os.environ | {"COLUMNS": "200"},
        )

    return run


@pytest.fixture
def model(home: Path) -> Path:
    """A folder that can be given as a model."""
    folder = home / "a-model"
    folder.mkdir()
    return folder


class HostCalls:
    """Stands in for the host: notes what it is asked to run."""

    def __init__(self) -> None:
        self.options: HostOptions | None = None
        self.screen: Any = None

    def run(self, options: HostOptions, screen: Any) -> int:
        self.options, self.screen = options, screen
        return 7


@pytest.fixture
def host(home: Path, monkeypatch: pytest.MonkeyPatch) -> HostCalls:
    calls = HostCalls()
    monkeypatch.setattr("engine_host.main.run", calls.run)
    return calls


def run_here(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    """Run the command in this process; returns its exit code."""
    monkeypatch.setattr(sys, "argv", ["llmconsole", *arguments])
    with pytest.raises(SystemExit) as end:
        command.main()
    return int(end.value.code or 0)


def pretend_terminal(monkeypatch: pytest.MonkeyPatch, term: str = "xterm-256color") -> None:
    monkeypatch.setattr("sys.stdin.isatty", lambda: True, raising=False)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", term)


@pytest.mark.parametrize("beginning", [[], ["console"]])
def test_the_console_is_the_default_and_gets_a_screen(
    monkeypatch: pytest.MonkeyPatch, host: HostCalls, model: Path, beginning: list[str]
) -> None:
    pretend_terminal(monkeypatch)
    code = run_here(monkeypatch, *beginning, "--model", str(model), "--port", "9001", "--profile", "throughput")
    assert code == 7
    assert host.options is not None
    assert (host.options.model, host.options.port, host.options.profile) == (str(model), 9001, "throughput")
    assert host.screen == (sys.executable, "-m", "console.screen", "--socket", "{socket}")


def test_serve_passes_the_engines_options_on_as_they_were_typed(
    monkeypatch: pytest.MonkeyPatch, host: HostCalls, model: Path
) -> None:
    passed = ["--served-model-name", "chat", "--max-model-len=4096", "-tp", "2", "--chat-template", "{{ [x] }}"]
    code = run_here(monkeypatch, "serve", *passed, "--model", str(model), "--enable-auto-tool-choice", "--host", "::1")
    assert code == 7
    assert host.options is not None
    assert host.options.serve_args == (*passed, "--enable-auto-tool-choice")
    assert (host.options.model, host.options.host) == (str(model), "::1")
    assert host.screen is None


def test_folders_follow_the_users_directories(
    monkeypatch: pytest.MonkeyPatch, host: HostCalls, home: Path, model: Path
) -> None:
    run_here(monkeypatch, "serve", "--model", str(model))
    assert host.options is not None
    assert host.options.data_dir == home / "data" / "llmconsole"
    assert host.options.config_dir == home / "config" / "llmconsole"


def test_the_default_model_is_prepared_before_the_host_runs(monkeypatch: pytest.MonkeyPatch, host: HostCalls) -> None:
    prepared: list[Path] = []
    monkeypatch.setattr(
        "engine_host.models.store.ModelStore.prepare_default", lambda store, _: prepared.append(store.root)
    )
    assert run_here(monkeypatch, "serve") == 7
    assert host.options is not None
    assert prepared == [host.options.data_dir / "models"]


def test_an_interrupted_preparation_starts_nothing(
    monkeypatch: pytest.MonkeyPatch, host: HostCalls, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("engine_host.models.store.ModelStore.prepare_default", interrupted)
    assert run_here(monkeypatch, "serve") == 130
    assert host.options is None
    assert "nothing half-made was kept" in capsys.readouterr().err


@pytest.mark.parametrize("term", ["dumb", ""])
def test_a_terminal_that_cannot_show_a_screen_is_refused(
    monkeypatch: pytest.MonkeyPatch, host: HostCalls, capsys: pytest.CaptureFixture[str], term: str
) -> None:
    pretend_terminal(monkeypatch, term)
    assert run_here(monkeypatch) == 2
    assert host.options is None
    assert "llmconsole serve" in capsys.readouterr().err


def test_an_unexpected_error_is_a_sentence(
    monkeypatch: pytest.MonkeyPatch, model: Path, home: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def broken(*_: object) -> int:
        raise RuntimeError("out of [/red] luck\x1b[31m")

    monkeypatch.setattr("engine_host.main.run", broken)
    assert run_here(monkeypatch, "serve", "--model", str(model)) == 1
    said = capsys.readouterr().err
    assert "RuntimeError: out of [/red] luck\\x1b[31m" in said
    assert said.count("\n") == 1


WRONG = [
    ((), 2, "llmconsole serve"),
    (("serv",), 2, "Did you mean 'serve'"),
    (("serve", "--port", "70000"), 2, "--port"),
    (("serve", "--port", "http"), 2, "--port"),
    (("serve", "my-model"), 2, "--model"),
    (("serve", "--model", "no-such-model"), 1, 'no model and no folder "no-such-model"'),
    (("serve", "--profile", "balancd"), 1, "Did you mean balanced?"),
    (("model", "import", "/no/such.gguf"), 1, "/no/such.gguf"),
    (("model", "show", "x"), 1, '"x"'),
    (("model", "remove", "../x"), 1, '"../x"'),
    (("profile", "show", "x"), 1, '"x"'),
    (("profile", "check", "x"), 1, '"x"'),
]


@pytest.mark.parametrize(("arguments", "code", "sentence"), WRONG, ids=lambda value: str(value)[:40])
def test_a_wrong_request_is_a_sentence_on_stderr(
    cli: Cli, arguments: tuple[str, ...], code: int, sentence: str
) -> None:
    ran = cli(*arguments)
    assert ran.returncode == code
    assert sentence in ran.stderr
    assert "Traceback" not in ran.stderr
    assert ran.stdout == ""


def test_profile_list_shows_the_good_and_names_the_bad(cli: Cli, home: Path) -> None:
    folder = home / "config" / "llmconsole" / "profiles"
    folder.mkdir(parents=True)
    (folder / "bad.toml").write_text("[scheduler]\ntoken_bugdet = 1\n")
    (folder / "[red]mine.toml").write_text('description = "a [/b] \\u001b[31m c"\n')
    ran = cli("profile", "list")
    assert ran.returncode == 0
    assert "balanced" in ran.stdout
    assert re.search(r"\[red\]mine +yours +a \[/b\] \\x1b\[31m c", ran.stdout)
    assert f"{folder}/bad.toml:2: scheduler.token_bugdet: unknown key. Did you mean token_budget?" in ran.stderr


def test_profile_check_exits_with_one_and_the_place(cli: Cli, home: Path) -> None:
    file = home / "mine.toml"
    file.write_text("[engine]\nblock_size = 'x'\nmax_activ = 3\n")
    ran = cli("profile", "check", str(file))
    assert ran.returncode == 1
    assert f"{file}:2: engine.block_size:" in ran.stderr
    assert f"{file}:3: engine.max_activ:" in ran.stderr
    assert cli("profile", "check").returncode == 0


def test_profile_show_tells_value_unit_and_effect(cli: Cli) -> None:
    shown = cli("profile", "show", "cpu-tiny").stdout
    assert re.search(r"engine\.kv_cache_memory +536870912 +bytes +rebuild", shown)
    assert re.search(r"scheduler\.token_budget +1024 +tokens +live", shown)


def test_an_empty_store_says_so_and_the_version_is_the_packages(cli: Cli) -> None:
    assert "no model yet" in cli("model", "list").stdout
    assert re.fullmatch(r"llmconsole \d+\.\d+\.\d+\n", cli("--version").stdout)


def test_help_lists_the_commands_and_the_default_ones_options(cli: Cli) -> None:
    assert all(word in cli("--help").stdout for word in ("console", "serve", "model", "profile"))
    assert all(word in cli("console", "--help").stdout for word in ("--model", "--profile", "--host", "--port"))
