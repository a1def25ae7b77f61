"""`llmconsole key …`: who may use the port, and how much."""

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Annotated

import typer

from console.cli.output import error, plain, say, table

if TYPE_CHECKING:
    from engine_host.gateway.caller import Limits
    from engine_host.gateway.key_file import KeyRecord
    from engine_host.gateway.keys import KeyStore

app = typer.Typer(help="Make, list, revoke and rotate keys.", rich_markup_mode=None, no_args_is_help=True)

UNITS_S = {"s": 1, "m": 60, "h": 3600, "d": 86_400, "w": 604_800}

Which = Annotated[str, typer.Argument(metavar="ID|NAME", help="The key's id or name.")]


@app.command()
def create(
    name: Annotated[str, typer.Argument(metavar="NAME", help="Who or what it is for.")],
    tier: Annotated[str | None, typer.Option(metavar="TIER", help="Its tier. [default: the profile's]")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="A served model it may ask for; may be repeated. [default: all]"),
    ] = None,
    admin: Annotated[bool, typer.Option("--admin", help="It may command the host too.")] = False,
    expires: Annotated[
        str | None, typer.Option(metavar="30d|DATE", help="When it ends: after 30d, 12h …, or at 0:00 UTC of a date.")
    ] = None,
    requests_per_minute: Annotated[int | None, typer.Option(metavar="N", min=1, help="Requests a minute.")] = None,
    tokens_per_minute: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens a minute, prompt and output.")
    ] = None,
    tokens_per_day: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Tokens a day, prompt and output.")
    ] = None,
    usd_per_day: Annotated[float | None, typer.Option(metavar="USD", help="Estimated cost a day.")] = None,
) -> None:
    """Make a key and print it, this once, on standard output. Limits left out are the profile's."""
    from engine_host.gateway.caller import Limits

    if usd_per_day is not None and not 0 < usd_per_day < float("inf"):
        raise typer.BadParameter("An amount above 0 is needed.", param_hint="'--usd-per-day'")
    if tier is not None:
        _warn_of_unknown_tier(tier)
    with _sentences():
        record, text = _store().create(
            name,
            tier=tier,
            models=frozenset(model) if model else None,
            limits=Limits(requests_per_minute, tokens_per_minute, tokens_per_day, usd_per_day),
            admin=admin,
            expires=_moment(expires) if expires is not None else None,
        )
    until = f" It ends on {_time(record.expires)}." if record.expires is not None else ""
    _print_key(text, f'The key of "{record.name}" is below. Keep it: it is not shown again.{until}')


@app.command("list")
def list_() -> None:
    """List all keys, without their secrets. Times are UTC."""
    with _sentences():
        records = _store().list()
    if not records:
        say("There are no keys. Make one with: llmconsole key create NAME")
        return
    now = datetime.now(UTC).timestamp()
    table(
        ("Id", "Name", "State", "Tier", "Models", "Limits", "Created", "Expires", "Last used"),
        [
            (
                record.id,
                record.name,
                _state(record, now),
                record.tier or "–",
                ", ".join(sorted(record.models)) if record.models is not None else "all",
                _limits(record.limits),
                _time(record.created),
                _time(record.expires),
                _time(record.last_used),
            )
            for record in records
        ],
    )


@app.command()
def revoke(which: Which) -> None:
    """End a key at once and for good."""
    with _sentences():
        record = _store().revoke(which)
    say(f'The key "{record.name}" ({record.id}) is revoked.')


@app.command()
def rotate(
    which: Which,
    grace: Annotated[
        str, typer.Option(metavar="1h", help="How long the old one works beside the new: 30s, 15m, 1h, 2d.")
    ] = "0s",
) -> None:
    """Replace a key by a new one of the same id, name and limits, and print it, this once, on standard output."""
    grace_s = _duration(grace)
    if grace_s is None:
        raise typer.BadParameter(f'"{grace}" is no time; say 30s, 15m, 1h or 2d.', param_hint="'--grace'")
    with _sentences():
        record, text = _store().rotate(which, grace_s)
    old = f"The old one works until {_time(record.previous_until)}." if grace_s else "The old one works no more."
    _print_key(text, f'The new key of "{record.name}" is below. Keep it: it is not shown again. {old}')


def _store() -> "KeyStore":
    from engine_host.gateway.keys import KEYS_FILE, KeyStore
    from engine_host.options import HostOptions

    return KeyStore(HostOptions().data_dir / KEYS_FILE)


@contextmanager
def _sentences() -> Iterator[None]:
    """What is wrong with the keys is said on standard error, and ends the command with 1."""
    from engine_host.gateway.key_file import KeyStoreError

    try:
        yield
    except KeyStoreError as problem:
        error(str(problem))
        raise typer.Exit(1) from None


def _print_key(text: str, words: str) -> None:
    """The key alone on standard output, so that it can be piped; the words beside it."""
    sys.stderr.write(f"{plain(words)}\n")
    sys.stderr.flush()
    say(text)


def _warn_of_unknown_tier(tier: str) -> None:
    from profiles.store import ProfileStore

    tiers = {name for profile in ProfileStore().list()[0] for name in profile.tiers}
    if tier not in tiers:
        error(f'No profile has the tier "{tier}" yet: requests with this key are refused until one does.')


def _moment(text: str) -> float:
    """The Unix time meant by `30d` or `2026-12-31`."""
    if (seconds := _duration(text)) is not None:
        return datetime.now(UTC).timestamp() + seconds
    try:
        return datetime.strptime(text, "%Y-%m-%d").replace(tzinfo=UTC).timestamp()
    except ValueError:
        raise typer.BadParameter(
            f'"{text}" is neither a time such as 30d or 12h nor a date such as 2026-12-31.', param_hint="'--expires'"
        ) from None


def _duration(text: str) -> float | None:
    match = re.fullmatch(r"(\d{1,5})([smhdw])", text)
    return float(match[1]) * UNITS_S[match[2]] if match else None


def _state(record: "KeyRecord", now: float) -> str:
    if record.revoked is not None:
        return "revoked"
    if not record.usable(now):
        return "expired"
    return "admin" if record.admin else "in force"


def _limits(limits: "Limits") -> str:
    parts = (
        (limits.requests_per_minute, "requests/min"),
        (limits.tokens_per_minute, "tokens/min"),
        (limits.tokens_per_day, "tokens/day"),
        (limits.usd_per_day, "USD/day"),
    )
    return ", ".join(f"{value:,} {unit}" for value, unit in parts if value is not None) or "–"


def _time(moment: float | None) -> str:
    return datetime.fromtimestamp(moment, UTC).strftime("%Y-%m-%d %H:%M UTC") if moment is not None else "–"
