"""A whole on one line: parts by their share, named whole or not at all, and unknown where nothing is known."""

import pytest
from rich.cells import cell_len

from widgets import palette
from widgets.demo import Demo
from widgets.split_bar import SplitPart
from widgets.split_line import SplitLine

PARTS = [
    SplitPart(name, value, palette.series(at), name[0], (f"{value:.0f} ms",))
    for at, (name, value) in enumerate({"queue [b": 10.0, "prefill": 30.0, "decode": 0.0, "delivery": 1.0}.items())
]


async def drawn(line: SplitLine, width: int, height: int) -> list[str]:
    line.styles.height = height
    async with Demo(line).run_test(size=(width, height)):
        line.set_parts(PARTS, "mean 41 ms")
        return line.render().plain.split("\n")


async def test_the_largest_parts_are_named_first_and_whole() -> None:
    bar, *names = await drawn(SplitLine("parts", label_width=5), 44, 3)
    assert bar == f"parts  {'█' * 25}  mean 41 ms"
    assert names == ["■ prefill 30 ms  ■ queue [b 10 ms", "■ delivery 1 ms"]


@pytest.mark.parametrize("width", [44, 30, 20, 12, 9])
async def test_nothing_is_cut(width: int) -> None:
    for height in (1, 2):
        lines = await drawn(SplitLine("parts"), width, height)
        assert len(lines) <= height
        assert all(cell_len(line) <= width for line in lines)
        assert lines[0].endswith("mean 41 ms") or lines[0] == "…"
        assert all(name.endswith(" ms") for name in lines[1:] if name)


async def test_what_is_unknown_has_dashes_for_a_bar() -> None:
    line = SplitLine("bill")
    async with Demo(line).run_test(size=(30, 3)):
        line.set_parts([SplitPart("idle", 0.0, palette.series(0), "i")], "n/a")
        shown = line.render().plain
        assert "╌" in shown
        assert "n/a" in shown
        assert "█" not in shown
        assert "idle" not in shown


async def test_without_colour_letters_tell_the_parts_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    bar, names, *_ = await drawn(SplitLine("parts", label_width=5), 44, 3)
    assert {"q", "p", "d"} <= set(bar[7:32])
    assert names.startswith("p prefill 30 ms")
