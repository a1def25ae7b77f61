"""Changes values in the TOML source of a profile and leaves everything else as its author wrote it."""

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import tomlkit
from tomlkit.exceptions import TOMLKitError
from tomlkit.items import InlineTable, Item, Table

from profiles.errors import ProfileError
from profiles.files import beside
from profiles.schema import ANY_TIER, knobs
from profiles.store import ProfileStore, check_text, nearest_key, read_text

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")


def save_values(store: ProfileStore, name: str, base: str, values: Mapping[str, str]) -> Path:
    """Save the user's profile `name`: the source of profile `base` with `values` set; returns the file.

    `values` are TOML by dotted path (`scheduler.token_budget`: `512`); what isn't TOML is taken as a string, and an
    empty text removes the key, so that it has its default. `description` can be set too. Raises `ProfileError`, and
    then nothing is written: a path that is no knob, a profile that would be wrong, a file that can't be written.
    """
    if not _NAME.fullmatch(name):
        raise ProfileError(store.user_dir, f'"{name}" is no name for a profile; use letters, digits, ".", "_" and "-"')
    path = store.user_dir / f"{name}.toml"
    text = with_values(path, read_text(store.file(base)), values)
    profile, problems = check_text(path, text)
    if profile is None:
        raise problems[0]
    _write(path, text)
    return path


def with_values(path: Path, source: str, values: Mapping[str, str]) -> str:
    """`source` with `values` set as `save_values` says; `path` is named in errors, and its stem is the new name."""
    try:
        document = tomlkit.parse(source)
    except TOMLKitError as error:
        raise ProfileError(path, f"not valid TOML: {error}") from error
    if "name" in document:
        _set(document, ("name",), tomlkit.string(path.stem))
    known = {knob.path for knob in knobs()} | {("description",)}
    removed = _unused(source)
    for dotted, text in values.items():
        keys = tuple(dotted.split("."))
        if (keys if keys[0] != "tiers" else ("tiers", ANY_TIER, *keys[2:])) not in known:
            raise ProfileError(path, "unknown key", key=dotted, suggestion=nearest_key(keys))
        try:
            if text.strip():
                _set(document, keys, _value(text.strip()))
            else:
                _remove(document, keys, removed)
        except (TypeError, ValueError) as error:
            raise ProfileError(path, "can't be set: what it stands in is no section", key=dotted) from error
    # A comment behind the value of a removed key stays, on a line of its own.
    line = re.compile(rf'^([ \t]*)[^\n]*"{removed}"[ \t]*(?:(#[^\n]*\n?)|\r?\n?)', re.MULTILINE)
    return line.sub(lambda match: match[1] + match[2] if match[2] else "", tomlkit.dumps(document))


def _value(text: str) -> Item:
    try:
        return tomlkit.value(text)
    except TOMLKitError:
        return tomlkit.string(text)


def _set(document: tomlkit.TOMLDocument, keys: tuple[str, ...], value: Item) -> None:
    level: Any = document
    for key in keys[:-1]:
        if key not in level:
            level[key] = tomlkit.inline_table() if isinstance(level, InlineTable) else tomlkit.table()
        level = level[key]
    if isinstance(level, Table) and level.is_super_table():
        # So far only headers of its children imply it, and it repeats the first one's comment once it has its own.
        level.trivia.comment_ws = level.trivia.comment = ""
    level[keys[-1]] = value


def _remove(document: tomlkit.TOMLDocument, keys: tuple[str, ...], mark: str) -> None:
    """Remove a key from an inline table; anywhere else its value becomes `mark`."""
    level: Any = document
    inline = False
    for key in keys[:-1]:
        if key not in level:
            return
        level = level[key]
        inline = inline or isinstance(level, InlineTable)
    if keys[-1] in level:
        if inline:
            del level[keys[-1]]
        else:
            level[keys[-1]] = tomlkit.string(mark)


def _unused(source: str) -> str:
    """A text that isn't in `source`."""
    mark = "removed"
    while mark in source:
        mark += "-"
    return mark


def _write(path: Path, text: str) -> None:
    """Whole or not at all. A link keeps pointing where it does: its target is replaced."""
    target = Path(os.path.realpath(path))
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with beside(target) as new:
            new.write_bytes(text.encode())
    except OSError as error:
        raise ProfileError(path, f"can't be written: {error.strerror}") from error
