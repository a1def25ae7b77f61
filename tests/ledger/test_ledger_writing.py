"""What the ledger writes, what a crash loses of it, and what becomes of it when the file can't be written."""

import hashlib
import os
import queue
import shutil
import signal
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from engine_host.ledger.columns import MINUTES, REQUESTS
from engine_host.ledger.file import LEDGER_FILE, LedgerError, mapping, open_to_read
from engine_host.ledger.ledger import DAY_S, MOST_TEXT, PRUNE_EVERY_S, Ledger
from engine_host.ledger.writer import PRUNE_ROWS, Writer
from profiles.schema import Ledger as Rules
from tests.ledger.child import SOON_S
from tests.ledger.rows import KEEPS, KEEPS_TEXT, NOON, event, fill, minute, request

ROOT = Path(__file__).resolve().parents[2]


class Book:
    """A ledger in `folder`, and what it has said."""

    def __init__(self, folder: Path, rules: Rules = KEEPS, now: float = NOON) -> None:
        self.path = folder / LEDGER_FILE
        self.rules, self.now = rules, now
        self.said: queue.Queue[str] = queue.Queue()
        self.ledger = Ledger(self.path, lambda: self.rules, self.said.put, lambda: self.now)

    def next_said(self) -> str:
        return self.said.get(timeout=SOON_S)


@pytest.fixture
def open_book(tmp_path: Path) -> Iterator[Callable[..., Book]]:
    books: list[Book] = []

    def open_it(folder: Path = tmp_path, **given: Any) -> Book:
        books.append(Book(folder, **given))
        return books[-1]

    yield open_it
    for book in books:
        book.ledger.close()


