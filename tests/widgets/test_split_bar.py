"""How a whole is split into cells, and what stands under the bar."""

from hypothesis import given, settings
from hypothesis import strategies as st

from widgets.core_bars import skyline
from widgets.demo import Demo
from widgets.facts import Fact, Facts
from widgets.split_bar import SplitBar, SplitPart, split_cells


@settings(max_examples=100)
@given(st.lists(st.integers(0, 1_000_000), min_size=1, max_size=8), st.integers(8, 200))
def test_the_cells_fill_the_bar_and_nothing_that_is_there_vanishes(values: list[int], width: int) -> None:
    cells = split_cells(values, width)
    assert sum(cells) == (width if sum(values) > 0 else 0)
    for value, count in zip(values, cells, strict=True):
        assert (count > 0) == (value > 0) or sum(values) <= 0
        if sum(values) > 0:
            assert count <= value / sum(values) * width + 1


async def test_a_split_without_colours_has_letters_and_an_empty_one_says_why() -> None:
    bar = SplitBar()
    demo = Demo(bar)
    demo.no_color = True
    async with demo.run_test(size=(40, 6)) as pilot:
        bar.set_parts([SplitPart("[a", 3, "#5fafff", "A", ("3 s",)), SplitPart("b", 1, "#ffaf00", "B", ("1 s",))])
        await pilot.pause()
        assert str(bar.render()).splitlines() == ["A" * 30 + "B" * 10, f"{'A [a  3 s':18}   {'B b   1 s':18}"]
        bar.set_parts([SplitPart("a", 0, "#5fafff", "A")], "nothing [yet]")
        await pilot.pause()
        assert str(bar.render()).splitlines()[0] == "nothing [yet]"


async def test_the_legend_has_as_many_columns_as_have_room_for_whole_names() -> None:
    bar = SplitBar()
    names = ("prefill", "decode", "memory", "scheduling", "I/O", "idle", "down")
    parts = [SplitPart(name, 1, "#5fafff", "x", ("21.2 s", "$0.0212", "0.27 %")) for name in names]
    async with Demo(bar).run_test(size=(116, 12)) as pilot:
        bar.set_parts(parts)
        for width, rows in ((116, 4), (117, 3), (40, 7)):
            await pilot.resize_terminal(width, 12)
            await pilot.pause()
            lines = str(bar.render()).splitlines()[1:]
            assert len(lines) == rows, width
            assert all(any(name in line for line in lines) for name in names), width


async def test_facts_keep_their_value_and_their_reason_where_labels_are_long() -> None:
    facts = Facts()
    async with Demo(facts).run_test(size=(40, 6)) as pilot:
        facts.set_facts(
            [
                Fact("a very long label that never ends", "n/a", "not supported", level="unknown"),
                Fact("busy", "71 %", share=0.71),
            ]
        )
        await pilot.pause()
        long, busy = str(facts.render()).splitlines()
        assert long.startswith("a very long")
        assert long.endswith("…   n/a  not supported")
        assert busy.startswith("busy")
        assert "█" in busy
        assert busy.endswith("71 %")


def test_a_skyline_rises_with_the_share() -> None:
    assert skyline([0.0, 0.5, 1.0, 1.7]) == "▁▅██"
