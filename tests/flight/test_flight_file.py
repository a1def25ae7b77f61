"""The file itself: what is written is what is read, torn never, old or foreign files refused."""

import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from engine_host.api.flight import CACHED, FREE, USED, FlightReader, FlightVersionError, our_id
from engine_host.flight.knobs import Knobs
from engine_host.flight.layout import (
    DECODE,
    HEADER,
    NAME_SLOTS,
    OWNER_BYTES,
    OWNER_SLOTS,
    RING_SHARES,
    RING_STEPS,
    pair_capacity,
    record_size,
)
from engine_host.flight.writer import FlightWriter

BLOCKS = 9


def write(writer: FlightWriter, blocks: int, owned: dict[str, list[int]], cached: tuple[int, ...] = ()) -> None:
    """Publish a snapshot in which each block has as many references as owners."""
    refs, hashed = np.zeros(blocks, np.uint16), np.zeros(blocks, np.uint8)
    for held in owned.values():
        np.add.at(refs, held, 1)
    hashed[list(cached)] = 1
    writer.write_pages(refs, hashed, list(owned.items()), 1.0)


def write_step(writer: FlightWriter, number: int) -> None:
    writer.write_step(float(number), (0.25, 0.5, 0.125), (number, 2), (3, 4, 5, 6), 7, 8, 2)


@pytest.fixture
def writer(flight_path: Path) -> FlightWriter:
    return FlightWriter(flight_path, engine_id=2, blocks=BLOCKS, block_size=16, page_bytes=4096)


@pytest.fixture
def reader(writer: FlightWriter, flight_path: Path) -> FlightReader:
    return FlightReader(flight_path)


def test_the_header_says_whose_record_it_is(reader: FlightReader) -> None:
    head = reader.header
    assert (head.engine_id, head.blocks, head.block_size, head.page_bytes) == (2, BLOCKS, 16, 4096)
    assert not reader.stopped


def test_an_unknown_page_size_is_none(flight_path: Path) -> None:
    FlightWriter(flight_path, engine_id=0, blocks=BLOCKS, block_size=16, page_bytes=None)
    assert FlightReader(flight_path).header.page_bytes is None


def test_the_knobs_in_force_can_be_read(writer: FlightWriter, reader: FlightReader) -> None:
    writer.publish(Knobs(512, 2048, 8, 16, 256, 3, True, "priority", 10.0, generation=6))
    found = reader.control
    assert (found["token_budget"], found["token_budget_ceiling"], found["max_active_ceiling"]) == (512, 2048, 16)
    assert (found["policy"], found["chunked_prefill"], found["long_prefill_threshold"]) == (1, 1, 256)
    assert found["generation"] == 6


def test_pages_have_states_and_all_their_owners(writer: FlightWriter, reader: FlightReader) -> None:
    write(writer, BLOCKS, {"a-00000001": [1, 2], "b-00000002": [1, 4]}, cached=(1, 5))
    pages = reader.read_pages()
    assert pages.state.tolist() == [USED, USED, FREE, USED, CACHED, FREE, FREE, FREE]
    assert pages.refs.tolist() == [2, 1, 0, 1, 0, 0, 0, 0]
    assert (pages.used, pages.cached) == (3, 1)
    assert pages.owners_of(0) == ("a", "b")
    assert pages.owners_of(2) == ()
    assert pages.pages_of("b").tolist() == [0, 3]
    assert dict(pages.pages_held) == {"a": 2, "b": 2}
    assert pages.owners[pages.owner[1]] == "a"
    assert pages.owner[2] == -1


