"""The commands of `llmconsole`, and their options."""

from typing import Annotated, Any

import typer
from typer.core import TyperGroup

from console.cli import doctor, keys, ledger, models, profiles, report

DEFAULT_COMMAND = "console"


class DefaultingGroup(TyperGroup):
    """A group where leaving out the command means the console: `llmconsole --port 9000` opens it."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Put the default command in front of anything but a command or an option of the group itself."""
        own = {*ctx.help_option_names, "--version", "--install-completion", "--show-completion"}
        if not args or (args[0].startswith("-") and args[0] not in own):
            args = [DEFAULT_COMMAND, *args]
        return super().parse_args(ctx, args)


# Options this program doesn't know go to vLLM as they are.
PASS_ON = {"allow_extra_args": True, "ignore_unknown_options": True}
PASSED_ON = (
    "Any other option is passed on to the engine and named as vllm serve names it: --served-model-name, "
    "--max-model-len, --tool-call-parser, --chat-template …"
)

app = typer.Typer(
    cls=DefaultingGroup,
    help="Host a vLLM engine, serve it on an OpenAI-compatible port, and see what it is doing.",
    epilog=f"Without a command the console opens; its options are those of llmconsole {DEFAULT_COMMAND}.",
    context_settings={"help_option_names": ["-h", "--help"]},
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    no_args_is_help=False,
    add_completion=False,
)
app.add_typer(models.app, name="model")
app.add_typer(profiles.app, name="profile")
app.add_typer(keys.app, name="key")
app.add_typer(ledger.app, name="ledger")
app.command()(doctor.doctor)
app.command()(report.report)

Model = Annotated[
    str | None,
    typer.Option(metavar="NAME", help="A model in the store, a folder, or a hub id. [default: SmolLM2-135M-Instruct]"),
]
ProfileName = Annotated[
    str | None, typer.Option("--profile", metavar="NAME", help="A tuning profile. [default: by device]")
]
Host = Annotated[str, typer.Option(metavar="ADDRESS", help="The address the port listens on.")]
AllowWithoutKey = Annotated[
    bool, typer.Option("--allow-without-key", help="Serve others than this machine without a key too.")
]
Port = Annotated[int, typer.Option(metavar="PORT", min=1, max=65535, help="The OpenAI-compatible port.")]


def _version(wanted: bool) -> None:
    if wanted:
        from importlib.metadata import version

        typer.echo(f"llmconsole {version('llmconsole')}")
        raise typer.Exit


@app.callback()
def root(
    version: Annotated[bool, typer.Option("--version", callback=_version, is_eager=True, help="Show the version.")] = (
        False
    ),
) -> None:
    """Options of the program itself."""


@app.command(DEFAULT_COMMAND, context_settings=PASS_ON, epilog=PASSED_ON)
def console(
    ctx: typer.Context,
    model: Model = None,
    profile: ProfileName = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_without_key: AllowWithoutKey = False,
) -> None:
    """Open the console on an engine of its own (the default command)."""
    from console.cli.launch import launch

    raise typer.Exit(
        launch(model, profile, host, port, _passed_on(ctx), with_screen=True, allow_without_key=allow_without_key)
    )


@app.command(context_settings=PASS_ON, epilog=PASSED_ON)
def serve(
    ctx: typer.Context,
    model: Model = None,
    profile: ProfileName = None,
    host: Host = "127.0.0.1",
    port: Port = 8000,
    allow_without_key: AllowWithoutKey = False,
) -> None:
    """Serve without a screen, with JSON log lines on standard error."""
    from console.cli.launch import launch

    raise typer.Exit(
        launch(model, profile, host, port, _passed_on(ctx), with_screen=False, allow_without_key=allow_without_key)
    )


@app.command("calibrate")
def calibrate_() -> None:
    """Measure what this device can do at most, for the roofline."""
    from console.cli.calibrate import calibrate

    raise typer.Exit(calibrate())


def _passed_on(ctx: typer.Context) -> tuple[str, ...]:
    if ctx.args and not ctx.args[0].startswith("-"):
        raise typer.BadParameter(f'"{ctx.args[0]}" stands alone. A model is given with --model.')
    return tuple(ctx.args)
