"""What the operator asked for when starting the host."""

import os
from dataclasses import dataclass, field
from pathlib import Path

import platformdirs

APP = "llmconsole"
DEFAULT_HOST = "127.0.0.1"
DEFAULT_PORT = 8000


MAX_RUNTIME_BASE = 35
"""Longest base of the runtime folder, in characters: below it come ours (36) and vLLM's socket names (36), and the
system takes 107 bytes for the path of a Unix socket (unix(7))."""


def _runtime_dir() -> Path:
    """A folder private to the user, emptied by a reboot, with a path short enough for sockets in it."""
    base = os.environ.get("XDG_RUNTIME_DIR", "")
    if base and len(base) <= MAX_RUNTIME_BASE and os.access(base, os.W_OK):
        return Path(base) / APP
    return Path("/tmp") / f"{APP}-{os.getuid()}"


@dataclass(frozen=True)
class HostOptions:
    """The command line, resolved.

    `model` is a name in the model store or anything vLLM can load (`None`: the default model); `serve_args` are the
    options passed on to vLLM's own parser as they were typed; `allow_without_key` serves requests without a key from
    outside this machine too; `start_timeout_s` ends a start that hangs.
    """

    model: str | None = None
    profile: str | None = None
    host: str = DEFAULT_HOST
    port: int = DEFAULT_PORT
    serve_args: tuple[str, ...] = ()
    allow_without_key: bool = False
    data_dir: Path = field(default_factory=lambda: platformdirs.user_data_path(APP))
    config_dir: Path = field(default_factory=lambda: platformdirs.user_config_path(APP))
    log_dir: Path = field(default_factory=lambda: platformdirs.user_log_path(APP))
    runtime_dir: Path = field(default_factory=_runtime_dir)
    start_timeout_s: float = 1800.0
