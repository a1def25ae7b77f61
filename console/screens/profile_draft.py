"""A profile being edited: its values as text, and what would be wrong with them."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomli
import tomlkit
from tomlkit.exceptions import TOMLKitError

from engine_host.api.types import ProfileText
from profiles.edit import with_values
from profiles.errors import ProfileError
from profiles.gateway import BUILT_IN_TIERS
from profiles.schema import Knob, knobs
from profiles.store import check_text

DESCRIPTION = "description"


class SourceError(Exception):
    """A source that is no TOML, so that there are no values to edit; `str()` is a sentence."""


class Draft:
    """The values in a source. Texts are TOML, or a string as it is; empty is left out, so that the default holds."""

    def __init__(self, source: ProfileText) -> None:
        """Raises `SourceError`."""
        self.source = source
        try:
            self._data = tomli.loads(source.text)
        except (ValueError, RecursionError) as error:
            name = source.name
            raise SourceError(f"{name} can't be edited here, its file is not valid TOML: {error}.") from error
        named = self._data.get("tiers")
        self.knobs: tuple[Knob, ...] = knobs((*BUILT_IN_TIERS, *(named if isinstance(named, dict) else ())))

    def value(self, path: str) -> str:
        """What the source says at a dotted path; empty where it says nothing."""
        at: Any = self._data
        for key in path.split("."):
            at = at.get(key) if isinstance(at, dict) else None
        return "" if at is None or isinstance(at, dict) else _text(at)

    def changed(self, values: Mapping[str, str]) -> dict[str, str]:
        """Those of the values that differ from the source."""
        return {path: text.strip() for path, text in values.items() if text.strip() != self.value(path)}

    def problems(self, values: Mapping[str, str], name: str) -> dict[str, str]:
        """What would be wrong with a profile `name` of these values: a sentence by dotted path, by "" for the whole."""
        path = Path(f"{name or self.source.name}.toml")
        try:
            _, errors = check_text(path, with_values(path, self.source.text, self.changed(values)))
        except ProfileError as error:
            errors = (error,)
        return {error.key or "": _sentence(error) for error in reversed(errors)}


def default_text(knob: Knob) -> str:
    """What holds where a knob is left out."""
    return "unset" if knob.default is None else _text(knob.default)


def _text(value: object) -> str:
    """A value as it is typed: a string bare, unless it would then be read as something else."""
    if isinstance(value, str):
        try:
            tomlkit.value(value)
        except TOMLKitError:
            return value
    return tomlkit.item(value).as_string()


def _sentence(error: ProfileError) -> str:
    hint = f" Did you mean {error.suggestion}?" if error.suggestion else ""
    return f"{error.message[:1].upper()}{error.message[1:]}.{hint}"
