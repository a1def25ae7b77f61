"""Serves a model on our port, with nothing else of the host around it: `serve.py MODEL [options of vllm serve]`.

Prints `serving URL` when ready; ends on SIGTERM.
"""

import asyncio
import signal
import sys
import time

from engine_host.api.types import EngineState
from engine_host.engine.serving import VllmServing
from engine_host.port.app import make_app
from engine_host.port.server import start_site


class MinimalHost:
    """A host that is either starting or ready."""

    backend: VllmServing | None = None

    def engine_state(self) -> EngineState:
        return EngineState("starting" if self.backend is None else "ready", time.time())

    def serving(self) -> VllmServing | None:
        return self.backend

    def retry_after_s(self) -> int:
        return 2

    def metrics_text(self) -> bytes:
        return b""

    async def check_health(self) -> str | None:
        return None


async def main() -> None:
    from vllm.engine.arg_utils import AsyncEngineArgs
    from vllm.v1.engine.async_llm import AsyncLLM

    from engine_host.engine.serve_args import parse_serve_args
    from engine_host.engine.serving import build_serving

    defaults = {"max_model_len": 2048, "enforce_eager": True, "kv_cache_memory_bytes": 256 * 2**20, "dtype": "float32"}
    options = sys.argv[2:]
    port = int(options.pop(options.index("--port") + 1)) if "--port" in options else 0
    options = [option for option in options if option != "--port"]
    args = parse_serve_args(sys.argv[1], options, defaults)
    host = MinimalHost()
    site = await start_site(make_app(host), "127.0.0.1", port)
    engine = AsyncLLM.from_engine_args(AsyncEngineArgs.from_cli_args(args))
    host.backend = await build_serving(engine, args)
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    sys.stdout.write(f"serving http://127.0.0.1:{site.port}\n")
    sys.stdout.flush()
    await stop.wait()
    await site.close()
    engine.shutdown()


if __name__ == "__main__":
    asyncio.run(main())
