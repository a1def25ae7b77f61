from pathlib import Path

import pytest

from console.settings import Settings, SettingsError, load_settings, save_theme


def test_defaults_without_a_file(tmp_path: Path) -> None:
    assert load_settings(tmp_path / "none.toml") == Settings()


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'tehme = "nord"', "did you mean 'theme'?"),
        (b"refresh_hz = 'fast'", "refresh_hz"),
        (b"refresh_hz = 400", "refresh_hz"),
        (b"theme = = 1", "line 1"),
        (b"theme = '\xff'", "can't be read"),
    ],
)
def test_errors_name_the_file_and_the_key(tmp_path: Path, content: bytes, said: str) -> None:
    path = tmp_path / "console.toml"
    path.write_bytes(content)
    with pytest.raises(SettingsError) as raised:
        load_settings(path)
    assert said in str(raised.value)
    assert str(path) in str(raised.value)
    assert raised.value.usable == Settings()


def test_the_theme_is_kept_beside_the_rest(tmp_path: Path) -> None:
    path = tmp_path / "new" / "console.toml"
    save_theme("nord", path)
    path.write_text("# mine\nrefresh_hz = 1.0\n" + path.read_text())
    save_theme("dracula", path)
    assert load_settings(path) == Settings(theme="dracula", refresh_hz=1.0)
    assert "# mine" in path.read_text()
    assert [entry.name for entry in path.parent.iterdir()] == ["console.toml"]
