"""vLLM's own tests of its server, run against our port and against `vllm serve`, and where the two differ.

    python -m benchmarks.conformance [--model FOLDER] [-k EXPRESSION]

The tests are those of the installed version's source distribution, fetched into `.conformance/` with pip. Both servers
serve the same model with the same flags, one after the other. Tests that want another model or other flags fail on
both and say nothing. What differs is run again, so that chance (sampling) is told from a difference.
"""

import argparse
import contextlib
import json
import os
import re
import shlex
import signal
import socket
import subprocess
import sys
import tarfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FOLDER = ROOT / ".conformance"
SUITE = FOLDER / "suite"

FLAGS = shlex.split(
    "--max-model-len 8192 --dtype float32 --enforce-eager --kv-cache-memory-bytes 536870912 --max-num-seqs 32 "
    "--enable-auto-tool-choice --tool-call-parser hermes --enable-tokenizer-info-endpoint --enable-scale-out "
    "--enable-server-load-tracking --enable-request-id-headers --trust-request-chat-template --max-logprobs -1 "
    # A small model held to a grammar may go on to the end of its context, where a test sets no limit of its own.
    "--override-generation-config '{\"max_new_tokens\":300}'"
)

BUILD_NEEDS = ("setuptools-rust", "semantic-version", "setuptools-scm", "vcs-versioning")
"""What the source distribution's setup.py imports before it can say its own name, which pip insists on."""

TEST_NEEDS = ("tblib",)

OTHER_ENGINES = re.compile(
    r"/(multimodal|pooling|speech_to_text|rl|launchers|llm|cohere|lora|correctness|sagemaker)/"
    r"|_vlm\.py|test_uds|harmony|test_mcp|tensorizer|test_launch_render|prompt_embeds"
    r"|test_remote_vllm_server|test_serving_|test_collective_rpc"
)
"""Tests that are about models, adapters or launchers that one text server can't be."""

TEST_TIMEOUT_S = 180
"""A thousand sampled tokens, which some tests ask for, take a minute on two cores."""

START_TIMEOUT_S = 300.0

Results = dict[str, tuple[str, str]]


def fetch(version: str) -> None:
    """Download the source distribution and unpack its tests. Does nothing where that is done already."""
    if SUITE.is_dir():
        return
    build, download = FOLDER / "build", FOLDER / "sdist"
    pip = [sys.executable, "-m", "pip", "--quiet", "--disable-pip-version-check"]
    subprocess.run([*pip, "install", "--no-deps", "--target", build, *BUILD_NEEDS], check=True)
    environment = {
        **os.environ,
        "PYTHONPATH": str(build),
        "VLLM_TARGET_DEVICE": "empty",
        "VLLM_VERSION_OVERRIDE": version,
    }
    subprocess.run(
        [
            *pip,
            "download",
            "--no-deps",
            "--no-build-isolation",
            "--no-binary",
            "vllm",
            f"vllm=={version}",
            "-d",
            download,
        ],
        check=True,
        env=environment,
    )
    beside = FOLDER / "suite.new"
    with tarfile.open(download / f"vllm-{version}.tar.gz") as archive:
        top = f"vllm-{version}/"
        members = [member for member in archive if member.name.startswith((f"{top}tests/", f"{top}examples/"))]
        for member in members:
            member.name = member.name.removeprefix(top)
        archive.extractall(beside, members, filter="data")
    subprocess.run([*pip, "install", "--no-deps", "--target", FOLDER / "site", *TEST_NEEDS], check=True)
    beside.rename(SUITE)


def test_files() -> list[str]:
    """The files whose tests talk to a text server."""
    files = sorted((SUITE / "tests/entrypoints").rglob("test_*.py"))
    return [
        str(file.relative_to(SUITE))
        for file in files
        if not OTHER_ENGINES.search(str(file)) and "RemoteOpenAIServer" in file.read_text()
    ]


def model_names(files: Sequence[str]) -> list[str]:
    """The model names that the tests ask for: the served model answers to them all."""
    found: set[str] = set()
    for file in files:
        text = (SUITE / file).read_text()
        found |= set(re.findall(r'^\s*(?:MODEL\w*|model\w*) *= *"([\w.-]+/[\w.-]+)"', text, re.MULTILINE))
        found |= set(re.findall(r'"--served-model-name",\s*"([^"]+)"', text))
    return sorted(found)


