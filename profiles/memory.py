"""What a profile needs of a device's memory, computed from the model's shape before anything is built.

Sizes are bytes *per device*: with tensor and pipeline parallelism each holds its share of weights and KV cache. What
can't be computed is `None`.
"""

import math
from dataclasses import dataclass

from profiles.model_shape import DTYPE_BYTES, ModelShape
from profiles.schema import Device, Profile

# CacheConfig.DEFAULT_BLOCK_SIZE in vllm/config/cache.py, and check_and_update_config in vllm/platforms/cpu.py.
DEFAULT_BLOCK_SIZE = {"cuda": 16, "cpu": 128}

# Bytes an element of the KV cache, by vLLM's names (STR_DTYPE_TO_TORCH_DTYPE in vllm/utils/torch_utils.py). Left out
# are those whose pages hold scales too.
_KV_BYTES = DTYPE_BYTES | {"fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1, "fp8_inc": 1}


@dataclass(frozen=True)
class MemoryPlan:
    """What `profile` makes of the memory of a device of `device_bytes` bytes.

    `weights_bytes`, `activation_bytes` and `kv_bytes` add up to `total_bytes`; `kv_bytes` is negative where the others
    leave nothing for it. `page_bytes` is one KV page of `block_size` tokens over all layers, and `context` the longest
    sequence in tokens.
    """

    shape: ModelShape
    profile: Profile
    device: Device
    device_bytes: int | None
    weights_bytes: int | None
    activation_bytes: int | None
    kv_bytes: int | None
    block_size: int
    page_bytes: int | None
    context: int | None

    @property
    def kv_estimated(self) -> bool:
        """Whether the KV cache gets what is left over, which rests on the estimate of the activations."""
        return self.profile.engine.kv_cache_memory is None

    @property
    def weights_estimated(self) -> bool:
        """Whether the weights are split over devices, which is taken to be even."""
        engine = self.profile.engine
        return engine.tensor_parallel_size * engine.pipeline_parallel_size > 1

    @property
    def pages(self) -> int | None:
        """KV pages that requests can have.

        One fewer than vLLM's blocks (`get_kv_cache_config_from_groups` in vllm/v1/core/kv_cache_utils.py): it never
        gives its null block to a request (`BlockPool` in vllm/v1/core/block_pool.py).
        """
        if self.kv_bytes is None or self.page_bytes is None:
            return None
        return max(self.kv_bytes // self.page_bytes - 1, 0)

    @property
    def tokens(self) -> int | None:
        """Tokens all KV pages hold."""
        return None if self.pages is None else self.pages * self.block_size

    @property
    def concurrency(self) -> float | None:
        """Sequences of the longest context held at once: pages over the whole pages of one.

        vLLM's "Maximum concurrency", which counts the null block in.
        """
        if self.pages is None or self.context is None:
            return None
        return self.pages / math.ceil(self.context / self.block_size)

    @property
    def total_bytes(self) -> int | None:
        """Weights, activations and KV cache together."""
        if self.weights_bytes is None or self.activation_bytes is None or self.kv_bytes is None:
            return None
        return self.weights_bytes + self.activation_bytes + max(self.kv_bytes, 0)


def plan(shape: ModelShape, profile: Profile, device_bytes: int | None, device: Device) -> MemoryPlan:
    """The memory plan of `profile` for the model of `shape` on a device of `device_bytes` bytes (`None`: unknown).

    The KV cache has the profile's `kv_cache_memory`, or what its share of the device (on the CPU: of the system's
    memory) leaves over: `device × gpu_memory_utilization − weights − activations`, as `determine_available_memory` in
    vllm/v1/worker/gpu_worker.py and cpu_worker.py measure it. What they measure besides (CUDA graphs, communication
    buffers, libraries) can't be told from the model, so vLLM's own figure is somewhat smaller.
    """
    engine = profile.engine
    dtype = _dtype(shape, profile)
    devices = engine.tensor_parallel_size * engine.pipeline_parallel_size
    drafted = engine.speculative is not None and engine.speculative.model is not None
    weights = None if dtype is None or drafted else shape.parameter_bytes(dtype, engine.quantization)
    weights = None if weights is None else math.ceil(weights / devices)
    activations = None if dtype is None else _activation_bytes(shape, profile, DTYPE_BYTES[dtype])
    kv_bytes = engine.kv_cache_memory
    if kv_bytes is None and device_bytes is not None and weights is not None and activations is not None:
        kv_bytes = int(device_bytes * engine.gpu_memory_utilization) - weights - activations
    block_size = engine.block_size or DEFAULT_BLOCK_SIZE[device]
    return MemoryPlan(
        shape=shape,
        profile=profile,
        device=device,
        device_bytes=device_bytes,
        weights_bytes=weights,
        activation_bytes=activations,
        kv_bytes=kv_bytes,
        block_size=block_size,
        page_bytes=None if drafted else _page_bytes(shape, profile, block_size, dtype),
        context=engine.max_model_len or shape.context,
    )


def _dtype(shape: ModelShape, profile: Profile) -> str | None:
    """The data type weights are loaded in: vLLM loads float32 as bfloat16 unless asked (`_resolve_auto_dtype`)."""
    if profile.engine.dtype != "auto":
        return profile.engine.dtype
    return "bfloat16" if shape.dtype == "float32" else shape.dtype


def _page_bytes(shape: ModelShape, profile: Profile, block_size: int, dtype: str | None) -> int | None:
    """Bytes of one KV page over all layers of a device: keys and values of `block_size` tokens.

    2 × layers × KV heads × head size × tokens × bytes an element, after `AttentionSpec` in
    vllm/v1/kv_cache_interface.py. KV heads are split over the devices of a layer, at least one each
    (`get_num_kv_heads` in vllm/config/model.py), layers over the stages.
    """
    engine = profile.engine
    wanted = engine.kv_cache_dtype
    if wanted == "auto" and shape.quantized_kv:
        return None
    element = _KV_BYTES.get(dtype or "" if wanted == "auto" else wanted)
    if shape.no_pages or element is None or not (shape.layers and shape.kv_heads and shape.head_dim):
        return None
    heads = max(1, shape.kv_heads // engine.tensor_parallel_size)
    layers = math.ceil(shape.layers / engine.pipeline_parallel_size)
    return 2 * layers * heads * shape.head_dim * block_size * element


def _activation_bytes(shape: ModelShape, profile: Profile, element: int) -> int | None:
    """Estimated peak of a step that is as large as allocated: T tokens of R requests.

    After `profile_run` in vllm/v1/worker/gpu_model_runner.py, which runs such a step, with the buffers of a Llama-like
    layer (vllm/model_executor/models/llama.py) that must exist at once. All of a step: hidden states and residual,
    2 × T × hidden. On top the largest of

    - the MLP: gate, up and their product, 3 × T × intermediate × experts a token passes, over the layer's devices;
    - attention: queries, keys, values and output, T × (2 × heads + 2 × KV heads) × head size, over the layer's devices;
    - the logits: R × vocabulary, in the model's type and in float32 for the sampler.

    Workspaces of kernels and CUDA graphs come on top, so it is rather too small: a refusal that rests on it is sure.
    """
    if not (shape.hidden and shape.heads and shape.kv_heads and shape.head_dim and shape.intermediate and shape.vocab):
        return None
    tokens = profile.allocated_tokens
    requests = min(profile.allocated_requests, tokens)
    split = profile.engine.tensor_parallel_size
    mlp = 3 * tokens * shape.intermediate * shape.experts * element // split
    attention = 2 * tokens * (shape.heads + shape.kv_heads) * shape.head_dim * element // split
    logits = requests * shape.vocab * (element + DTYPE_BYTES["float32"])
    return 2 * tokens * shape.hidden * element + max(mlp, attention, logits)
