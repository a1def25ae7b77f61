"""`llmconsole key`, and what the command says to an address that others reach."""

import re
from datetime import UTC, datetime
from pathlib import Path

import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from console.cli.app import app
from engine_host.api.types import PortCommand
from engine_host.gateway.access import given_keys, is_loopback
from engine_host.gateway.keys import KEYS_FILE, KeyStore
from engine_host.options import HostOptions
from engine_host.ports import Ports

KEY = r"llmc-[a-z0-9]{8}-[A-Za-z0-9_-]{43}"


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    for variable in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(variable, str(tmp_path / variable))
    monkeypatch.delenv("VLLM_API_KEY", raising=False)
    return tmp_path


@pytest.fixture
def store() -> KeyStore:
    """The keys as the host sees them."""
    return KeyStore(HostOptions().data_dir / KEYS_FILE)


@pytest.fixture
def ran(monkeypatch: pytest.MonkeyPatch) -> list[HostOptions]:
    """What the host was asked to run, which it isn't."""
    asked: list[HostOptions] = []
    monkeypatch.setattr("console.cli.launch._ready", lambda options, as_json: True)

    def note(options: HostOptions, screen: object) -> int:
        asked.append(options)
        return 0

    monkeypatch.setattr("engine_host.main.run", note)
    return asked


def run(*arguments: str) -> Result:
    return CliRunner().invoke(app, arguments)


def test_a_new_key_stands_alone_on_standard_output(store: KeyStore) -> None:
    made = run(
        *("key", "create", "alice", "--tier", "premium", "--model", "a", "--model", "b", "--admin"),
        *("--expires", "2099-12-31", "--requests-per-minute", "1", "--tokens-per-minute", "2"),
        *("--tokens-per-day", "3", "--usd-per-day", "0.5"),
    )
    assert made.exit_code == 0
    assert re.fullmatch(rf"{KEY}\n", made.stdout)
    assert "not shown again" in made.stderr
    assert "2099-12-31" in made.stderr
    caller = store.lookup(made.stdout.strip())
    assert (caller.name, caller.tier, caller.models, caller.admin) == ("alice", "premium", frozenset("ab"), True)
    limits = caller.limits
    assert (limits.requests_per_minute, limits.tokens_per_minute, limits.tokens_per_day) == (1, 2, 3)
    assert limits.usd_per_day == 0.5
    assert store.list()[0].expires == datetime(2099, 12, 31, tzinfo=UTC).timestamp()


def test_a_key_may_end_after_a_time(store: KeyStore) -> None:
    run("key", "create", "alice", "--expires", "30d")
    (record,) = store.list()
    assert record.expires == pytest.approx(record.created + 30 * 86_400, abs=60)


def test_the_list_shows_no_secret(store: KeyStore) -> None:
    assert "no keys" in run("key", "list").stdout
    text = run("key", "create", "alice", "--tokens-per-day", "5000").stdout.strip()
    run("key", "create", "bob")
    run("key", "revoke", "bob")
    listed = run("key", "list").stdout
    assert text.rpartition("-")[2] not in listed
    alice, bob = listed.splitlines()[1:]
    assert store.list()[0].id in alice
    assert "5,000 tokens/day" in alice
    assert "revoked" in bob


def test_a_key_is_revoked_and_rotated_by_its_name(store: KeyStore) -> None:
    old = run("key", "create", "alice").stdout.strip()
    rotated = run("key", "rotate", "alice", "--grace", "1h")
    assert re.fullmatch(rf"{KEY}\n", rotated.stdout)
    assert store.lookup(old) == store.lookup(rotated.stdout.strip())
    revoked = run("key", "revoke", store.list()[0].id)
    assert (revoked.exit_code, "alice" in revoked.stdout) == (0, True)
    assert all(record.revoked for record in store.list())


