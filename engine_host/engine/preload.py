"""What the forkserver imports ahead, so that an engine forked from it pays for weights and KV cache only."""

from contextlib import suppress

from engine_host.engine.imports import import_ahead
from engine_host.engine.process import device_kind

DEVICE_MODULES = {
    "cpu": ("vllm.v1.worker.cpu_worker", "vllm.v1.attention.backends.cpu_attn"),
    "cuda": ("vllm.v1.worker.gpu_worker", "vllm.v1.attention.backends.flash_attn"),
}

MODULES = (
    "vllm.v1.engine.core",
    "vllm.v1.executor.uniproc_executor",
    "vllm.v1.executor.multiproc_executor",
    *DEVICE_MODULES[device_kind()],
    "vllm.model_executor.model_loader",
    "vllm.model_executor.models.llama",
    "vllm.v1.structured_output.backend_xgrammar",
    "engine_host.engine.scheduler",
)

for _name in MODULES:
    # What is missing here is missed by the engine, if at all: that has a log to say so.
    with suppress(ImportError):
        import_ahead(_name)
