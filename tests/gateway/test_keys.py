"""The keys as the command changes them and a running host sees them."""

import hashlib
import logging
import sqlite3
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from engine_host.gateway.caller import Limits
from engine_host.gateway.key_file import KeyStoreError
from engine_host.gateway.keys import KeyStore
from engine_host.gateway.refusal import Refusal

START = 1_000_000.0


class Clock:
    def __init__(self) -> None:
        self.now = START

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "data" / "keys.sqlite"


@pytest.fixture
def command(path: Path, clock: Clock) -> KeyStore:
    """The store as the command opens it."""
    return KeyStore(path, clock)


@pytest.fixture
def host(path: Path, clock: Clock) -> KeyStore:
    """The store as a host that was started before has it open."""
    return KeyStore(path, clock)


def refused(store: KeyStore, text: str) -> str:
    with pytest.raises(Refusal) as caught:
        store.lookup(text)
    assert caught.value.status == 401
    assert caught.value.headers["WWW-Authenticate"] == 'Bearer realm="llmconsole"'
    return str(caught.value)


def test_no_file_means_no_keys_and_none_is_made(host: KeyStore, path: Path) -> None:
    assert not host.any_key()
    assert host.list() == ()
    refused(host, "llmc-abcdefgh-" + "x" * 43)
    assert not path.exists()


def test_a_key_is_told_once_and_only_its_hash_is_kept(command: KeyStore, path: Path) -> None:
    record, text = command.create("alice")
    secret = text.removeprefix(f"llmc-{record.id}-")
    kept = b"".join(each.read_bytes() for each in path.parent.iterdir())
    assert secret.encode() not in kept
    assert hashlib.sha256(secret.encode()).digest() in kept
    assert [stat.S_IMODE(each.stat().st_mode) for each in path.parent.iterdir()] == [0o600]


def test_a_running_host_knows_a_new_key_at_once(command: KeyStore, host: KeyStore) -> None:
    assert not host.any_key()
    limits = Limits(requests_per_minute=60, tokens_per_minute=1000, tokens_per_day=5000, usd_per_day=1.5)
    record, text = command.create(
        "alice", tier="premium", models=frozenset({"b", "a"}), limits=limits, admin=True, expires=START + 60
    )
    caller = host.lookup(text)
    assert (caller.key_id, caller.name, caller.tier) == (record.id, "alice", "premium")
    assert (caller.models, caller.limits, caller.admin) == (frozenset({"a", "b"}), limits, True)
    assert host.any_key()
    assert command.list() == (record,)
    assert record.line().models == ("a", "b")


def test_a_wrong_secret_is_told_as_an_unknown_id_is(command: KeyStore, host: KeyStore) -> None:
    record, _ = command.create("alice")
    wrong = refused(host, f"llmc-{record.id}-" + "x" * 43)
    assert wrong == refused(host, "llmc-00000000-" + "x" * 43)
    command.revoke("alice")
    assert refused(host, f"llmc-{record.id}-" + "x" * 43) == wrong


@pytest.mark.parametrize("cut", [slice(1, None), slice(None, -1), slice(None, 13), slice(0, 0)])
def test_a_key_that_is_not_whole_is_refused(command: KeyStore, host: KeyStore, cut: slice) -> None:
    _, text = command.create("alice")
    assert "whole" in refused(host, text[cut])
    assert "whole" in refused(host, text + "\udc80")


def test_a_revoked_key_ends_at_once_and_frees_its_name(command: KeyStore, host: KeyStore) -> None:
    first, text = command.create("alice")
    host.lookup(text)
    assert command.revoke(first.id).revoked == START
    assert "revoked" in refused(host, text)
    second, _ = command.create("alice")
    assert command.revoke("alice").id == second.id


def test_a_key_expires_by_the_clock_alone(command: KeyStore, host: KeyStore, clock: Clock) -> None:
    _, text = command.create("alice", expires=START + 60)
    clock.now = START + 59.9
    host.lookup(text)
    clock.now = START + 60
    assert "expired" in refused(host, text)
    with pytest.raises(KeyStoreError, match="expired"):
        command.rotate("alice")


def test_the_end_of_the_last_key_does_not_open_the_port(command: KeyStore, host: KeyStore) -> None:
    command.create("alice")
    command.revoke("alice")
    assert host.any_key()


