"""What the operator set for the console: `console.toml` in the configuration directory."""

import difflib
from pathlib import Path
from typing import Annotated

import msgspec
import platformdirs
import tomli

from profiles.files import beside

FILE_NAME = "console.toml"


class Settings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """theme: a Textual theme's name, empty for a choice that suits the terminal. refresh_hz: how often the screen asks
    the host, 1 to 4 a second. system_prompt: what a new chat starts with."""

    theme: str = ""
    refresh_hz: Annotated[float, msgspec.Meta(ge=0.5, le=4)] = 2.0
    system_prompt: str = ""


class SettingsError(Exception):
    """The file can't be used; `str()` is the sentence, `usable` the settings to go on with."""

    def __init__(self, sentence: str) -> None:
        super().__init__(sentence)
        self.usable = Settings()


def settings_path() -> Path:
    """Where the file is looked for."""
    return platformdirs.user_config_path("llmconsole") / FILE_NAME


def load_settings(path: Path | None = None) -> Settings:
    """Read the file; defaults when there is none. Raises `SettingsError` when it can't be used."""
    path = path or settings_path()
    try:
        values = tomli.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return Settings()
    except (OSError, UnicodeDecodeError, tomli.TOMLDecodeError) as error:
        raise SettingsError(f"{path} can't be read: {error}. The defaults are used.") from error
    for key in values:
        if key not in Settings.__struct_fields__:
            near = difflib.get_close_matches(key, Settings.__struct_fields__, 1)
            meant = f"; did you mean {near[0]!r}?" if near else "."
            raise SettingsError(f"{path}: there is no setting {key!r}{meant} The defaults are used.")
    try:
        return msgspec.convert(values, Settings)
    except msgspec.ValidationError as error:
        raise SettingsError(f"{path}: {error}. The defaults are used.") from error


def save_theme(theme: str, path: Path | None = None) -> None:
    """Remember the theme, keeping the rest of the file as it is. Raises OSError or `tomlkit.exceptions.ParseError`."""
    import tomlkit

    path = path or settings_path()
    document = tomlkit.parse(path.read_text(encoding="utf-8")) if path.exists() else tomlkit.document()
    document["theme"] = theme
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with beside(path) as new:
        new.write_text(tomlkit.dumps(document), encoding="utf-8")
