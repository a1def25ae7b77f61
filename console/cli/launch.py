"""From the command line to a running host."""

import os
import sys
from typing import TYPE_CHECKING

from console.cli.output import error, import_progress

if TYPE_CHECKING:
    from engine_host.options import HostOptions

# `{socket}` is filled in by the host.
SCREEN = (sys.executable, "-m", "console.screen", "--socket", "{socket}")


def launch(
    model: str | None,
    profile: str | None,
    host: str,
    port: int,
    serve_args: tuple[str, ...],
    with_screen: bool,
    allow_without_key: bool,
) -> int:
    """Check what was asked for, prepare the default model where it is needed, run the host; returns the exit code."""
    if with_screen and (reason := _no_screen_here()):
        error(f"The console can't open: {reason}. llmconsole serve runs the same engine without a screen.")
        return 2
    from engine_host.options import HostOptions

    options = HostOptions(
        model=model,
        profile=profile,
        host=host,
        port=port,
        serve_args=serve_args,
        allow_without_key=allow_without_key,
    )
    if not (_guarded(options) and _ready(options, as_json=not with_screen)):
        return 1
    from engine_host.main import run

    return run(options, SCREEN if with_screen else None)


def _no_screen_here() -> str | None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return "standard input and output are not a terminal"
    if (term := os.environ.get("TERM", "")) in ("", "dumb"):
        return f'the terminal (TERM="{term}") can\'t place text on the screen'
    return None


def _guarded(options: "HostOptions") -> bool:
    """Whether nobody but this machine would be served without a key; why not is said on standard error."""
    from engine_host.gateway.access import asks_for_key, exposure, given_keys, is_loopback

    if options.allow_without_key or is_loopback(options.host):
        return True
    from engine_host.gateway.keys import KEYS_FILE, KeyStore
    from engine_host.planning import local_device
    from profiles.errors import ProfileError
    from profiles.store import ProfileStore, default_profile

    name = options.profile or default_profile(local_device()[0])
    try:
        required = ProfileStore(options.config_dir / "profiles").load(name).keys.required
    except ProfileError as problem:
        error(str(problem))
        return False
    any_key = bool(given_keys(options.serve_args)) or KeyStore(options.data_dir / KEYS_FILE).any_key()
    if not asks_for_key(required, any_key):
        error(exposure(options.host, required))
        return False
    return True


def _ready(options: "HostOptions", as_json: bool) -> bool:
    """Whether profile and model are there; what isn't is said on standard error."""
    from engine_host.models.errors import ModelError
    from engine_host.models.store import ModelStore

    model = options.model
    if options.profile is not None:
        from profiles.errors import ProfileError
        from profiles.store import ProfileStore

        try:
            model = model or ProfileStore(options.config_dir / "profiles").load(options.profile).engine.model
        except ProfileError as problem:
            error(str(problem))
            return False
    store = ModelStore(options.data_dir / "models")
    try:
        if model is not None:
            store.resolve(model)
        elif store.default_model() is None:
            with import_progress("Preparing the default model", as_json) as show:
                store.prepare_default(show)
    except ModelError as caught:
        error(str(caught))
        return False
    except KeyboardInterrupt:
        error("Interrupted while preparing the default model; nothing half-made was kept.")
        raise
    return True
