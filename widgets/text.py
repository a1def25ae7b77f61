"""Foreign text made safe to draw: names, log lines, model replies and errors are shown, never interpreted."""

import re

from rich.cells import cell_len, set_cell_size

_ESCAPE_SEQUENCE = re.compile(
    r"\x1b\[[0-?]*[ -/]*[@-~]"  # CSI: colours, cursor moves
    r"|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)"  # OSC: titles, links
    r"|\x1b[@-Z\\^_]"
)
_SPLIT_NUMBER = re.compile(r"[\d.,\u202f]+$")

# One character for one, so that positions in the text stay positions on the screen.
_VISIBLE = (
    {code: 0x2400 + code for code in range(0x20) if chr(code) not in "\t\n"}
    | {0x7F: 0x2421, 0x2028: 0x2424, 0x2029: 0x2424}
    | dict.fromkeys(range(0x80, 0xA0), 0xFFFD)
    | dict.fromkeys((*range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)  # they would reorder the line around them
    | dict.fromkeys(range(0xD800, 0xE000), 0xFFFD)  # a lone surrogate can't be encoded for the terminal
)


def literal(text: str) -> str:
    """The text with every control character as a visible one, of the same length; newlines and tabs stay."""
    return text.translate(_VISIBLE)


def one_line(text: str) -> str:
    """The text on one line: escape sequences stripped, tabs as spaces, all other control characters visible."""
    if "\x1b" in text:
        text = _ESCAPE_SEQUENCE.sub("", text)
    return text.rstrip("\r\n").expandtabs(4).translate(_VISIBLE).replace("\n", "␤")


def elide(text: str, width: int) -> str:
    """The text in at most `width` cells, ending in `…` where something is left out, and never inside a number."""
    if cell_len(text) <= width:
        return text
    if width <= 0:
        return ""
    kept = set_cell_size(text, width - 1).rstrip()
    if kept and kept[-1].isdigit() and text[len(kept) : len(kept) + 1].isdigit():
        kept = _SPLIT_NUMBER.sub("", kept)
    return kept + "…"
