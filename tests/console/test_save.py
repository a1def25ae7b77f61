"""Saving what is on the screen: pictures that aren't blank, data with units, and a sentence where it can't be."""

import csv
import io
import re
from pathlib import Path

import msgspec
import pytest
from harness import Console, settle
from PIL import Image
from stub_host import NOON, REQUESTS, StubHost, history
from textual.widgets import TextArea

from console.app import ConsoleApp
from console.export import HISTORY_COLUMNS, REQUEST_COLUMNS, history_csv, requests_csv
from console.save import png, saved_dir
from engine_host.api.types import HistoryPoint, RequestRow


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where things are saved: a folder of the test's own."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    assert saved_dir().is_relative_to(tmp_path)
    return saved_dir()


def said(app: ConsoleApp) -> str:
    return " ".join(str(notice.message) for notice in app._notifications)


def saved(folder: Path, pattern: str = "*") -> list[Path]:
    """The files there are, by name; hidden ones too."""
    return sorted(folder.glob(pattern))


def check_picture(svg: Path, picture: Path) -> None:
    """The PNG has the size that the SVG says, and as many colours as text drawn smoothly has."""
    text = svg.read_text()
    assert "Latency" in text
    size = [float(side) for side in re.findall(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', text)[0]]
    with Image.open(picture) as image:
        assert list(image.size) == pytest.approx(size, abs=1)
        assert len(image.convert("RGB").getcolors(1 << 24) or ()) > 20


async def test_a_view_is_saved_as_svg_and_png(console: Console, home: Path) -> None:
    host = StubHost()
    host.points = history()
    async with console(host, "overview", (80, 24)) as (app, pilot):
        await pilot.press("s")
        await settle(app, pilot)
        picture, svg = saved(home)
        assert (picture.suffix, svg.suffix) == (".png", ".svg")
        assert f"{svg} and {picture}" in said(app)
        assert picture.name.startswith("llmconsole-overview-")
        check_picture(svg, picture)


def test_text_in_a_font_that_is_not_there_is_drawn() -> None:
    box = '<svg xmlns="http://www.w3.org/2000/svg" width="200" height="30"><rect width="200" height="30"/>{}</svg>'
    for text in ("TTFT 82 ms", "⣿⣀█░◇◆✚■"):
        style = 'style="font-family: Fira Code, monospace" fill="white" x="5" y="20"'
        assert png(box.format(f"<text {style}>{text}</text>")) != png(box.format(""))


async def test_the_key_is_another_where_s_sorts_or_types(console: Console, home: Path) -> None:
    async with console(StubHost(), "requests", (80, 24)) as (app, pilot):
        before = str(app.screen.query_one("#requests").border_subtitle)
        await pilot.press("s")
        assert str(app.screen.query_one("#requests").border_subtitle) != before
        assert not saved(home)
        await pilot.press("S")
        await settle(app, pilot)
        assert [path.name.split("-")[1] for path in saved(home, "*.png")] == ["requests"]
        await app.switch_mode("chat")
        await settle(app, pilot)
        await pilot.press("s", "S")
        assert app.screen.query_one(TextArea).text == "sS"
        await pilot.press("f11")
        await settle(app, pilot)
        assert [path.name.split("-")[1] for path in saved(home, "*.png")] == ["chat", "requests"]
        names = [command.title for command in app.get_system_commands(app.screen)]
        assert "Save the view" in names


@pytest.fixture
def blocked(home: Path) -> Path:
    """A file where the folder should be."""
    home.parent.mkdir(parents=True)
    home.write_text("")
    return home


async def test_what_cannot_be_saved_is_said(console: Console, blocked: Path) -> None:
    async with console(StubHost(), "overview", (80, 24)) as (app, pilot):
        await pilot.press("s")
        await settle(app, pilot)
        assert f"It can't be saved in {blocked}" in said(app)


async def test_the_data_behind_the_plots_is_exported(console: Console, home: Path) -> None:
    host = StubHost()
    host.points = history(200)
    async with console(host, "overview", (80, 24)) as (app, pilot):
        await pilot.press("e")
        await settle(app, pilot)
        (path,) = saved(home)
        assert str(path) in said(app)
        rows = list(csv.DictReader(io.StringIO(path.read_text())))
        assert [float(row["time_unix_s"]) for row in rows] == [NOON - 120 + n for n in range(120)]
        await app.switch_mode("requests")
        await settle(app, pilot)
        await pilot.press("e")
        await settle(app, pilot)
        (path,) = saved(home, "llmconsole-requests-*.csv")
        assert len(path.read_text().splitlines()) == 1 + len(REQUESTS)


def test_a_point_has_its_time_twice_and_nothing_where_it_is_unknown() -> None:
    (first, *_) = csv.DictReader(io.StringIO(history_csv(history(1))))
    assert first["time_iso"] == "2026-01-01T11:59:59Z"
    assert first["ttft_p50_s"] == ""
    assert first["device_power_w"] == ""
    assert first["prefill_tokens_per_s"] == "400.0"


def test_every_field_is_exported() -> None:
    for kind, columns in ((HistoryPoint, HISTORY_COLUMNS), (RequestRow, REQUEST_COLUMNS)):
        assert {field.name for field in msgspec.structs.fields(kind)} == columns.keys()


def test_a_request_is_exported_as_it_is() -> None:
    rows = list(csv.DictReader(io.StringIO(requests_csv(REQUESTS))))
    assert [row["key"] for row in rows] == [row.key for row in REQUESTS]
    assert rows[2]["cached_tokens"] == ""
