"""`llmconsole profile …`: the tuning profiles and what is wrong with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.output import error, say, table

if TYPE_CHECKING:
    from profiles.store import ProfileStore

app = typer.Typer(help="List, show and check tuning profiles.", rich_markup_mode=None, no_args_is_help=True)


@app.command("list")
def list_() -> None:
    """List all profiles; problems of broken ones go to standard error."""
    from profiles.store import BUILTIN_DIR, ProfileStore

    store = ProfileStore()
    files = store.files()
    profiles, problems = store.list()
    rows = [
        (profile.name, "built-in" if files[profile.name].parent == BUILTIN_DIR else "yours", profile.description)
        for profile in profiles
    ]
    table(("Name", "From", "Description"), rows)
    for problem in problems:
        error(str(problem))


@app.command()
def show(name: Annotated[str, typer.Argument(metavar="NAME", help="The profile's name.")]) -> None:
    """Show every value of a profile, its unit, and when a change takes effect."""
    from profiles.errors import ProfileError
    from profiles.schema import knobs
    from profiles.store import ProfileStore

    store = ProfileStore()
    try:
        profile = store.load(name)
    except ProfileError as problem:
        error(str(problem))
        raise typer.Exit(1) from None
    say(f"{profile.name}: {profile.description}" if profile.description else profile.name)
    say(str(store.file(name)))
    say("")
    values = profile.model_dump()
    table(
        ("Key", "Value", "Unit", "Change", "Meaning"),
        [
            (".".join(knob.path), _value(values, knob.path), knob.unit or "", knob.when, knob.description)
            for knob in knobs()
        ],
        right=("Value",),
    )


@app.command()
def check(
    profile: Annotated[
        str | None, typer.Argument(metavar="[NAME_OR_FILE]", help="A profile's name or a TOML file. [default: all]")
    ] = None,
) -> None:
    """Check profiles; exits with 1 and names file, line and key where one is wrong."""
    from profiles.store import ProfileStore, read_profile

    store = ProfileStore()
    files = store.files()
    if profile is None:
        checked = list(files.values())
    elif profile not in files and Path(profile).is_file():
        checked = [Path(profile)]
    else:
        checked = [_file(store, profile)]
    problems = [problem for path in checked for problem in read_profile(path)[1]]
    for problem in problems:
        error(str(problem))
    if problems:
        raise typer.Exit(1)
    say(f"{len(checked)} profile{'s are' if len(checked) != 1 else ' is'} in order.")


def _file(store: "ProfileStore", name: str) -> Path:
    from profiles.errors import ProfileError

    try:
        return store.file(name)
    except ProfileError as problem:
        error(str(problem))
        raise typer.Exit(1) from None


def _value(values: object, path: tuple[str, ...]) -> str:
    for name in path:
        values = values.get(name) if isinstance(values, dict) else None
    if values is None:
        return "–"
    return str(values).lower() if isinstance(values, bool) else str(values)