@pytest.fixture
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing waits for what will not come."""
    monkeypatch.setattr("engine_host.ledger.ledger.CLOSE_S", 0.3)
    monkeypatch.setattr("engine_host.ledger.file.BUSY_S", 0.1)


def rows(path: Path, table: str = "requests") -> list[dict[str, Any]]:
    with closing(open_to_read(path)) as connection:
        return [mapping(row) for row in connection.execute(f"SELECT * FROM {table} ORDER BY rowid")]


def test_each_record_is_one_row_in_the_order_they_came(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=KEEPS_TEXT)
    book.ledger.start()
    fill(book.ledger, request(id="a"), minute(), request(id="b"), event(), request(id="c", cost=None))
    book.ledger.close()
    kept = [REQUESTS.record(row) for row in rows(book.path)]
    assert kept == [request(id="a"), request(id="b"), request(id="c", cost=None)]
    assert [MINUTES.record(row) for row in rows(book.path, "minutes")] == [minute()]
    assert len(rows(book.path, "events")) == 1
    status = book.ledger.status()
    assert (status.written, status.waiting, status.lost, status.problem) == (5, 0, 0, None)


def test_rows_of_another_run_are_kept(open_book: Callable[..., Book]) -> None:
    for name in ("first", "second"):
        book = open_book()
        fill(book.ledger, request(id=name))
        book.ledger.start()
        book.ledger.close()
    assert [row["id"] for row in rows(book.path)] == ["first", "second"]


def test_only_its_owner_can_read_the_file(open_book: Callable[..., Book]) -> None:
    book = open_book()
    book.ledger.start()
    book.ledger.close()
    assert book.path.stat().st_mode & 0o777 == 0o600


def test_what_people_wrote_is_not_kept_unless_asked_for(open_book: Callable[..., Book]) -> None:
    book = open_book()
    fill(book.ledger, request(id="before"))
    book.rules = KEEPS_TEXT
    fill(book.ledger, request(id="while"))
    book.rules = KEEPS
    fill(book.ledger, request(id="after"))
    book.ledger.start()
    book.ledger.close()
    assert [(row["id"], row["prompt"], row["reply"]) for row in rows(book.path)] == [
        ("before", None, None),
        ("while", "a secret question", "a secret answer"),
        ("after", None, None),
    ]


def test_a_profile_that_keeps_nothing_makes_no_file(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=Rules(enabled=False))
    book.ledger.start()
    fill(book.ledger, request(), minute(), event())
    book.ledger.close()
    assert not book.path.exists()


def test_keeping_is_turned_on_and_off_while_it_runs(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=Rules(enabled=False))
    fill(book.ledger, request(id="off"))
    book.rules = KEEPS
    fill(book.ledger, request(id="on"))
    book.ledger.start()
    book.ledger.close()
    assert [row["id"] for row in rows(book.path)] == ["on"]


def test_more_rows_than_may_wait_are_lost_and_counted(
    open_book: Callable[..., Book], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("engine_host.ledger.ledger.MOST_ROWS", 30)
    monkeypatch.setattr("engine_host.ledger.ledger.BATCH", 20)
    book = open_book()
    for number in range(37):
        book.ledger.request(request(id=str(number)))
    assert (book.ledger.status().waiting, book.ledger.status().lost) == (30, 7)
    book.ledger.start()
    assert "7 rows of the ledger are lost" in book.next_said()
    book.ledger.close()
    assert [row["id"] for row in rows(book.path)] == [str(number) for number in range(30)]


def test_long_texts_that_wait_are_bounded_too(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=KEEPS_TEXT)
    half = "x" * (MOST_TEXT // 2)
    fill(book.ledger, request(prompt=half, reply=None), request(prompt=None, reply=half), request(), minute())
    assert (book.ledger.status().waiting, book.ledger.status().lost) == (3, 1)


def test_a_row_that_has_no_place_is_lost_alone_and_said_once(open_book: Callable[..., Book]) -> None:
    book = open_book()
    odd = minute(seconds={"coffee": 1.0})
    fill(book.ledger, request(id="a"), odd, request(id="b"), odd)
    book.ledger.start()
    assert "coffee" in book.next_said()
    book.ledger.close()
    assert [row["id"] for row in rows(book.path)] == ["a", "b"]
    assert (book.ledger.status().written, book.ledger.status().lost) == (2, 2)
    assert book.said.empty()


def run_alone(what: str, path: Path, *before: str) -> list[str]:
    """The lines that `tests.ledger.child` prints; whoever it is then can get at the folder."""
    for each in (path.parent.parent, path.parent.parent.parent, path.parent.parent.parent.parent):
        if each != Path("/") and each.stat().st_uid == os.getuid():
            each.chmod(each.stat().st_mode | 0o011)
    command = [*before, sys.executable, "-m", "tests.ledger.child", what, str(path)]
    ran = subprocess.run(command, capture_output=True, text=True, cwd=ROOT)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout.splitlines()


OWN_DISK = ("unshare", "--mount", *(() if os.getuid() == 0 else ("--user", "--map-root-user")), "--")
CAN_MOUNT = shutil.which("unshare") and not subprocess.run([*OWN_DISK, "true"], capture_output=True).returncode


def killed_after(path: Path, lines: int) -> tuple[float, int]:
    """Seconds of rows that a killed writer of 200 rows a second lost, and how many it had called written."""
    command = [sys.executable, "-m", "tests.ledger.child", "endless", str(path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as child:
        assert child.stdout is not None
        said = [child.stdout.readline() for _ in range(lines)]
        child.send_signal(signal.SIGKILL)
        said += [line for line in child.stdout.read().splitlines(keepends=True) if line.endswith("\n")]
    handed_over, _, written = said[-1].split()
    return float(handed_over) - rows(path)[-1]["time"], int(written)


def test_a_kill_loses_less_than_a_second_and_nothing_that_was_written(tmp_path: Path) -> None:
    lost = []
    # The machine may stand still for a moment; a writer that is too slow is too slow each time.
    while len(lost) < 3 and (not lost or min(lost) > 1.0):
        path = tmp_path / f"{len(lost)}.db"
        seconds, written = killed_after(path, 300)
        lost.append(seconds)
        assert [row["id"] for row in rows(path)][:written] == [str(number) for number in range(written)]
        assert written > 0
    assert min(lost) <= 1.0


def test_a_file_locked_by_another_process_is_said_once_and_written_when_it_is_free(
    open_book: Callable[..., Book], short_waits: None
) -> None:
    book = open_book()
    Writer(book.path).open()
    with closing(sqlite3.connect(book.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        book.ledger.start()
        fill(book.ledger, request(id="a"))
        assert "locked" in book.next_said()
        fill(book.ledger, request(id="b"))
        assert book.ledger.status().problem is not None
        other.execute("ROLLBACK")
    assert "is written again; 0 rows were lost" in book.next_said()
    book.ledger.close()
    assert [row["id"] for row in rows(book.path)] == ["a", "b"]
    assert book.ledger.status().problem is None
    assert book.said.empty()


def test_closing_gives_up_a_file_that_stays_locked_and_says_what_is_lost(
    open_book: Callable[..., Book], short_waits: None
) -> None:
    book = open_book()
    Writer(book.path).open()
    with closing(sqlite3.connect(book.path, isolation_level=None)) as other:
        other.execute("BEGIN IMMEDIATE")
        fill(book.ledger, request(), request())
        book.ledger.start()
        book.ledger.close()
        assert "locked" in book.next_said()
        assert "lost the last 2 rows" in book.next_said()
    assert (book.ledger.status().waiting, book.ledger.status().lost) == (0, 2)


def test_a_newer_file_is_said_once_and_left_as_it_is(open_book: Callable[..., Book], tmp_path: Path) -> None:
    book = open_book()
    with closing(sqlite3.connect(book.path)) as connection:
        connection.execute("CREATE TABLE requests (what_it_will_be TEXT)")
        connection.execute("PRAGMA user_version = 99")
    before = hashlib.sha256(book.path.read_bytes()).digest()
    book.ledger.start()
    fill(book.ledger, request())
    assert "newer release" in book.next_said()
    assert book.ledger.past(0, NOON * 2) == []
    # Once it is out of the way, there is a new one.
    shutil.move(book.path, tmp_path / "theirs.db")
    assert "is written again" in book.next_said()
    book.ledger.close()
    assert hashlib.sha256((tmp_path / "theirs.db").read_bytes()).digest() == before
    assert len(rows(book.path)) == 1
    assert book.said.empty()


def test_a_file_that_is_no_ledger_is_said_and_not_overwritten(
    open_book: Callable[..., Book], short_waits: None
) -> None:
    book = open_book()
    book.path.write_text("somebody's notes " * 100)
    book.ledger.start()
    fill(book.ledger, request())
    assert "no SQLite file" in book.next_said()
    book.ledger.close()
    assert book.path.read_text().startswith("somebody's notes")


def test_a_file_moved_away_under_the_writer_is_made_anew(open_book: Callable[..., Book]) -> None:
    writer = Writer((book := open_book()).path)
    writer.write([request(id="old")])
    for path in book.path.parent.iterdir():
        path.unlink()
    writer.write([request(id="new")])
    writer.close()
    assert [row["id"] for row in rows(book.path)] == ["new"]


def test_a_column_that_an_older_release_did_not_have_is_added(open_book: Callable[..., Book]) -> None:
    book = open_book()
    writer = Writer(book.path)
    writer.write([request(id="old")])
    writer.close()
    with closing(sqlite3.connect(book.path)) as connection:
        connection.execute("ALTER TABLE requests DROP COLUMN pages_peak")
    fill(book.ledger, request(id="new", pages_peak=3))
    book.ledger.start()
    book.ledger.close()
    assert [(row["id"], row["pages_peak"]) for row in rows(book.path)] == [("old", None), ("new", 3)]


@pytest.mark.parametrize("closed", ["folder", "file"])
def test_what_cannot_be_written_is_said_and_serving_goes_on(tmp_path: Path, closed: str) -> None:
    path = tmp_path / "closed" / LEDGER_FILE
    path.parent.mkdir()
    if closed == "file":
        Writer(path).open()
        path.chmod(0o444)
    path.parent.chmod(0o555 if closed == "folder" else 0o777)
    said, waiting = run_alone("anybody", path)
    assert "permissions" in said
    assert waiting == "1"


@pytest.mark.skipif(not CAN_MOUNT, reason="a small disk can't be mounted here: unshare(1) is missing or not permitted")
def test_a_full_disk_is_said_once_and_written_when_there_is_room(tmp_path: Path) -> None:
    full, recovered, kept, lost = run_alone("disk", tmp_path / LEDGER_FILE, *OWN_DISK)
    assert "is full; make room" in full
    assert "is written again; 0 rows were lost" in recovered
    assert (kept, lost) == ("2000", "0")


def test_a_file_that_may_grow_no_further_is_said_and_its_rows_wait(tmp_path: Path) -> None:
    said, waiting = run_alone("limit", tmp_path / LEDGER_FILE)
    assert "size limit" in said
    assert waiting == "3000"


def test_rows_past_their_time_are_removed_in_small_steps(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=Rules(retention_days=7))
    writer = Writer(book.path)
    old = [request(id="old", time=NOON - 8 * DAY_S)] * (PRUNE_ROWS + 1)
    writer.write([*old, request(id="young", time=NOON - 6 * DAY_S), minute(time=NOON - 8 * DAY_S)])
    assert writer.prune(NOON - 7 * DAY_S) is True
    assert len(rows(book.path)) == 2
    assert writer.prune(NOON - 7 * DAY_S) is False
    assert [row["id"] for row in rows(book.path)] == ["young"]
    assert rows(book.path, "minutes") == []
    writer.close()


def test_a_removed_row_gives_its_room_back(tmp_path: Path) -> None:
    path = tmp_path / LEDGER_FILE
    writer = Writer(path)
    writer.write([request(id=str(number)) for number in range(1000)])
    writer.prune(NOON + 1)
    writer.close()
    assert path.stat().st_size < 100_000


def test_old_rows_go_at_the_start_and_every_hour(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=Rules(retention_days=1))
    writer = Writer(book.path)
    writer.write([request(id="old", time=NOON - 2 * DAY_S), request(id="later", time=NOON - DAY_S + 60)])
    removed = threading.Semaphore(0)
    prune = book.ledger._writer.prune

    def count(before: float) -> bool:
        more = prune(before)
        removed.release()
        return more

    book.ledger._writer.prune = count  # type: ignore[method-assign]
    book.ledger.start()
    assert removed.acquire(timeout=SOON_S)
    assert [row["id"] for row in rows(book.path)] == ["later"]
    book.now += PRUNE_EVERY_S + 1
    fill(book.ledger, request(id="new", time=book.now))
    assert removed.acquire(timeout=SOON_S)
    book.ledger.close()
    assert [row["id"] for row in rows(book.path)] == ["new"]
    writer.close()


def test_old_rows_go_also_after_the_profile_has_stopped_keeping_any(open_book: Callable[..., Book]) -> None:
    book = open_book(rules=Rules(enabled=False, retention_days=1))
    writer = Writer(book.path)
    writer.write([request(time=NOON - 2 * DAY_S)])
    writer.close()
    book.ledger.start()
    book.ledger.close()
    assert rows(book.path) == []


def test_reading_what_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match="There is no ledger at"):
        open_to_read(tmp_path / LEDGER_FILE)