def test_what_was_read_can_not_be_changed_and_does_not_change(writer: FlightWriter, reader: FlightReader) -> None:
    write(writer, BLOCKS, {"a-00000001": [1]})
    write_step(writer, 1)
    pages, steps = reader.read_pages(), reader.read_steps()
    for frozen in (pages.state, pages.refs, pages.owner, pages.pair_owner, pages.pair_page, steps.rows, steps.prefill):
        with pytest.raises(ValueError, match="read-only"):
            frozen[0] = 0
    write(writer, BLOCKS, {})
    write_step(writer, 2)
    assert pages.used == 1
    assert len(steps) == 1


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.dictionaries(
        st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=20),
        st.lists(st.integers(1, BLOCKS - 1), unique=True),
        max_size=12,
    )
)
def test_any_ownership_reads_back(writer: FlightWriter, reader: FlightReader, owned: dict[str, list[int]]) -> None:
    write(writer, BLOCKS, {f"{name}-0123abcd": blocks for name, blocks in owned.items()})
    pages = reader.read_pages()
    expected: dict[str, list[int]] = {}
    for name, blocks in owned.items():
        expected.setdefault(our_id(f"{name}-0123abcd"), []).extend(block - 1 for block in blocks)
    assert {name: pages.pages_of(name).tolist() for name in pages.owners} == expected
    for page in range(BLOCKS - 1):
        assert len(pages.owners_of(page)) == pages.refs[page]


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ("chatcmpl-12ab-0f1e2d3c", "chatcmpl-12ab"),
        ("2_cmpl-7-0f1e2d3c", "cmpl-7"),
        ("plain", "plain"),
        ("not-hex-0f1e2d3", "not-hex-0f1e2d3"),
    ],
)
def test_engine_ids_become_ours(theirs: str, ours: str) -> None:
    assert our_id(theirs) == ours


def test_requests_beyond_the_owner_table_are_counted(writer: FlightWriter, reader: FlightReader) -> None:
    write(writer, BLOCKS, {f"r{number}-00000000": [1] for number in range(OWNER_SLOTS + 3)})
    pages = reader.read_pages()
    assert (len(pages.owners), pages.unlisted) == (OWNER_SLOTS, 3)
    assert pages.refs[0] == OWNER_SLOTS + 3


def test_requests_beyond_the_pair_table_are_counted(writer: FlightWriter, reader: FlightReader) -> None:
    refs, cached = np.ones(BLOCKS, np.uint16), np.zeros(BLOCKS, np.uint8)
    wide = [1] * (pair_capacity(BLOCKS) - 1)
    writer.write_pages(refs, cached, [("wide-00000000", wide), ("b-00000000", [1, 2]), ("c-00000000", [3])], 1.0)
    pages = reader.read_pages()
    assert pages.owners == ("wide", "c")
    assert pages.pages_of("c").tolist() == [2]
    assert pages.unlisted == 1


def test_long_ids_are_cut(writer: FlightWriter, reader: FlightReader) -> None:
    write(writer, BLOCKS, {"x" * 500: [1]})
    assert reader.read_pages().owners == ("x" * OWNER_BYTES,)


def test_a_snapshot_being_written_is_not_read(writer: FlightWriter, reader: FlightReader) -> None:
    write(writer, BLOCKS, {"a-00000001": [1]})
    good = reader.read_pages()
    writer._views.pages["sequence"] += 1
    writer._views.refs[:] = 77
    assert reader.read_pages() is good


def test_a_first_read_of_a_record_whose_writer_died_is_empty(writer: FlightWriter, flight_path: Path) -> None:
    writer._views.pages["sequence"] += 1
    pages = FlightReader(flight_path).read_pages()
    assert (pages.taken, pages.used, len(pages.state)) == (0, 0, BLOCKS - 1)


def test_reading_while_another_thread_writes_is_never_torn(tmp_path: Path) -> None:
    blocks = 20_000
    path = tmp_path / "busy"
    writer = FlightWriter(path, engine_id=0, blocks=blocks, block_size=16, page_bytes=None)
    stop = threading.Event()

    def keep_writing() -> None:
        number = 1
        while not stop.is_set():
            refs = np.full(blocks, number % 60_000, np.uint16)
            cached = np.full(blocks, number % 2, np.uint8)
            writer.write_pages(refs, cached, [(f"{number}-00000000", [number % 1000 + 1] * 3)], float(number))
            number += 1

    switching, thread = sys.getswitchinterval(), threading.Thread(target=keep_writing)
    reader = FlightReader(path)
    seen: set[int] = set()
    sys.setswitchinterval(1e-6)
    thread.start()
    try:
        while len(seen) < 50:
            pages = reader.read_pages()
            if pages.taken == 0:
                continue
            number = int(pages.time)
            seen.add(number)
            assert pages.owners == (str(number),)
            assert np.all(pages.refs == number % 60_000)
            assert pages.pages_of(str(number)).tolist() == [number % 1000] * 3
    finally:
        stop.set()
        thread.join()
        sys.setswitchinterval(switching)


