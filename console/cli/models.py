"""`llmconsole model …`: what is in the model store."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.output import error, import_progress, say, table

if TYPE_CHECKING:
    from engine_host.models.store import StoredModel

app = typer.Typer(help="Import, list and remove models.", rich_markup_mode=None, no_args_is_help=True)

_UNKNOWN = "n/a"
Name = Annotated[str, typer.Argument(metavar="NAME", help="The model's name in the store.")]


@app.command("import")
def import_(
    source: Annotated[Path, typer.Argument(metavar="SOURCE", help="A GGUF file or a Hugging Face folder.")],
    name: Annotated[str | None, typer.Option(help="The name in the store. [default: from SOURCE]")] = None,
    dtype: Annotated[
        str | None, typer.Option(help="Weights of a GGUF file become bfloat16, float16 or float32. [default: bfloat16]")
    ] = None,
) -> None:
    """Make a model ready to serve."""
    from engine_host.models.errors import ModelError
    from engine_host.models.store import ModelStore

    try:
        with import_progress(f"Importing {source.name}") as show:
            stored = ModelStore().import_model(source, name, dtype, show)
    except ModelError as caught:
        error(str(caught))
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        error("The import was interrupted; nothing of it was kept.")
        raise typer.Exit(130) from None
    say(f"{stored.name} is ready: llmconsole --model {stored.name}")


@app.command("list")
def list_() -> None:
    """List the models that are ready to serve."""
    from engine_host.models.store import ModelStore

    models = ModelStore().list()
    if not models:
        say("There is no model yet. llmconsole prepares its default one; llmconsole model import adds others.")
        return
    rows = [
        (
            model.name,
            (model.facts and model.facts.architecture) or _UNKNOWN,
            (model.facts and model.facts.dtype) or _UNKNOWN,
            _size(model.size_bytes),
            model.facts.imported_at[:10] if model.facts else _UNKNOWN,
        )
        for model in models
    ]
    table(("Name", "Architecture", "Dtype", "Size", "Imported"), rows, right=("Size",))


@app.command()
def show(name: Name) -> None:
    """Show where a model is and where it came from."""
    model = _get(name)
    facts = model.facts
    rows = [("Name", model.name), ("Folder", str(model.path)), ("Size", _size(model.size_bytes))]
    if facts is None:
        rows.append(("Source", _UNKNOWN))
    else:
        rows += [
            ("Architecture", facts.architecture or _UNKNOWN),
            ("Dtype", facts.dtype or _UNKNOWN),
            ("Chat template", "yes" if facts.chat_template else "no"),
            ("Source", facts.source),
            ("Source size", _size(facts.source_bytes) if facts.source_bytes is not None else _UNKNOWN),
            ("Source SHA-256", facts.sha256 or _UNKNOWN),
            ("Imported", facts.imported_at),
        ]
    table(("", ""), rows)


@app.command()
def remove(name: Name) -> None:
    """Delete a model from the store."""
    from engine_host.models.errors import ModelError
    from engine_host.models.store import ModelStore

    try:
        ModelStore().remove(name)
    except ModelError as caught:
        error(str(caught))
        raise typer.Exit(1) from None
    say(f"{name} is removed.")


def _get(name: str) -> "StoredModel":
    from engine_host.models.errors import ModelError
    from engine_host.models.store import ModelStore

    try:
        return ModelStore().get(name)
    except ModelError as caught:
        error(str(caught))
        raise typer.Exit(1) from None


def _size(count: int) -> str:
    from widgets.units import bytes_

    return bytes_(count)
