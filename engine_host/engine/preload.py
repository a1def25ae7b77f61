"""What the forkserver imports ahead, so that an engine forked from it pays for weights and KV cache only."""

import importlib
from contextlib import suppress

MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.core.sched.async_scheduler",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    "vllm.v1.worker.gpu_worker",
    "vllm.v1.worker.cpu_worker",
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.v1.attention.backends.cpu_attn",
    "vllm.v1.structured_output.backend_xgrammar",
    "engine_host.engine.scheduler",
)

for _name in MODULES:
    # A module that one platform lacks costs that platform nothing but this line.
    with suppress(ImportError):
        importlib.import_module(_name)
