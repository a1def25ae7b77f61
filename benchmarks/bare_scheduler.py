"""vLLM's own schedulers with no engine around them: no weights, no devices, and outputs made up.

What the flight record costs is measured on them, and tests drive them step by step.
"""

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from vllm.engine.arg_utils import EngineArgs
from vllm.sampling_params import SamplingParams
from vllm.utils.hashing import sha256
from vllm.v1.core.kv_cache_utils import get_request_block_hasher, init_none_hash
from vllm.v1.kv_cache_interface import FullAttentionSpec, KVCacheConfig, KVCacheGroupSpec, KVCacheTensor
from vllm.v1.outputs import ModelRunnerOutput
from vllm.v1.request import Request
from vllm.v1.structured_output import StructuredOutputManager

PAGE_TOKENS = 32
TINY_MODEL = {
    "architectures": ["LlamaForCausalLM"],
    "model_type": "llama",
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 2,
    "num_hidden_layers": 1,
    "num_key_value_heads": 1,
    "vocab_size": 1000,
    "max_position_embeddings": 32768,
}


def bare_config(folder: Path, **arguments: Any) -> Any:
    """A `VllmConfig` of a model that exists as `config.json` in `folder` only; `arguments` as for `EngineArgs`."""
    (folder / "config.json").write_text(json.dumps(TINY_MODEL))
    settings = {"max_model_len": 8192, "max_num_batched_tokens": 8192, "max_num_seqs": 256} | arguments
    return EngineArgs(
        model=str(folder),
        skip_tokenizer_init=True,
        block_size=PAGE_TOKENS,
        enforce_eager=True,
        enable_prefix_caching=True,
        kv_cache_memory_bytes=1 << 27,
        **settings,
    ).create_engine_config()


def bare_scheduler(scheduler_class: Callable[..., Any], config: Any, blocks: int) -> Any:
    """A scheduler over `blocks` KV blocks, the null block included."""
    init_none_hash(sha256)
    config.cache_config.num_gpu_blocks = blocks
    spec = FullAttentionSpec(block_size=PAGE_TOKENS, num_kv_heads=1, head_size=32, dtype=torch.float32)
    page = spec.page_size_bytes
    tensor = KVCacheTensor(size=page * blocks, layers=["0"], layer_stride=page * blocks, block_stride=page)
    return scheduler_class(
        vllm_config=config,
        kv_cache_config=KVCacheConfig(blocks, [tensor], [KVCacheGroupSpec(["0"], spec)]),
        structured_output_manager=StructuredOutputManager(config),
        block_size=PAGE_TOKENS,
        hash_block_size=PAGE_TOKENS,
        log_stats=True,
    )


def request(name: str, prompt: Sequence[int], max_tokens: int) -> Request:
    """A request that produces exactly `max_tokens` tokens."""
    return Request(
        request_id=name,
        prompt_token_ids=list(prompt),
        sampling_params=SamplingParams(max_tokens=max_tokens, ignore_eos=True),
        pooling_params=None,
        block_hasher=get_request_block_hasher(PAGE_TOKENS, sha256),
    )


def prompt(tokens: int, seed: int) -> list[int]:
    """A prompt that shares no page with those of other seeds."""
    drawn: list[int] = np.random.default_rng(seed).integers(0, 1000, tokens).tolist()
    return drawn


def produce(scheduler: Any, output: Any) -> ModelRunnerOutput:
    """What a model runner would answer to a scheduled step: a token for each request whose prompt is computed."""
    names = list(output.num_scheduled_tokens)
    return ModelRunnerOutput(
        req_ids=names,
        req_id_to_index={name: index for index, name in enumerate(names)},
        sampled_token_ids=[[] if scheduler.requests[name].is_prefill_chunk else [7] for name in names],
    )


def step(scheduler: Any) -> Any:
    """Schedule a step, and bring its output back; returns vLLM's `SchedulerOutput`."""
    output = scheduler.schedule()
    scheduler.update_from_output(output, produce(scheduler, output))
    return output
