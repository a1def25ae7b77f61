"""The table for rows of any kind: the cursor stays on its row, columns leave whole, nothing is markup."""

from widgets.demo import Demo
from widgets.table import Column, Table

COLUMNS: tuple[Column[tuple[str, int]], ...] = (
    Column("name", 8, 9, lambda row, width: row[0], left=True),
    Column("count", 8, 5, lambda row, width: f"{row[1]:,}"),
)


def lines(table: Table[tuple[str, int]]) -> list[str]:
    """What is drawn."""
    return [table.render_line(y).text.rstrip() for y in range(table.size.height)]


async def test_the_cursor_follows_its_row_and_stays_in_view() -> None:
    table = Table(COLUMNS, lambda row: row[0], empty="no [row]")
    async with Demo(table).run_test(size=(30, 6)) as pilot:
        await pilot.pause()
        assert lines(table)[1] == "  no [row]"
        table.focus()
        table.set_rows([(f"r{n}", n) for n in range(50)])
        await pilot.press("end", "k")
        assert table.selected_row == ("r48", 48)
        table.set_rows([(f"r{n}", n + 1) for n in range(20, 50)], sorted_by="count")
        await pilot.pause()
        assert table.selected_row == ("r48", 49), "its row has moved up by twenty"
        assert "r48" in "\n".join(lines(table))
        assert "count ▾" in lines(table)[0]
        table.set_rows([("r1", 1)])
        await pilot.pause()
        assert table.selected_row == ("r1", 1)


async def test_columns_leave_whole_and_names_are_literal() -> None:
    table = Table(COLUMNS, lambda row: row[0])
    async with Demo(table).run_test(size=(30, 6)) as pilot:
        table.set_rows([("[/b]掲示板\x1b[31m", 123_456_789_000)])
        await pilot.pause()
        assert lines(table)[1].split() == ["[/b]掲…", "…"], "a number is never cut"
        await pilot.resize_terminal(14, 6)
        await pilot.pause()
        assert lines(table)[0] == "  name"
