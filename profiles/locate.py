"""Where a key stands in a TOML text."""

import re
from typing import Any

import tomli

_KEY = re.compile(r"""\s*((?:[\w.\s-]|"[^"\n]*"|'[^'\n]*')+?)\s*=""")
_TABLE = re.compile(r"\s*\[")


def line_of(text: str, path: tuple[str, ...]) -> int | None:
    """Line (from 1) of the key `path` in valid TOML, or of the nearest enclosing key or table that is written out."""
    for length in range(len(path), 0, -1):
        for number, written in _written_keys(text):
            if written[:length] == path[:length]:
                return number
    return None


def key_on_line(text: str, number: int) -> str | None:
    """The key written on line `number` (from 1) of a text that need not be valid."""
    lines = text.split("\n")
    match = _KEY.match(lines[number - 1]) if 0 < number <= len(lines) else None
    return match[1][:80] if match else None


def _written_keys(text: str) -> list[tuple[int, tuple[str, ...]]]:
    """(line, full path) of every key and table header in valid TOML."""
    lines = text.split("\n")
    table: tuple[str, ...] = ()
    found: list[tuple[int, tuple[str, ...]]] = []
    for index, line in enumerate(lines):
        match = _KEY.match(line)
        if match:
            path = _path_of(f"{match[1]} = 0")
            statement = path and (*table, *path)
        elif _TABLE.match(line):
            path = _path_of(line)
            statement = table = path or table
        else:
            continue
        # Inside a multi-line string or array the text before this line is no valid document.
        if statement and _parse("\n".join(lines[:index])) is not None:
            found.append((index + 1, statement))
    return found


def _path_of(line: str) -> tuple[str, ...] | None:
    """The one key path a single line of TOML defines."""
    data: Any = _parse(line)
    path: list[str] = []
    while isinstance(data, dict | list) and data:
        if isinstance(data, list):
            data = data[0]
            continue
        key, data = next(iter(data.items()))
        path.append(key)
    return tuple(path) or None


def _parse(text: str) -> dict[str, Any] | None:
    try:
        return tomli.loads(text)
    except ValueError:
        return None
