"""The file that keys are kept in: SQLite, readable by its owner only, written by the host and the command alike."""

import json
import os
import secrets
import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path

from engine_host.api.types import KeyLine, UsageLine
from engine_host.gateway.caller import Caller, Limits

VERSION = 1
BUSY_TIMEOUT_S = 5.0
"""How long a writer waits for another; every transaction here takes milliseconds."""

COLUMNS = (
    "id, name, digest, previous_digest, previous_until, tier, models, requests_per_minute, tokens_per_minute, "
    "tokens_per_day, usd_per_day, admin, created, expires, revoked, last_used"
)

# A name is unique among the keys that are not revoked: it stands for one of them on the command line.
_SCHEMA = f"""
PRAGMA journal_mode = WAL;
CREATE TABLE keys (
    id TEXT PRIMARY KEY, name TEXT NOT NULL, digest BLOB NOT NULL, previous_digest BLOB, previous_until REAL,
    tier TEXT, models TEXT, requests_per_minute INTEGER, tokens_per_minute INTEGER, tokens_per_day INTEGER,
    usd_per_day REAL, admin INTEGER NOT NULL, created REAL NOT NULL, expires REAL, revoked REAL, last_used REAL
) STRICT;
CREATE UNIQUE INDEX names ON keys (name) WHERE revoked IS NULL;
PRAGMA user_version = {VERSION};
"""


class KeyStoreError(Exception):
    """The keys can't be read or changed as asked; one sentence to show."""


@dataclass(frozen=True, slots=True)
class KeyRecord:
    """One key as it is kept. Times are Unix times; `models` `None` means all of them.

    After a rotation `previous_digest` is the secret before, which is taken until `previous_until`.
    """

    id: str
    name: str
    digest: bytes
    created: float
    previous_digest: bytes | None = None
    previous_until: float | None = None
    tier: str | None = None
    models: frozenset[str] | None = None
    limits: Limits = field(default_factory=Limits)
    admin: bool = False
    expires: float | None = None
    revoked: float | None = None
    last_used: float | None = None

    def usable(self, now: float) -> bool:
        """Whether requests with this key are served."""
        return self.revoked is None and (self.expires is None or now < self.expires)

    def caller(self) -> Caller:
        """Who holds it."""
        return Caller(self.id, self.name, self.tier, self.models, self.limits, self.admin)

    def line(self, usage: tuple[UsageLine, ...] = ()) -> KeyLine:
        """The key as a screen shows it."""
        return KeyLine(
            id=self.id,
            name=self.name,
            tier=self.tier,
            models=tuple(sorted(self.models or ())),
            admin=self.admin,
            created=self.created,
            expires=self.expires,
            revoked=self.revoked,
            last_used=self.last_used,
            usage=usage,
        )


def connect(path: Path, timeout_s: float) -> sqlite3.Connection:
    """Open the file, which must exist. Raises `sqlite3.Error`. The caller uses it from one thread at a time."""
    uri = f"{path.absolute().as_uri()}?mode=rw"
    return sqlite3.connect(uri, uri=True, timeout=timeout_s, isolation_level=None, check_same_thread=False)


def create_file(path: Path) -> None:
    """Make an empty file of keys with mode 0600 where there is none. Raises `OSError` and `sqlite3.Error`."""
    if path.exists():
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    made = path.with_name(f".{path.name}.{secrets.token_hex(4)}")
    try:
        # SQLite gives the files beside it the same mode.
        os.close(os.open(made, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
        with closing(connect(made, BUSY_TIMEOUT_S)) as database:
            database.executescript(_SCHEMA)
        # Two commands may do this at once: the first wins, and both use its file.
        with suppress(FileExistsError):
            os.link(made, path)
    finally:
        made.unlink(missing_ok=True)


def read_all(database: sqlite3.Connection) -> tuple[KeyRecord, ...]:
    """All keys, oldest first. Raises `ValueError` for a file of another version, and `sqlite3.Error`."""
    (version,) = database.execute("PRAGMA user_version").fetchone()
    if version != VERSION:
        raise ValueError(f"they have format {version}, this program reads format {VERSION}")
    return tuple(_record(*row) for row in database.execute(f"SELECT {COLUMNS} FROM keys ORDER BY created, rowid"))


@contextmanager
def transaction(path: Path) -> Iterator[sqlite3.Connection]:
    """One short writing transaction, committed when the block ends and undone when it raises."""
    with closing(connect(path, BUSY_TIMEOUT_S)) as database:
        database.execute("BEGIN IMMEDIATE")
        try:
            yield database
        except BaseException:
            database.execute("ROLLBACK")
            raise
        database.execute("COMMIT")


def insert(database: sqlite3.Connection, record: KeyRecord) -> None:
    """Add a key. Raises `sqlite3.IntegrityError` where its id or name is taken."""
    limits = record.limits
    database.execute(
        f"INSERT INTO keys ({COLUMNS}) VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
        (
            record.id,
            record.name,
            record.digest,
            record.previous_digest,
            record.previous_until,
            record.tier,
            None if record.models is None else json.dumps(sorted(record.models)),
            limits.requests_per_minute,
            limits.tokens_per_minute,
            limits.tokens_per_day,
            limits.usd_per_day,
            record.admin,
            record.created,
            record.expires,
            record.revoked,
            record.last_used,
        ),
    )


def _record(
    id_: str,
    name: str,
    digest: bytes,
    previous_digest: bytes | None,
    previous_until: float | None,
    tier: str | None,
    models: str | None,
    requests_per_minute: int | None,
    tokens_per_minute: int | None,
    tokens_per_day: int | None,
    usd_per_day: float | None,
    admin: int,
    created: float,
    expires: float | None,
    revoked: float | None,
    last_used: float | None,
) -> KeyRecord:
    return KeyRecord(
        id=id_,
        name=name,
        digest=digest,
        created=created,
        previous_digest=previous_digest,
        previous_until=previous_until,
        tier=tier,
        models=None if models is None else frozenset(json.loads(models)),
        limits=Limits(requests_per_minute, tokens_per_minute, tokens_per_day, usd_per_day),
        admin=bool(admin),
        expires=expires,
        revoked=revoked,
        last_used=last_used,
    )
