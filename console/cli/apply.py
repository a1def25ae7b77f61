"""Applying a profile to a running host from the command line."""

import asyncio
from pathlib import Path

from console.cli.output import error, say
from engine_host.api.client import HostClient
from engine_host.api.contract import HostError, HostUnreachable
from engine_host.api.types import ApplyCommand, ChangeRecord
from engine_host.options import HostOptions
from engine_host.runtime import running_hosts

POLL_S = 0.2


def find_host(pid: int | None) -> Path | None:
    """The socket of the host meant; `None`, and a sentence on standard error, where that isn't clear."""
    hosts = running_hosts(HostOptions().runtime_dir)
    if pid is not None:
        if pid not in hosts:
            error(f"No host runs under pid {pid}. Running: {', '.join(map(str, hosts)) or 'none'}.")
        return hosts.get(pid)
    if not hosts:
        error("No host runs on this machine for this user. Start one with llmconsole, or with llmconsole serve.")
        return None
    if len(hosts) > 1:
        error(f"Several hosts run: say which with --pid. Running: {', '.join(map(str, hosts))}.")
        return None
    return next(iter(hosts.values()))


async def apply_to(socket: Path, name: str, model: str | None, why: str, wait: bool) -> bool:
    """Apply the profile and say how it went; whether it is in force (without `wait`: whether it was begun)."""
    client = HostClient(str(socket))
    try:
        reply = await client.apply_profile(ApplyCommand(profile=name, model=model, who="command line", why=why))
        if not reply.ok:
            error(reply.message)
            return False
        say(reply.message)
        running = [each.id for each in await client.changes() if each.outcome == "running"]
        if not running or not wait:
            return True
        return _told(await _ended(client, running[-1]))
    except (HostUnreachable, HostError) as problem:
        error(str(problem))
        return False
    finally:
        await client.close()


async def _ended(client: HostClient, change: int) -> ChangeRecord:
    """Wait for a change to end, telling its stages."""
    stage = ""
    while True:
        snapshot = await client.snapshot()
        if snapshot.swap is not None and snapshot.swap.change == change and snapshot.swap.stage != stage:
            stage = snapshot.swap.stage
            waiting = f" ({snapshot.swap.waiting_for} requests end first)" if snapshot.swap.waiting_for else ""
            say(f"{stage}{waiting} …")
        for record in await client.changes():
            if record.id == change and record.outcome != "running":
                return record
        await asyncio.sleep(POLL_S)


def _told(record: ChangeRecord) -> bool:
    if record.outcome == "done":
        stalled = f", {record.stalled_s:.1f} s without tokens" if record.stalled_s is not None else ""
        say(f"{record.new} is in force{stalled}.")
        return True
    error(f"{record.new} is not in force ({record.outcome}). {record.message}".strip())
    return False
