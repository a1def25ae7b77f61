"""Settings of the whole run, and the engine it shares."""

from collections.abc import Iterator

import pytest
from hypothesis import settings

from profiles.store import BUILTIN_DIR
from tests.support import LiveHost, running_host

TINY = (BUILTIN_DIR / "cpu-tiny.toml").read_text()
PROFILES = {"tests": f'{TINY}\n[keys]\nrequired = "never"\n', "keyed": f'{TINY}\n[keys]\nrequired = "always"\n'}

# A deadline would gate on the clock: the machine may be busy.
settings.register_profile("llmconsole", deadline=None)
settings.load_profile("llmconsole")


@pytest.fixture(scope="session")
def live_host() -> Iterator[LiveHost]:
    """The one host that tests of the whole share; its model is called `stub-model`, its context is 2048 tokens.

    It asks for no key, unless a test has its profile `keyed` applied.
    """
    flags = ("--dtype=float32", "--max-model-len=2048", "--served-model-name=stub-model")
    with running_host(*flags, "--enable-auto-tool-choice", "--tool-call-parser=hermes", profiles=PROFILES) as host:
        yield host
