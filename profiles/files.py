"""Writing files so that nobody ever finds half of one."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def beside(path: Path, mode: int = 0o666) -> Iterator[Path]:
    """A new, empty file beside `path`, to be written: it takes its place at the end, and after an error is removed.

    Its permissions are `mode` less the process's umask, from before the first byte is in it. Raises `OSError`.
    """
    new = path.with_name(f".{path.name}.{os.getpid()}.new")
    os.close(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, mode))
    try:
        yield new
        new.replace(path)
    finally:
        new.unlink(missing_ok=True)