@contextlib.contextmanager
def running(command: Sequence[str], port: int, log: Path) -> Iterator[str]:
    """Run a server until the block ends; yields its URL once it is healthy."""
    url = f"http://127.0.0.1:{port}"
    with log.open("w") as output, subprocess.Popen(command, stdout=output, stderr=output, cwd=ROOT) as process:
        try:
            deadline = time.monotonic() + START_TIMEOUT_S
            while not _healthy(url):
                if process.poll() is not None or time.monotonic() > deadline:
                    raise SystemExit(f"{shlex.join(command)} did not start: see {log}")
                time.sleep(0.5)
            yield url
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def _healthy(url: str) -> bool:
    try:
        with urllib.request.urlopen(f"{url}/health", timeout=5) as reply:
            return bool(reply.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


def run_tests(name: str, url: str, model: Path, tests: Sequence[str], expression: str) -> Results:
    """Run tests against `url`; outcome and reason by test id."""
    results = FOLDER / f"{name}.jsonl"
    results.unlink(missing_ok=True)
    environment = {
        **os.environ,
        "CONFORMANCE_URL": url,
        "CONFORMANCE_MODEL": str(model),
        "CONFORMANCE_RESULTS": str(results),
        "PYTHONPATH": os.pathsep.join([str(ROOT / "benchmarks"), str(FOLDER / "site")]),
        "HF_HUB_OFFLINE": "1",
    }
    command = [sys.executable, "-m", "pytest", "-p", "conformance_plugin", "--rootdir", SUITE, "-c", "/dev/null"]
    command += ["-o", "asyncio_mode=strict", "--timeout", str(TEST_TIMEOUT_S), "-q", "--tb=short", "-W", "ignore"]
    command += ["--continue-on-collection-errors", *(["-k", expression] if expression else []), *tests]
    with (FOLDER / f"{name}.log").open("w") as log:
        subprocess.run(command, cwd=SUITE, env=environment, stdout=log, stderr=log, check=False)
    lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
    return {line["test"]: (line["outcome"], line["why"]) for line in lines}


def differences(theirs: Results, ours: Results) -> list[str]:
    """Ids of tests with another outcome on the two servers."""
    missing = ("missing", "")
    return sorted(test for test in theirs | ours if theirs.get(test, missing)[0] != ours.get(test, missing)[0])


def main() -> None:
    """Fetch, run, compare, report."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", type=Path, help="a model folder; default: the default model, in float32")
    parser.add_argument("-k", dest="expression", default="", help="pytest's selection of tests")
    options = parser.parse_args()
    # An ended run ends its server too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    import vllm

    from tests.support import small_model

    options.model = options.model or small_model("float32")

    fetch(vllm.__version__.partition("+")[0])
    files = test_files()
    served = ["--served-model-name", options.model.name, *model_names(files)]
    commands = {
        "vllm": [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(options.model)],
        "ours": [sys.executable, "-m", "console", "serve", "--model", str(options.model)],
    }
    outcomes: dict[str, Results] = {"vllm": {}, "ours": {}}
    again: list[str] = []
    for attempt in range(2):
        for name, command in commands.items():
            port = _free_port()
            log = FOLDER / f"{name}-server.log"
            with running([*command, "--port", str(port), *FLAGS, *served], port, log) as url:
                outcomes[name] |= run_tests(
                    name, url, options.model, again or files, "" if again else options.expression
                )
        again = differences(outcomes["vllm"], outcomes["ours"])
        if not again:
            break
        if attempt == 0:
            print(f"{len(again)} differ; running these again")
    sys.exit(report(outcomes["vllm"], outcomes["ours"], again))


def report(theirs: Results, ours: Results, different: Sequence[str]) -> bool:
    """Print the comparison; whether something differs to our harm."""
    for name, results in (("vllm", theirs), ("ours", ours)):
        passed = sum(outcome == "passed" for outcome, _ in results.values())
        print(f"{name}: {passed} of {len(results)} passed")
    harm = [test for test in different if theirs.get(test, ("", ""))[0] == "passed"]
    for test in different:
        sign = "-" if test in harm else "+"
        print(f"{sign} {test}: vllm {theirs.get(test, ('missing', ''))}, ours {ours.get(test, ('missing', ''))}")
    print(f"{len(harm)} to our harm, {len(different) - len(harm)} to our advantage")
    return bool(harm)


if __name__ == "__main__":
    main()
