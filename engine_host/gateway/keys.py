"""The keys of the port: made, revoked and rotated by the command, looked up by the host in each request.

The host keeps all of them in memory and asks SQLite for nothing but a counter, whether another connection has written
since: what the command does is in force at the next request, and a lookup takes microseconds.
"""

import hmac
import logging
import os
import sqlite3
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from engine_host.gateway.caller import Caller, Limits
from engine_host.gateway.key_file import (
    BUSY_TIMEOUT_S,
    KeyRecord,
    KeyStoreError,
    connect,
    create_file,
    insert,
    read_all,
    transaction,
)
from engine_host.gateway.key_text import digest, key_text, new_id, new_secret, parse_key
from engine_host.gateway.refusal import Refusal

log = logging.getLogger(__name__)

KEYS_FILE = "keys.sqlite"
"""Name of the file in the data folder."""

SETTLED_NS = 50_000_000
"""Age of a change, in nanoseconds, from which another one has another time: some ticks of the kernel's clock."""

LAST_USED_EVERY_S = 60.0
"""How often last uses are written at most."""

MAX_NAME = 64

_NOBODYS = digest("")
"""Compared with where an id is not known, so that the time taken tells nothing about which ids exist."""


def unauthorized(message: str) -> Refusal:
    """A 401 that says how a key is sent."""
    return Refusal(401, message, headers={"WWW-Authenticate": 'Bearer realm="llmconsole"'})


@dataclass(frozen=True, slots=True)
class _Known:
    record: KeyRecord
    caller: Caller


