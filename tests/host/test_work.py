"""The estimate of a model's work, taken apart, is vLLM's own on any batch."""

import json
import math
import random
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from engine_host.engine.work import work_model
from engine_host.telemetry.work import WorkModel

SHAPE = {
    "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 4, "num_attention_heads": 4,
    "num_key_value_heads": 2, "vocab_size": 1000, "max_position_embeddings": 4096, "torch_dtype": "bfloat16",
    "rms_norm_eps": 1e-5, "bos_token_id": 1, "eos_token_id": 2,
}  # fmt: skip
MODELS: dict[str, dict[str, Any]] = {
    "dense": {"architectures": ["LlamaForCausalLM"], "model_type": "llama"},
    "sliding window": {"architectures": ["MistralForCausalLM"], "model_type": "mistral", "sliding_window": 256},
    "some layers with a sliding window": {
        "architectures": ["Gemma2ForCausalLM"], "model_type": "gemma2", "sliding_window": 256, "head_dim": 16,
        "query_pre_attn_scalar": 16,
    },
    "mixture of experts": {
        "architectures": ["MixtralForCausalLM"], "model_type": "mixtral", "num_local_experts": 8,
        "num_experts_per_tok": 2,
    },
}  # fmt: skip


def config(folder: Path, model: dict[str, Any]) -> Any:
    from vllm.engine.arg_utils import EngineArgs

    (folder / "config.json").write_text(json.dumps(SHAPE | model))
    args = EngineArgs(
        model=str(folder), skip_tokenizer_init=True, load_format="dummy", enforce_eager=True, max_model_len=4096
    )
    return args.create_engine_config()


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS.keys())
def test_it_is_vllm_s_own_estimate(tmp_path: Path, model: dict[str, Any]) -> None:
    from vllm.v1.metrics.perf import ExecutionContext, ModelMetrics

    made = config(tmp_path, model)
    vllm, ours, chance = ModelMetrics(made), work_model(made), random.Random(3)
    assert ours is not None
    for _ in range(50):
        lengths = chance.choices(range(1, 900), k=chance.randrange(5))
        prompts = [(tokens, tokens + chance.randrange(500)) for tokens in lengths]
        decodes = [(1, chance.randrange(1, 3000)) for _ in range(chance.randrange(1, 40))]
        batch = ExecutionContext()
        for requests, is_prefill in ((prompts, True), (decodes, False)):
            for tokens, context in requests:
                batch.add(tokens, context, is_prefill)
        flops, traffic = _all(ours, prompts, decodes)
        assert math.isclose(flops, vllm.get_num_flops(batch), rel_tol=1e-9)
        assert math.isclose(traffic, vllm.get_read_bytes(batch) + vllm.get_write_bytes(batch), rel_tol=1e-9)


def test_a_model_that_vllm_can_t_judge_has_no_estimate() -> None:
    assert work_model(object()) is None


def _all(work: WorkModel, prompts: list[tuple[int, int]], decodes: list[tuple[int, int]]) -> tuple[float, float]:
    flops = traffic = 0.0
    for requests, prefill in ((prompts, True), (decodes, False)):
        tokens, context = np.array(requests, np.float64).reshape(-1, 2).T
        flops += float(work.flops(tokens, context, 1).sum())
        traffic += float(work.bytes_(tokens, context, 1, prefill=prefill).sum())
    return flops, traffic + float(work.shared_bytes(sum(tokens for tokens, _ in prompts + decodes)))