@pytest.mark.parametrize(
    ("arguments", "code", "said"),
    [
        (["create", "alice", "--expires", "yesterday"], 2, "neither a time"),
        (["create", "alice", "--expires", "2001-01-01"], 1, "expired already"),
        (["create", "alice", "--usd-per-day", "0"], 2, "above 0"),
        (["create", "alice", "--tier", "gold"], 0, 'No profile has the tier "gold"'),
        (["create", " "], 1, "name"),
        (["rotate", "alice", "--grace", "soon"], 2, "is no time"),
        (["rotate", "alice"], 1, "There are no keys"),
        (["revoke", "alice"], 1, "There are no keys"),
    ],
)
def test_what_is_wrong_is_said(arguments: list[str], code: int, said: str) -> None:
    done = run("key", *arguments)
    assert done.exit_code == code
    assert said in " ".join(done.stderr.split())


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.0.7"])
def test_others_are_not_let_in_without_a_key(ran: list[HostOptions], host: str) -> None:
    refused = run("serve", "--host", host)
    assert (refused.exit_code, ran) == (1, [])
    assert "llmconsole key create" in refused.stderr
    assert "--allow-without-key" in refused.stderr
    assert run("serve", "--host", host, "--allow-without-key").exit_code == 0
    run("key", "create", "alice")
    assert run("serve", "--host", host).exit_code == 0
    assert [options.allow_without_key for options in ran] == [True, False]


def test_a_profile_decides_too(ran: list[HostOptions]) -> None:
    folder = HostOptions().config_dir / "profiles"
    folder.mkdir(parents=True)
    for required in ("never", "always"):
        (folder / f"{required}.toml").write_text(f'[keys]\nrequired = "{required}"\n')
    assert run("serve", "--host", "0.0.0.0", "--profile", "always").exit_code == 0
    run("key", "create", "alice")
    refused = run("serve", "--host", "0.0.0.0", "--profile", "never")
    assert refused.exit_code == 1
    assert 'keys.required = "never"' in refused.stderr


@pytest.mark.parametrize("host", ["127.0.0.1", "::1", "localhost"])
def test_this_machine_needs_no_key(ran: list[HostOptions], host: str) -> None:
    assert run("serve", "--host", host).exit_code == 0


def test_the_keys_of_vllm_are_keys(ran: list[HostOptions], monkeypatch: pytest.MonkeyPatch) -> None:
    assert run("serve", "--host", "0.0.0.0", "--api-key", "secret").exit_code == 0
    monkeypatch.setenv("VLLM_API_KEY", "secret")
    assert run("serve", "--host", "0.0.0.0").exit_code == 0


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["--api-key", "one", "two", "--max-model-len", "5"], {"one", "two"}),
        (["--api_key=one"], {"one"}),
        (["--api-key", ""], set()),
        (["--served-model-name", "x"], {"of the environment"}),
        (["--api-key", "--max-model-len", "5"], {"of the environment"}),
    ],
)
def test_keys_are_read_from_the_options_of_vllm(arguments: list[str], expected: set[str]) -> None:
    assert given_keys(arguments, {"VLLM_API_KEY": "of the environment"}) == expected


def test_names_and_addresses_of_this_machine() -> None:
    assert all(is_loopback(host) for host in ("127.0.0.1", "127.3.2.1", "::1", "localhost", "::ffff:127.0.0.1"))
    assert not any(is_loopback(host) for host in ("0.0.0.0", "::", "10.0.0.1", "::ffff:10.0.0.1", "0"))


async def test_the_port_is_not_moved_to_where_others_reach_it() -> None:
    problem: str | None = "No key."
    ports = Ports(web.Application, "127.0.0.1", 0, lambda host: problem)
    try:
        assert (await ports.open_port()).ok
        before = ports.info
        reply = await ports.move(PortCommand("0.0.0.0", 0))
        assert (reply.ok, reply.message) == (False, "No key.")
        assert ports.info == before
        assert (await ports.move(PortCommand("127.0.0.1", 0))).ok
        problem = None
        assert (await ports.move(PortCommand("0.0.0.0", 0))).ok
    finally:
        await ports.close()
