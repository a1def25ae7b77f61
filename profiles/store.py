"""Profiles as TOML files: the built-in ones and the user's, which shadow them."""

import difflib
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import platformdirs
import tomli
from pydantic import ValidationError

from profiles.errors import ProfileError
from profiles.locate import key_on_line, line_of
from profiles.schema import ANY_TIER, Device, Profile, knobs

BUILTIN_DIR = Path(__file__).parent / "builtin"
# A hundred times the longest built-in profile. A file above it isn't a profile, and reading it would only cost time.
MAX_BYTES = 128 * 1024


def default_profile(device: Device) -> str:
    """Name of the profile used when none is asked for."""
    return "balanced" if device == "cuda" else "cpu-tiny"


class ProfileStore:
    """The profiles a user can name. `user_dir` is their folder (it need not exist)."""

    def __init__(self, user_dir: Path | None = None) -> None:
        self.user_dir = user_dir if user_dir is not None else platformdirs.user_config_path("llmconsole") / "profiles"

    def files(self) -> dict[str, Path]:
        """Name to file, sorted by name; a user's file shadows the built-in one of the same name."""
        found: dict[str, Path] = {}
        for directory in (BUILTIN_DIR, self.user_dir):
            found |= {path.stem: path for path in directory.glob("*.toml") if path.is_file()}
        return dict(sorted(found.items()))

    def file(self, name: str) -> Path:
        """The file of the profile called `name`. Raises `ProfileError` if there is none."""
        files = self.files()
        if name not in files:
            raise ProfileError(
                self.user_dir / f"{name}.toml",
                f'there is no profile "{name}"; there are {", ".join(files)}',
                suggestion=_nearest(name, files),
            )
        return files[name]

    def load(self, name: str) -> Profile:
        """The profile called `name`. Raises `ProfileError`: there is none, or the first problem in its file."""
        profile, problems = read_profile(self.file(name))
        if profile is None:
            raise problems[0]
        return profile

    def list(self) -> tuple[tuple[Profile, ...], tuple[ProfileError, ...]]:
        """All profiles that can be read, by name, and every problem of those that can't."""
        read = [read_profile(path) for path in self.files().values()]
        return (
            tuple(profile for profile, _ in read if profile is not None),
            tuple(problem for _, problems in read for problem in problems),
        )


def read_profile(path: Path) -> tuple[Profile | None, tuple[ProfileError, ...]]:
    """The profile in `path`, or every problem found in it. Never raises."""
    try:
        return check_text(path, read_text(path))
    except ProfileError as problem:
        return None, (problem,)


def check_text(path: Path, text: str) -> tuple[Profile | None, tuple[ProfileError, ...]]:
    """The profile that `text` would be in a file at `path`, or every problem found in it. Never raises."""
    try:
        return Profile.model_validate({"name": path.stem, **_parse(path, text)}), ()
    except ProfileError as problem:
        return None, (problem,)
    except ValidationError as error:
        return None, tuple(_problem(path, text, dict(detail)) for detail in error.errors(include_url=False))


def read_text(path: Path) -> str:
    """The TOML source in `path`. Raises `ProfileError` where it can't be read, is too long, or is no UTF-8."""
    try:
        with path.open("rb") as file:
            raw = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise ProfileError(path, f"can't be read: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise _at_byte(path, raw, MAX_BYTES, f"the file is above {MAX_BYTES // 1024} KiB here, too long for a profile")
    try:
        return raw.decode()
    except UnicodeDecodeError as error:
        bad = raw[error.start]
        raise _at_byte(path, raw, error.start, f"byte 0x{bad:02x} is not UTF-8; save the file as UTF-8") from error


def _at_byte(path: Path, raw: bytes, offset: int, message: str) -> ProfileError:
    line = raw.count(b"\n", 0, offset) + 1
    return ProfileError(path, message, line, key_on_line(raw.decode(errors="replace"), line))


def _parse(path: Path, text: str) -> dict[str, Any]:
    try:
        data = tomli.loads(text)
    except tomli.TOMLDecodeError as error:
        line = error.lineno
        raise ProfileError(path, f"not valid TOML: {error.msg}", line, key_on_line(text, line)) from error
    except (RecursionError, ValueError) as error:
        raise ProfileError(path, "not valid TOML: nested too deeply or a number too long") from error
    if data.get("name", path.stem) != path.stem:
        message = f'must be "{path.stem}", the name of the file, or be left out'
        raise ProfileError(path, message, line_of(text, ("name",)), "name")
    return data


def _problem(path: Path, text: str, detail: dict[str, Any]) -> ProfileError:
    """One of pydantic's findings as a problem of the file."""
    key = tuple(str(part) for part in detail["loc"])
    given = detail["input"]
    suggestion = None
    if detail["type"] == "extra_forbidden":
        message = f"unknown {'section' if isinstance(given, dict) else 'key'}"
        suggestion = nearest_key(key)
    elif detail["type"] == "value_error":
        message = str(detail["ctx"]["error"])
    else:
        message = f"{detail['msg'].replace('Input should', 'must')}, not {_shown(given)}"
        if detail["type"] == "literal_error" and isinstance(given, str):
            suggestion = _nearest(given, detail["ctx"]["expected"].replace(" or ", ", ").replace("'", "").split(", "))
    return ProfileError(path, message, line_of(text, key), ".".join(key) or None, suggestion)


def _shown(value: object) -> str:
    if isinstance(value, dict):
        return "a section"
    text = {True: "true", False: "false"}[value] if isinstance(value, bool) else repr(value)
    return text if len(text) <= 40 else f"{text[:40]}…"


def nearest_key(path: tuple[str, ...]) -> str | None:
    """The valid key most like the unknown one: in its own section first, then anywhere (then with its section)."""
    section, name = path[:-1], path[-1]
    if near := _nearest(name, _keys_in(section)):
        return near
    anywhere = {knob.path[-1]: ".".join(knob.path) for knob in reversed(knobs())}
    near = _nearest(name, anywhere)
    return anywhere[near] if near else None


def _keys_in(section: tuple[str, ...]) -> list[str]:
    if not section:
        return list(Profile.model_fields)
    if section[0] == "tiers":
        section = ("tiers", ANY_TIER, *section[2:])
    return [knob.path[len(section)] for knob in knobs() if knob.path[: len(section)] == section]


def _nearest(word: str, options: Iterable[str]) -> str | None:
    return next(iter(difflib.get_close_matches(word, list(options), n=1)), None)
