"""`llmconsole doctor`: what it prints of a record and of a running host, and how it ends."""

import asyncio
import json
import os
import sys
import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from typer.testing import CliRunner, Result

from console.cli.app import app
from engine_host.api.figures import Finding
from engine_host.doctor.record import dump, load
from engine_host.doctor.rules import diagnose
from engine_host.runtime import SOCKET_NAME, create_runtime_dir
from tests.doctor.recorded import TRACES, trace


def doctor(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["doctor", *arguments])


def test_problems_of_a_record_are_printed_with_evidence_and_remedy() -> None:
    result = doctor(str(TRACES / "long-prompts.npz"))
    assert result.exit_code == 1
    first, second = result.stdout.split("\n\n")
    assert first.startswith("PROBLEM  The token budget is too large for the TTL target  (token-budget, ")
    assert ", step 293, request cmpl-" in second.splitlines()[0]
    assert "  Step 293 took 989 ms" in second
    assert "  → Set scheduler.long_prefill_threshold = 128" in second


def test_a_warning_is_no_problem() -> None:
    result = doctor(str(TRACES / "short-prompts.npz"))
    assert result.stdout.startswith("WARNING  ")
    assert result.exit_code == 0


def test_nothing_wrong_is_a_sentence() -> None:
    result = doctor(str(TRACES / "healthy.npz"))
    assert (result.exit_code, result.stdout) == (0, "Nothing is wrong, as far as the rules see.\n")


def test_json_has_all_of_the_findings() -> None:
    result = doctor(str(TRACES / "preempting.npz"), "--json")
    assert result.exit_code == 1
    assert msgspec.convert(json.loads(result.stdout), list[Finding]) == diagnose(trace("preempting"))


def test_what_is_no_record_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "x").write_text("x")
    result = doctor(str(tmp_path / "x"))
    assert (result.exit_code, result.stdout) == (2, "")
    assert result.stderr == f"{tmp_path / 'x'} is no record of the doctor's. llmconsole doctor --save writes one.\n"


def test_a_record_is_not_saved_again(tmp_path: Path) -> None:
    result = doctor(str(TRACES / "healthy.npz"), "--save", str(tmp_path / "x"))
    assert result.exit_code == 2
    assert "a file is one already" in result.stderr


@pytest.fixture
def base() -> Iterator[Path]:
    """A runtime folder with a path short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="llmc-", dir="/tmp") as folder:
        yield Path(folder)


def test_no_host_is_a_sentence(base: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(base))
    result = doctor()
    assert result.exit_code == 2
    assert result.stderr.startswith("No host runs on this machine")


@asynccontextmanager
async def host(base: Path) -> AsyncIterator[None]:
    """A host below `base` that has the queue's trace to tell."""
    findings = [Finding("some-rule", "warning", "A title \x1b[31m", ("Evidence.",), "Do this.", 0.0, 7)]
    application = web.Application()
    answers = {"/admin/findings": msgspec.json.encode(findings), "/admin/record": dump(trace("queue"))}

    async def answer(request: web.Request) -> web.Response:
        return web.Response(body=answers[request.path])

    application.router.add_get("/admin/{what}", answer)
    runner = web.AppRunner(application)
    await runner.setup()
    await web.UnixSite(runner, str(create_runtime_dir(base / "llmconsole") / SOCKET_NAME)).start()
    try:
        yield
    finally:
        await runner.cleanup()


async def in_a_process(base: Path, *arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "console", "doctor", *arguments),
        env=os.environ | {"XDG_RUNTIME_DIR": str(base)},
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
    )
    out, problems = await process.communicate()
    return process.returncode, out.decode(), problems.decode()


async def test_a_running_host_is_asked(base: Path) -> None:
    async with host(base):
        code, out, problems = await in_a_process(base)
    assert (code, problems) == (0, "")
    assert out.startswith("WARNING  A title \\x1b[31m  (some-rule, ")
    assert out.endswith(", step 7)\n  Evidence.\n  → Do this.\n")


async def test_what_was_looked_at_is_kept_and_is_what_the_findings_are_of(base: Path) -> None:
    kept = base / "record.npz"
    async with host(base):
        code, out, problems = await in_a_process(base, "--save", str(kept), "--json")
    assert (code, problems) == (1, f"What was looked at is in {kept}.\n")
    assert msgspec.convert(json.loads(out), list[Finding]) == diagnose(load(kept)) == diagnose(trace("queue"))


async def test_a_place_that_can_not_be_written_is_a_sentence(base: Path) -> None:
    async with host(base):
        code, out, problems = await in_a_process(base, "--save", str(base / "nowhere" / "x"))
    assert (code, out) == (2, "")
    assert problems == f"{base / 'nowhere' / 'x'} can't be written: No such file or directory.\n"
