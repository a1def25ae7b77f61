"""Foreign text made visible, and shortened without cutting numbers."""

from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from widgets.text import elide, literal, one_line

any_text = st.text(st.characters(codec=None))


@given(any_text)
def test_literal_keeps_positions_and_leaves_nothing_a_terminal_obeys(text: str) -> None:
    shown = literal(text)
    assert len(shown) == len(text)
    shown.encode()
    assert not any((ord(c) < 0x20 and c not in "\t\n") or 0x7F <= ord(c) < 0xA0 for c in shown)
    assert shown.splitlines() == shown.split("\n") or shown.endswith("\n") or not shown


@given(any_text)
def test_one_line_is_one_line(text: str) -> None:
    shown = one_line(text)
    assert len(shown.splitlines()) <= 1
    assert "\x1b" not in shown
    assert "\t" not in shown


def test_colours_are_stripped_and_other_controls_seen() -> None:
    assert one_line("\x1b[1;31mred\x1b[0m [b] \x00 a\r\n") == "red [b] ␀ a"
    assert one_line("\x1b]0;title\x07text \x1b[") == "text ␛["
    assert literal("\x1b[31mred\x00") == "␛[31mred␀"


@given(st.text(), st.integers(0, 30))
def test_elided_text_fits(text: str, width: int) -> None:
    assert cell_len(elide(text, width)) <= max(width, 0)


def test_elided_text_never_ends_inside_a_number() -> None:
    assert elide("used 12345 pages", 8) == "used …"
    assert elide("used 12345 pages", 12) == "used 12345…"
    assert elide("short", 5) == "short"