def test_steps_read_back_as_written(writer: FlightWriter, reader: FlightReader) -> None:
    write_step(writer, 1)
    row = reader.read_steps().rows[0]
    names = ("number", "time", "schedule", "execute", "update", "prefill", "decode", "running", "waiting")
    assert [row[name] for name in names] == [1, 1.0, 0.25, 0.5, 0.125, 1, 2, 3, 4]
    assert [row[name] for name in ("preempted", "finished", "budget", "used_blocks")] == [5, 6, 7, 8]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=20)
@given(total=st.integers(0, 2 * RING_STEPS), lag=st.integers(0, 2 * RING_STEPS))
def test_a_reader_gets_each_step_once_or_learns_what_it_missed(tmp_path: Path, total: int, lag: int) -> None:
    path = tmp_path / "ring"
    writer = FlightWriter(path, engine_id=0, blocks=1, block_size=16, page_bytes=None)
    reader = FlightReader(path)
    since = max(0, total - lag)
    for number in range(1, total + 1):
        write_step(writer, number)
    steps = reader.read_steps(since)
    assert len(steps) + steps.missed == total - since
    assert steps.number.tolist() == list(range(total - len(steps) + 1, total + 1))
    assert steps.prefill.tolist() == steps.number.tolist()
    # All but the place that is written next.
    assert steps.missed == max(0, total - since - (RING_STEPS - 1))


def test_shares_that_run_over_the_end_of_the_ring_read_back(writer: FlightWriter, reader: FlightReader) -> None:
    writer.write_shares(1, [9] * (RING_SHARES - 2), DECODE, 1, 1)
    end = reader.read_shares().end
    writer.write_shares(2, [1, 2, 3, 4, 5], DECODE, [1, 1, 1, 1, 7], [10, 20, 30, 40, 50])
    found = reader.read_shares(end)
    assert found.rows["serial"].tolist() == [1, 2, 3, 4, 5]
    assert found.rows[-1].tolist() == (2, 5, DECODE, 7, 50)
    assert (found.missed, found.end) == (0, RING_SHARES + 3)
    # Who asks for all of them learns that the oldest are gone.
    assert reader.read_shares().missed == RING_SHARES + 3 - len(reader.read_shares().rows) > 3


def test_the_last_names_are_kept(writer: FlightWriter, reader: FlightReader) -> None:
    for serial in range(1, NAME_SLOTS + 2):
        writer.write_name(serial, f"r{serial}-01234567", serial)
    assert [reader.request_of(serial) for serial in (1, 2, 4098)] == [None, "r2", "r4098"]
    assert [reader.prompt_of(serial) for serial in (1, NAME_SLOTS + 1)] == [None, NAME_SLOTS + 1]


def test_stopping_is_told(writer: FlightWriter, reader: FlightReader) -> None:
    writer.stop()
    assert reader.stopped


@pytest.mark.parametrize("content", [b"", b"LLMCFLT", b"something else entirely" * 100])
def test_a_foreign_file_is_refused(flight_path: Path, content: bytes) -> None:
    flight_path.write_bytes(content)
    with pytest.raises(FlightVersionError, match=r"flight is no flight record\.$"):
        FlightReader(flight_path)


def test_another_version_is_refused_with_what_to_do(writer: FlightWriter, flight_path: Path) -> None:
    writer._views.header["version"] = 7
    with pytest.raises(FlightVersionError, match=r"version 7, .* Use the llmconsole that runs the engine\.$"):
        FlightReader(flight_path)


def test_a_cut_file_is_refused(writer: FlightWriter, flight_path: Path, tmp_path: Path) -> None:
    cut = tmp_path / "cut"
    cut.write_bytes(flight_path.read_bytes()[: HEADER.itemsize + 100])
    with pytest.raises(FlightVersionError, match="cut short"):
        FlightReader(cut)


def test_the_file_appears_whole_and_replaces_an_older_one(flight_path: Path) -> None:
    for blocks in (9, 33):
        FlightWriter(flight_path, engine_id=0, blocks=blocks, block_size=16, page_bytes=None)
        assert flight_path.stat().st_size == record_size(blocks)
        assert FlightReader(flight_path).header.blocks == blocks
    assert [path.name for path in flight_path.parent.iterdir()] == ["flight"]


def test_reading_imports_numpy_and_nothing_heavy() -> None:
    code = "import sys, engine_host.api.flight; print([m for m in ('vllm', 'torch', 'aiohttp') if m in sys.modules])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"