def test_a_rotated_key_keeps_its_id_and_both_secrets_work_for_a_while(
    command: KeyStore, host: KeyStore, clock: Clock
) -> None:
    record, old = command.create("alice", tier="premium")
    _, new = command.rotate("alice", grace_s=60)
    assert host.lookup(old) == host.lookup(new)
    assert host.lookup(new).key_id == record.id
    clock.now = START + 60
    assert "replaced" in refused(host, old)
    host.lookup(new)
    _, newest = command.rotate(record.id)
    assert "replaced" in refused(host, new)
    refused(host, old)
    host.lookup(newest)


def test_names_stand_for_one_key(command: KeyStore) -> None:
    record, _ = command.create("alice")
    for taken in ("alice", record.id):
        with pytest.raises(KeyStoreError, match="choose another name"):
            command.create(taken)
    for bad in ("", " alice", "a\nb", "x" * 65):
        with pytest.raises(KeyStoreError, match="name"):
            command.create(bad)
    with pytest.raises(KeyStoreError, match='no key "bob"'):
        command.revoke("bob")


def test_last_uses_are_written_together_and_do_not_go_back(command: KeyStore, host: KeyStore, clock: Clock) -> None:
    _, alice = command.create("alice")
    _, bob = command.create("bob")
    for key, now in ((alice, 10.0), (bob, 20.0), (alice, 30.0)):
        clock.now = START + now
        host.lookup(key)
    assert [each.last_used for each in command.list()] == [None, None]
    host.write_last_used()
    assert [each.last_used for each in command.list()] == [START + 30, START + 20]
    clock.now = START
    host.lookup(alice)
    host.close()
    assert command.list()[0].last_used == START + 30


def test_a_file_that_breaks_leaves_the_known_keys_in_force(
    command: KeyStore, host: KeyStore, path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    _, text = command.create("alice")
    caller = host.lookup(text)
    broken = path.with_name("broken")
    broken.write_bytes(b"this is no database" * 100)
    broken.replace(path)
    with caplog.at_level(logging.ERROR):
        assert host.lookup(text) == caller
        assert host.lookup(text) == caller
    assert len(caplog.records) == 1
    assert "can't be read" in caplog.text
    path.unlink()
    assert host.lookup(text) == caller
    _, new = command.create("bob")
    assert host.lookup(new).name == "bob"
    refused(host, text)


def test_a_locked_file_does_not_stop_a_lookup(command: KeyStore, host: KeyStore, path: Path) -> None:
    _, text = command.create("alice")
    host.lookup(text)
    other = sqlite3.connect(path, isolation_level=None)
    other.execute("BEGIN EXCLUSIVE")
    assert host.lookup(text).name == "alice"
    other.execute("ROLLBACK")
    other.close()


def test_a_file_that_was_never_read_opens_nothing(host: KeyStore, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 100)
    assert host.any_key()
    with pytest.raises(Refusal) as caught:
        host.lookup("llmc-abcdefgh-" + "x" * 43)
    assert caught.value.status == 503
    for change in (host.list, lambda: host.revoke("alice"), lambda: host.create("alice")):
        with pytest.raises(KeyStoreError, match="can't be used"):
            change()


def test_many_commands_at_once_lose_no_key(host: KeyStore, path: Path) -> None:
    with ThreadPoolExecutor(8) as pool:
        made = list(pool.map(lambda n: KeyStore(path).create(f"key {n}"), range(16)))
    assert {host.lookup(text).key_id for _, text in made} == {record.id for record, _ in made}
    assert not list(path.parent.glob(".*"))


def test_the_store_is_light_to_import() -> None:
    code = "import sys, engine_host.gateway.keys, engine_host.gateway.access; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()
    assert not {"vllm", "torch", "numpy", "aiohttp", "pydantic", "asyncio"} & set(loaded)


def test_a_use_is_shown_before_it_is_written(tmp_path: Path) -> None:
    store = KeyStore(tmp_path / "keys.sqlite", clock=lambda: 1_000.0)
    _, text = store.create("k")
    store.lookup(text)
    assert [record.last_used for record in store.list()] == [1_000.0]
    assert [record.last_used for record in KeyStore(tmp_path / "keys.sqlite").list()] == [None]
    store.close()
