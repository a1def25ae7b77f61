"""What is printed becomes records: split, decoded and levelled."""

import logging
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from engine_host.logs.capture import LineSplitter
from engine_host.logs.own import PACKAGE, hear
from engine_host.logs.parse import parse_line
from engine_host.logs.ring import MAX_TEXT, LogRing


@pytest.mark.parametrize(
    ("line", "level", "source", "text"),
    [
        (
            "(EngineCore pid=12) INFO 11-29 16:13:59 [core.py:402] init engine (profile) took 0.5 s",
            "info",
            "engine",
            "init engine (profile) took 0.5 s",
        ),
        ("(MainProcess pid=9) WARNING 11-29 16:13:46 [arg_utils.py:1945] seed", "warning", "host", "seed"),
        (
            "ERROR 11-29 16:13:46 [core.py:1] EngineCore failed to start.",
            "error",
            "engine",
            "EngineCore failed to start.",
        ),
        ("(EngineCore pid=12) ValueError: no room", "error", "engine", "ValueError: no room"),
        ("[W1129 16:13:59.5 utils.cpp:68] Warning: NUMA", "warning", "engine", "utils.cpp:68] Warning: NUMA"),
        ("/a/b.py:138: FutureWarning: old", "warning", "engine", "/a/b.py:138: FutureWarning: old"),
        ("[/red] {'b': [true]} [b", "info", "engine", "[/red] {'b': [true]} [b"),
    ],
)
def test_a_line_says_its_level_and_source(line: str, level: str, source: str, text: str) -> None:
    assert parse_line(line) == (level, source, text)


def test_progress_bars_colours_and_bad_bytes_become_plain_lines() -> None:
    splitter = LineSplitter()
    assert splitter.feed(b"  0%|   | 0/1\r 50%|#  |\r\r\n\x1b[31mred\x1b[0m\nbad \xff byte\npart") == [
        "  0%|   | 0/1",
        " 50%|#  |",
        "red",
        "bad � byte",
    ]
    assert splitter.feed(b"ial\n") == ["partial"]


@given(st.lists(st.text(alphabet="ab é🧑", min_size=1), max_size=8), st.integers(1, 7))
def test_lines_do_not_depend_on_how_the_bytes_arrive(lines: list[str], size: int) -> None:
    data = "".join(f"{line}\n" for line in lines).encode()
    splitter = LineSplitter()
    fed = [out for start in range(0, len(data), size) for out in splitter.feed(data[start : start + size])]
    assert fed == [line.rstrip() for line in lines if line.rstrip()]


def test_a_line_without_an_end_does_not_grow_for_ever() -> None:
    splitter = LineSplitter()
    lines = [line for _ in range(40) for line in splitter.feed(b"x" * 10_000)]
    assert lines
    assert max(map(len, lines)) < 100_000


def test_the_ring_keeps_the_newest_and_counts_what_left() -> None:
    ring = LogRing(capacity=3, clock=lambda: 1.0)
    for number in range(5):
        ring.append("info", "engine", str(number))
    page = ring.page(since=1)
    assert [record.text for record in page.records] == ["2", "3", "4"]
    assert page.dropped == 1
    assert [record.text for record in ring.page(since=4).records] == ["4"]
    assert ring.page(since=5).records == ()
    assert [record.text for record in ring.tail(2)] == ["3", "4"]


def test_a_giant_record_is_cut_and_says_so() -> None:
    ring = LogRing()
    ring.append("info", "engine", "x" * (MAX_TEXT + 5))
    assert ring.tail(1)[0].text.endswith("(5 characters more)")


def test_nothing_of_a_childs_noise_reaches_the_real_output() -> None:
    """Case 18: C-level writes, a child's stderr and a progress bar all end in the ring."""
    script = """
import os, subprocess, sys, time
from engine_host.logs.capture import capture_output, save_descriptors
from engine_host.logs.ring import LogRing
real, ring = save_descriptors(), LogRing()
capture_output(ring)
os.write(1, b"from C\\n")
print("from python", flush=True)
subprocess.run([sys.executable, "-c", "import sys; sys.stderr.write('50%|#\\\\r100%|##\\\\n')"])
os.write(2, b"last\\n")
while ring.tail(1)[0].text != "last": time.sleep(0.01)
os.write(real.stdout, "|".join(record.text for record in ring.tail(9)).encode())
"""
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stderr == ""
    assert done.stdout == "from C|from python|50%|#|100%|##|last"


def test_what_our_own_modules_say_is_heard_whatever_the_root_logger_is_set_to() -> None:
    ring, own, root = LogRing(), logging.getLogger(PACKAGE), logging.getLogger()
    before = own.level, own.propagate, root.level
    try:
        hear(ring)
        root.setLevel(logging.ERROR)
        module = logging.getLogger(f"{PACKAGE}.somewhere")
        module.info("not this")
        module.warning("a client is %s", "cut off")
        try:
            raise ValueError("of the [b] kind")
        except ValueError:
            module.exception("a stream broke off")
        records = ring.tail(100)
        assert [(each.level, each.source, each.text) for each in records[:2]] == [
            ("warning", "host", "a client is cut off"),
            ("error", "host", "a stream broke off"),
        ]
        assert (records[-1].level, records[-1].text) == ("error", "ValueError: of the [b] kind")
    finally:
        own.removeHandler(own.handlers[-1])
        own.propagate = before[1]
        own.setLevel(before[0])
        root.setLevel(before[2])
