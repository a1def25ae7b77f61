"""What can be wrong with a profile, said so that a person can mend it."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(eq=False)
class ProfileError(Exception):
    """One problem in one profile.

    `line` counts from 1 and `key` is the dotted key; both are `None` where the problem isn't at one. `suggestion` is
    the nearest thing that would have been valid.
    """

    file: Path
    message: str
    line: int | None = None
    key: str | None = None
    suggestion: str | None = None

    def __str__(self) -> str:
        place = f"{self.file}:{self.line}" if self.line is not None else f"{self.file}"
        key = f" {self.key}:" if self.key else ""
        hint = f" Did you mean {self.suggestion}?" if self.suggestion else ""
        return f"{place}:{key} {self.message}.{hint}"