class KeyStore:
    """The keys in the file at `path`. No file means no keys; it is made with the first one.

    `lookup` and `any_key` are for one thread, the event loop, and never wait. The other methods take
    milliseconds, may be called from any thread, and raise `KeyStoreError`. `clock` gives Unix time.
    """

    def __init__(self, path: Path, clock: Callable[[], float] = time.time) -> None:
        self._path = path
        self._clock = clock
        self._reader: sqlite3.Connection | None = None
        self._log = path.with_name(f"{path.name}-wal")
        self._file: tuple[int, int] | None = None
        self._written: tuple[int, ...] | None = None
        self._version = -1
        self._known: dict[str, _Known] = {}
        self._unreadable = False
        self._told = ""
        self._used: dict[str, float] = {}
        self._noting = threading.Lock()
        self._timer: threading.Timer | None = None

    # In the request path.

    def lookup(self, text: str) -> Caller:
        """Whose key `text` is.

        Raises `Refusal`: 401 where it is malformed, unknown, expired or revoked, 503 where the keys can't be read.
        """
        parsed = parse_key(text)
        if parsed is None:
            raise unauthorized("This is not a key of this server. Check that it is whole.")
        key_id, secret = parsed
        self._refresh()
        known = self._known.get(key_id)
        if known is None and self._unreadable:
            raise Refusal(503, "The keys of this server can't be read; its log says why.", retry_after_s=30.0)
        now = self._clock()
        given = digest(secret)
        right = hmac.compare_digest(given, known.record.digest if known else _NOBODYS)
        before = known.record.previous_digest if known else None
        was_right = hmac.compare_digest(given, before or _NOBODYS)
        # An expiry or a revocation is told only to who has the secret.
        if known is None or not (right or was_right):
            raise unauthorized("This server doesn't know this key. Check that it is whole, or ask for another.")
        record = known.record
        if record.revoked is not None:
            raise unauthorized("This key was revoked. Ask for another.")
        if not record.usable(now):
            raise unauthorized("This key has expired. Ask for another.")
        if not right and now >= (record.previous_until or 0.0):
            raise unauthorized("This key was replaced by a newer one under the same id. Use that one.")
        self._note_use(key_id, now)
        return known.caller

    def any_key(self) -> bool:
        """Whether there is a key, be it expired or revoked; also true while there is a file that can't be read.

        The last key's end must not open the port to everybody.
        """
        self._refresh()
        return bool(self._known) or self._unreadable

    # For the command and the screen.

    def list(self) -> tuple[KeyRecord, ...]:
        """All keys, oldest first, expired and revoked ones too, with uses that are not written yet."""
        if not self._path.exists():
            return ()
        with self._sentences():
            database = connect(self._path, BUSY_TIMEOUT_S)
            try:
                found = read_all(database)
            finally:
                database.close()
        with self._noting:
            used = dict(self._used)
        return tuple(replace(each, last_used=used.get(each.id, each.last_used)) for each in found)

    def create(
        self,
        name: str,
        *,
        tier: str | None = None,
        models: frozenset[str] | None = None,
        limits: Limits | None = None,
        admin: bool = False,
        expires: float | None = None,
    ) -> tuple[KeyRecord, str]:
        """Make a key; the record, and the text that its holder sends, which can't be had again."""
        if not name.isprintable() or name != name.strip() or not 0 < len(name) <= MAX_NAME:
            raise KeyStoreError(f"A key's name has 1 to {MAX_NAME} printable characters, with no space at its ends.")
        now = self._clock()
        if expires is not None and expires <= now:
            raise KeyStoreError("The key would have expired already; give a time to come.")
        secret = new_secret()
        with self._sentences():
            create_file(self._path)
            with transaction(self._path) as database:
                records = read_all(database)
                ids, names = {each.id for each in records}, {each.name for each in records}
                if any(each.name == name and each.revoked is None for each in records):
                    raise KeyStoreError(f'There is a key "{name}" already; revoke it first, or choose another name.')
                if name in ids:
                    raise KeyStoreError(f'"{name}" is the id of another key; choose another name.')
                key_id = next(each for each in iter(new_id, None) if each not in ids | names)
                record = KeyRecord(
                    id=key_id,
                    name=name,
                    digest=digest(secret),
                    created=now,
                    tier=tier,
                    models=models,
                    limits=limits or Limits(),
                    admin=admin,
                    expires=expires,
                )
                insert(database, record)
        return record, key_text(key_id, secret)

    def revoke(self, which: str) -> KeyRecord:
        """End the key of this id or name, at once and for good; revoking it again changes nothing."""
        with self._sentences(), transaction(self._path) as database:
            record = _find(read_all(database), which)
            if record.revoked is None:
                record = replace(record, revoked=self._clock())
                database.execute("UPDATE keys SET revoked = ? WHERE id = ?", (record.revoked, record.id))
        return record

    def rotate(self, which: str, grace_s: float = 0.0) -> tuple[KeyRecord, str]:
        """Give the key of this id or name a new secret, and return it as `create` does.

        Id, name, limits and what is used up of them stay. The old secret is taken for another `grace_s` seconds; one
        from before that ends now.
        """
        secret = new_secret()
        with self._sentences(), transaction(self._path) as database:
            record = _find(read_all(database), which)
            now = self._clock()
            if not record.usable(now):
                ended = "was revoked" if record.revoked is not None else "has expired"
                raise KeyStoreError(f'The key "{record.name}" {ended}; make a new one.')
            record = replace(record, digest=digest(secret), previous_digest=record.digest, previous_until=now + grace_s)
            database.execute(
                "UPDATE keys SET digest = ?, previous_digest = ?, previous_until = ? WHERE id = ?",
                (record.digest, record.previous_digest, record.previous_until, record.id),
            )
        return record, key_text(record.id, secret)

    def write_last_used(self) -> None:
        """Write the uses since the last time. Blocks for milliseconds; never raises."""
        with self._noting:
            self._timer = None
            used, self._used = self._used, {}
        if not used:
            return
        try:
            with transaction(self._path) as database:
                database.executemany(
                    "UPDATE keys SET last_used = max(coalesce(last_used, 0), ?) WHERE id = ?",
                    [(when, key_id) for key_id, when in used.items()],
                )
        except (sqlite3.Error, OSError) as error:
            log.warning("When keys were last used can't be written to %s: %s.", self._path, error)

    def close(self) -> None:
        """Write what is not written yet, and let go of the file."""
        if (timer := self._timer) is not None:
            timer.cancel()
        self.write_last_used()
        if self._reader is not None:
            self._reader.close()
            self._reader = None

    def _note_use(self, key_id: str, now: float) -> None:
        with self._noting:
            self._used[key_id] = now
            if self._timer is None:
                self._timer = threading.Timer(LAST_USED_EVERY_S, self.write_last_used)
                self._timer.daemon = True
                self._timer.start()

    def _refresh(self) -> None:
        """Read the keys again if anything was written. Where that can't be done the ones known stay in force."""
        try:
            self._read_if_changed()
        except (sqlite3.Error, OSError, ValueError) as error:
            self._unreadable = self._reader is None or self._version < 0
            self._tell(f"The keys in {self._path} can't be read: {error}. Those known before stay in force.")
        else:
            self._told = ""

    def _read_if_changed(self) -> None:
        now = time.time_ns()
        try:
            stat = os.stat(self._path)
        except FileNotFoundError:
            if self._file is not None:
                raise OSError("the file is gone") from None
            return
        try:
            log = os.stat(self._log)
            written = (stat.st_ino, stat.st_mtime_ns, log.st_ino, log.st_mtime_ns, log.st_size)
        except FileNotFoundError:
            written = (stat.st_ino, stat.st_mtime_ns, 0, 0, 0)
        if written == self._written:
            return  # Two looks at files cost a tenth of what SQLite's own answer does.
        if self._reader is None or self._file != (stat.st_dev, stat.st_ino):
            if self._reader is not None:
                self._reader.close()
            self._version = -1
            # Waits for nobody: this is the event loop.
            self._reader = connect(self._path, 0.0)
            self._file = stat.st_dev, stat.st_ino
        (version,) = self._reader.execute("PRAGMA data_version").fetchone()
        if version != self._version:
            records = read_all(self._reader)
            self._known = {record.id: _Known(record, record.caller()) for record in records}
            self._version, self._unreadable = version, False
        # What is written within one tick of the file system's clock looks the same: look again until it has passed.
        self._written = written if now - max(written[1], written[3]) > SETTLED_NS else None

    def _tell(self, sentence: str) -> None:
        """Log it once, until it is mended."""
        if sentence != self._told:
            self._told = sentence
            log.error("%s", sentence)

    @contextmanager
    def _sentences(self) -> Iterator[None]:
        """Turn what may go wrong with the file into a sentence."""
        try:
            yield
        except sqlite3.OperationalError as error:
            if not self._path.exists():
                raise KeyStoreError(f"There are no keys: {self._path} does not exist.") from error
            raise KeyStoreError(f"The keys in {self._path} can't be used: {error}.") from error
        except (sqlite3.Error, OSError, ValueError) as error:
            raise KeyStoreError(f"The keys in {self._path} can't be used: {error}.") from error


def _find(records: tuple[KeyRecord, ...], which: str) -> KeyRecord:
    """The key of this id; else of this name, the one not revoked before those that are."""
    found = [each for each in records if each.id == which] or [each for each in records if each.name == which]
    if not found:
        raise KeyStoreError(f'There is no key "{which}"; llmconsole key list shows them.')
    return min(found, key=lambda each: each.revoked is not None)
