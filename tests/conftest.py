"""Settings of the whole run, and the engine it shares."""

import gc
from collections.abc import Iterator

import pytest
from hypothesis import settings
from textual.css.model import RuleSet
from textual.css.stylesheet import Stylesheet

from profiles.store import BUILTIN_DIR
from tests.support import LiveHost, running_host

TINY = (BUILTIN_DIR / "cpu-tiny.toml").read_text()
PROFILES = {"tests": f'{TINY}\n[keys]\nrequired = "never"\n', "keyed": f'{TINY}\n[keys]\nrequired = "always"\n'}

# A deadline would gate on the clock: the machine may be busy.
settings.register_profile("llmconsole", deadline=None)
settings.load_profile("llmconsole")

# Objects made between collections of the young. A third of the time of the screens' tests were collections.
COLLECT_AFTER = 50_000


ENGINE_AREAS = frozenset({"flight", "host", "port"})
"""Folders of tests that import vLLM, which takes a process ten seconds and half a gigabyte."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """With `-n 2`: whatever needs the engine in one process, in its order; every other file whole, in the other."""
    for item in items:
        needs_engine = item.path.parent.name in ENGINE_AREAS or item.get_closest_marker("engine") is not None
        item.add_marker(pytest.mark.xdist_group("engine" if needs_engine else item.path.name))


def pytest_collection_finish() -> None:
    """What was imported stays until the end: no garbage collection needs to look at it."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(COLLECT_AFTER, 20, 20)


@pytest.fixture(scope="session", autouse=True)
def style_sheets_parsed_once() -> Iterator[None]:
    """Every app that a test starts has the same style sheets as the one before."""
    parse, parsed = Stylesheet._parse_rules, dict[object, list[RuleSet]]()

    def parse_once(sheet: Stylesheet, css: str, **place: object) -> list[RuleSet]:
        key = (css, *place.items(), *sheet._variables.items())
        if key not in parsed:
            parsed[key] = parse(sheet, css, **place)  # type: ignore[arg-type]
        return parsed[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Stylesheet, "_parse_rules", parse_once)
        yield


@pytest.fixture(scope="session")
def live_host() -> Iterator[LiveHost]:
    """The one host that tests of the whole share; its model is called `stub-model`, its context is 2048 tokens.

    It asks for no key, unless a test has its profile `keyed` applied.
    """
    flags = ("--dtype=float32", "--max-model-len=2048", "--served-model-name=stub-model")
    with running_host(*flags, "--enable-auto-tool-choice", "--tool-call-parser=hermes", profiles=PROFILES) as host:
        yield host
