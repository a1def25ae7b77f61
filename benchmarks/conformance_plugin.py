"""The pytest plugin of `benchmarks.conformance`: vLLM's tests against a server that already runs.

Reads from the environment: `CONFORMANCE_URL` (the server), `CONFORMANCE_MODEL` (the model's folder),
`CONFORMANCE_RESULTS` (a file to which each outcome is appended as a line of JSON).
"""

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest


def pytest_configure(config: pytest.Config) -> None:
    """Put the running server and the local model in place before any test module is imported."""
    sys.path.insert(0, str(config.rootpath))
    import huggingface_hub
    import transformers
    import vllm.tokenizers

    from tests import utils

    url = urlsplit(os.environ["CONFORMANCE_URL"])

    class AttachedServer(utils.RemoteOpenAIServer):  # type: ignore[misc, name-defined]
        """Everything the tests ask of a server they started, of one they didn't."""

        def __init__(self, *args: Any, **kwargs: Any) -> None:
            self.host, self.port, self.uds = url.hostname, url.port, None

        def __enter__(self) -> "AttachedServer":
            return self

        def __exit__(self, *error: object) -> None:
            return None

    utils.RemoteOpenAIServer = AttachedServer
    # Adapters that fixtures fetch and the server here doesn't load.
    huggingface_hub.snapshot_download = lambda *args, **kwargs: os.environ["CONFORMANCE_MODEL"]
    for owner, name in (
        (vllm.tokenizers, "get_tokenizer"),
        (utils, "get_tokenizer"),
        (transformers.AutoTokenizer, "from_pretrained"),
        (transformers.AutoConfig, "from_pretrained"),
    ):
        setattr(owner, name, _with_local_model(getattr(owner, name)))


def _with_local_model(load: Callable[..., Any]) -> Callable[..., Any]:
    def loaded(name: Any = None, *args: Any, **kwargs: Any) -> Any:
        name = kwargs.pop("tokenizer_name", name)
        return load(name if Path(str(name)).is_dir() else os.environ["CONFORMANCE_MODEL"], *args, **kwargs)

    return loaded


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Note the outcome of a test: of its call, or of its setup where that failed or skipped it."""
    if report.when == "call" or (report.when == "setup" and not report.passed):
        crash = getattr(report.longrepr, "reprcrash", None)
        line = {"test": report.nodeid, "outcome": report.outcome, "why": str(crash.message)[:300] if crash else ""}
        with open(os.environ["CONFORMANCE_RESULTS"], "a") as file:
            file.write(json.dumps(line) + "\n")
