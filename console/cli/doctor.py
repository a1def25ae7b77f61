"""`llmconsole doctor`: what is wrong with the running host, or with one that was recorded."""

from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.output import error, say
from profiles.files import beside

if TYPE_CHECKING:
    from engine_host.api.figures import Finding

File = Annotated[
    Path | None, typer.Argument(metavar="FILE", help="A record that --save wrote. [default: the running host]")
]


def doctor(
    file: File = None,
    save: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Also write what was looked at to FILE, for a report.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the findings as JSON.")] = False,
    pid: Annotated[int | None, typer.Option(metavar="PID", help="The host meant, where several run.")] = None,
) -> None:
    """Say what is wrong, by what was measured, and what to do about it.

    Ends with 1 where there is a problem, with 0 where there is nothing or a warning, and with 2 where nothing could be
    looked at.
    """
    if file is not None and save is not None:
        error("--save keeps what a running host tells; a file is one already.")
        raise typer.Exit(2)
    found = _of_file(file) if file is not None else _of_host(pid, save)
    if found is None:
        raise typer.Exit(2)
    _print(found, as_json)
    if any(each.severity == "problem" for each in found):
        raise typer.Exit(1)


def _of_file(path: Path) -> "list[Finding] | None":
    from engine_host.doctor.record import RecordError, load
    from engine_host.doctor.rules import diagnose

    try:
        return diagnose(load(path))
    except RecordError as problem:
        error(str(problem))
        return None


def _of_host(pid: int | None, save: Path | None) -> "list[Finding] | None":
    import asyncio

    from console.cli.apply import find_host

    socket = find_host(pid)
    return asyncio.run(_asked(socket, save)) if socket is not None else None


async def _asked(socket: Path, path: Path | None) -> "list[Finding] | None":
    from engine_host.api.client import HostClient
    from engine_host.api.contract import HostError, HostUnreachable

    client = HostClient(str(socket))
    try:
        if path is None:
            return await client.findings()
        return _kept(await client.record(), path)
    except (HostUnreachable, HostError) as problem:
        error(str(problem))
        return None
    finally:
        await client.close()


def _kept(content: bytes, path: Path) -> "list[Finding] | None":
    """Write the record, and look at that very one."""
    from engine_host.doctor.record import RecordError, parse
    from engine_host.doctor.rules import diagnose

    try:
        with beside(path) as new:
            new.write_bytes(content)
        error(f"What was looked at is in {path}.")
        return diagnose(parse(content, str(path)))
    except OSError as problem:
        error(f"{path} can't be written: {problem.strerror}.")
    except RecordError as problem:
        error(str(problem))
    return None


def _print(found: "list[Finding]", as_json: bool) -> None:
    if as_json:
        import json

        import msgspec

        typer.echo(json.dumps(msgspec.to_builtins(found), indent=2))
        return
    if not found:
        say("Nothing is wrong, as far as the rules see.")
    for number, finding in enumerate(found):
        if number:
            say("")
        when = datetime.fromtimestamp(finding.time).strftime("%H:%M:%S")
        where = "".join(
            f", {name} {value}"
            for name, value in (("step", finding.step), ("request", finding.request))
            if value is not None
        )
        say(f"{finding.severity.upper()}  {finding.title}  ({finding.rule}, {when}{where})")
        for sentence in finding.evidence:
            say(f"  {sentence}")
        say(f"  → {finding.remedy}")
