"""`llmconsole profile …`: the tuning profiles and what is wrong with them."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.output import error, say, table

if TYPE_CHECKING:
    from engine_host.api.types import PlanLine, ProfileChange
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
            for knob in knobs(profile.tiers)
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


@app.command()
def diff(
    first: Annotated[str, typer.Argument(metavar="A", help="The profile to change from; alone, the one to change to.")],
    second: Annotated[
        str | None, typer.Argument(metavar="[B]", help="The profile to change to. [default: A, from the default one]")
    ] = None,
    model: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Show the memory both would take with this model.")
    ] = None,
) -> None:
    """Show what changing from profile A to B would do: which knobs differ, and which of them need a rebuild.

    Exits with 1 where B can't fit the device with the model given.
    """
    from engine_host.models.errors import ModelError
    from engine_host.models.store import ModelStore
    from engine_host.planning import local_device, profile_change
    from profiles.errors import ProfileError
    from profiles.model_shape import ModelShape, PlanError
    from profiles.store import ProfileStore, default_profile

    store = ProfileStore()
    device, device_bytes = local_device()
    names = (first, second) if second is not None else (default_profile(device), first)
    try:
        old, new = (store.load(name) for name in names)
        folder = ModelStore().resolve(model) if model is not None else None
        if folder is not None:
            ModelShape.read(folder)
    except (ProfileError, ModelError, PlanError) as problem:
        error(str(problem))
        raise typer.Exit(1) from None
    change = profile_change(old, old, new, folder, None, device, device_bytes)
    _print_knobs(change)
    if change.plan:
        say("")
        columns = ("Memory", change.old, change.new)
        rows = [(line.label, _amount(line, line.old), _amount(line, line.new)) for line in change.plan]
        table(columns, rows, right=columns[1:])
    if change.refused is not None:
        error(change.refused)
        raise typer.Exit(1)


@app.command()
def apply(
    name: Annotated[str, typer.Argument(metavar="NAME", help="The profile to apply.")],
    why: Annotated[str, typer.Option(metavar="TEXT", help="A reason, kept in the history of changes.")] = "",
    model: Annotated[
        str | None, typer.Option(metavar="NAME|PATH", help="Change the model too; running requests end first.")
    ] = None,
    pid: Annotated[
        int | None, typer.Option(metavar="PID", help="Of which host, where several run on this machine.")
    ] = None,
    wait: Annotated[bool, typer.Option(help="Wait for a rebuild to end, and say how it went.")] = True,
) -> None:
    """Apply a profile to the running host, with its requests kept.

    Live knobs are in force at the next step. Anything else rebuilds the engine; requests go on in the new one.
    """
    import asyncio

    from console.cli.apply import apply_to, find_host

    socket = find_host(pid)
    if socket is None:
        raise typer.Exit(1)
    if not asyncio.run(apply_to(socket, name, model, why, wait)):
        raise typer.Exit(1)


def _print_knobs(change: "ProfileChange") -> None:
    if not change.knobs:
        say(f"Nothing differs between {change.old} and {change.new}.")
        return
    table(
        ("Key", change.old, change.new, "Unit", "Change", "Why"),
        [(knob.path, knob.old, knob.new, knob.unit or "", knob.when, knob.why or "") for knob in change.knobs],
        right=(change.old, change.new),
    )
    say("")
    say("The engine is rebuilt." if change.rebuild else "All of it is live: in force at the next step.")


def _amount(line: "PlanLine", value: float | None) -> str:
    if value is None:
        return "n/a"
    if line.unit == "bytes":
        text = f"{value / 1e6:,.1f} MB"
    else:
        text = f"{value:,.2f}" if line.unit == "sequences" else f"{value:,.0f} {line.unit}"
    return f"est. {text}" if line.estimated else text


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
