"""The memory plan: read out of a model's folder, added up as vLLM does, and refused where it can't fit."""

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from profiles.fit import refusal
from profiles.memory import MemoryPlan, plan
from profiles.model_shape import ModelShape, PlanError, Weights
from profiles.schema import Profile

# The shape of Llama 3.1 8B, from its published config.json.
LLAMA: dict[str, Any] = {
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "max_position_embeddings": 131072,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "torch_dtype": "bfloat16",
    "vocab_size": 128256,
    "rope_scaling": {"rope_type": "llama3", "factor": 8.0},
}
GB = 10**9


def model(folder: Path, config: dict[str, Any], tensors: dict[str, tuple[str, int]] | None = None) -> Path:
    """A model folder whose tensors are (data type, elements); the data itself is a hole in the file."""
    (folder / "config.json").write_text(json.dumps(config))
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    offset = 0
    for name, (dtype, elements) in (tensors or {"layer.weight": ("BF16", 1000)}).items():
        size = elements * {"F32": 4, "BF16": 2, "F16": 2, "U8": 1, "I32": 4}[dtype]
        header[name] = {"dtype": dtype, "shape": [elements], "data_offsets": [offset, offset + size]}
        offset += size
    text = json.dumps(header).encode()
    with (folder / "model.safetensors").open("wb") as file:
        file.write(struct.pack("<Q", len(text)) + text)
        file.truncate(8 + len(text) + offset)
    return folder


def profile(**sections: Any) -> Profile:
    return Profile.model_validate({"name": "test", **sections})


@pytest.fixture
def llama(tmp_path: Path) -> ModelShape:
    return ModelShape.read(model(tmp_path, LLAMA, {"layer.weight": ("BF16", 8_030_261_248)}))


def planned(shape: ModelShape, device_bytes: int | None = 80 * GB, **engine: Any) -> MemoryPlan:
    return plan(shape, profile(engine=engine), device_bytes, "cuda")


def test_a_known_model_adds_up(llama: ModelShape) -> None:
    found = planned(llama, kv_cache_memory=10 * 2**30, max_model_len=8192)
    assert found.weights_bytes == 2 * 8_030_261_248
    # 128 KiB a token: 2 × 32 layers × 8 heads × 128 × 2 bytes.
    assert found.page_bytes == 16 * 128 * 2**10
    # 5120 blocks, one of which is vLLM's null block.
    assert found.pages == 5119
    assert found.tokens == 5119 * 16
    assert found.concurrency == 5119 / 512
    assert not found.kv_estimated


def test_without_a_size_the_kv_cache_gets_what_its_share_of_the_device_leaves(llama: ModelShape) -> None:
    found = planned(llama, gpu_memory_utilization=0.5)
    assert found.kv_estimated
    assert found.total_bytes == 40 * GB


def test_more_allocated_tokens_or_requests_take_activations_and_leave_less_kv_cache(llama: ModelShape) -> None:
    small = plan(llama, profile(scheduler={"token_budget": 2048}), 80 * GB, "cuda")
    for section in ({"scheduler": {"token_budget": 16384}}, {"headroom": {"token_budget": 16.0}}):
        large = plan(llama, profile(**section), 80 * GB, "cuda")
        assert (large.activation_bytes or 0) > (small.activation_bytes or 0)
        assert (large.kv_bytes or 0) < (small.kv_bytes or 0)


@pytest.mark.parametrize(
    ("engine", "factor"),
    [
        ({"kv_cache_dtype": "fp8"}, 1 / 2),
        ({"dtype": "float32"}, 2),
        ({"block_size": 64}, 4),
        ({"tensor_parallel_size": 4}, 1 / 4),
        ({"tensor_parallel_size": 16}, 1 / 8),
        ({"pipeline_parallel_size": 3}, 11 / 32),
    ],
)
def test_the_size_of_a_page_follows_the_profile(llama: ModelShape, engine: dict[str, Any], factor: float) -> None:
    assert planned(llama, **engine).page_bytes == (planned(llama).page_bytes or 0) * factor


def test_the_default_page_is_vllms_of_the_device(llama: ModelShape) -> None:
    assert plan(llama, profile(), None, "cuda").block_size == 16
    assert plan(llama, profile(), None, "cpu").block_size == 128


def test_float32_weights_load_as_bfloat16_unless_asked_otherwise(tmp_path: Path) -> None:
    config = LLAMA | {"torch_dtype": "float32"}
    shape = ModelShape.read(model(tmp_path, config, {"a": ("F32", 500), "mask": ("U8", 7)}))
    assert planned(shape).weights_bytes == 500 * 2 + 7
    assert planned(shape, dtype="float32").weights_bytes == 500 * 4 + 7


def test_quantized_weights_are_as_on_disk_and_quantizing_while_loading_is_unknown(tmp_path: Path) -> None:
    config = LLAMA | {"quantization_config": {"quant_method": "awq"}}
    tensors = {"a": ("I32", 100), "scales": ("F16", 10)}
    assert planned(ModelShape.read(model(tmp_path, config, tensors)), dtype="bfloat16").weights_bytes == 420
    assert planned(ModelShape.read(model(tmp_path, LLAMA, tensors)), quantization="fp8").weights_bytes is None


def test_tied_embeddings_count_once(tmp_path: Path) -> None:
    tensors = {"model.embed_tokens.weight": ("BF16", 100), "lm_head.weight": ("BF16", 100)}
    assert planned(ModelShape.read(model(tmp_path, LLAMA, tensors))).weights_bytes == 400
    tied = LLAMA | {"tie_word_embeddings": True}
    assert planned(ModelShape.read(model(tmp_path, tied, tensors))).weights_bytes == 200


def test_the_index_says_which_files_count(tmp_path: Path) -> None:
    model(tmp_path, LLAMA, {"a": ("BF16", 100)}).joinpath("model.safetensors").rename(tmp_path / "part.safetensors")
    model(tmp_path, LLAMA, {"copy": ("BF16", 100)}).joinpath("model.safetensors").rename(tmp_path / "copy.safetensors")
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"a": "part.safetensors"}}))
    assert planned(ModelShape.read(tmp_path)).weights_bytes == 200


def test_a_text_model_inside_another_is_found(tmp_path: Path) -> None:
    nested = ModelShape.read(model(tmp_path, {"text_config": LLAMA, "vision_config": {"hidden_size": 3}}))
    assert nested == ModelShape.read(model(tmp_path, LLAMA))


UNKNOWN_PAGES: dict[str, dict[str, Any]] = {
    "MLA": {"kv_lora_rank": 512},
    "sliding window": {"sliding_window": 4096},
    "mixed layers": {"layer_types": ["full_attention", "sliding_attention"]},
    "linear attention": {"full_attention_interval": 4},
    "other names": {"multi_query": True},
    "shared KV": {"num_kv_shared_layers": 10},
    "heads by layer": {"num_key_value_heads": [8, 4]},
    "no layers": {"num_hidden_layers": None},
    "KV type of its own": {"quantization_config": {"quant_method": "modelopt", "kv_cache_quant_algo": "FP8"}},
}


@pytest.mark.parametrize("case", UNKNOWN_PAGES)
def test_a_kv_cache_of_another_layout_is_unknown_rather_than_wrong(tmp_path: Path, case: str) -> None:
    found = planned(ModelShape.read(model(tmp_path, LLAMA | UNKNOWN_PAGES[case])), kv_cache_memory=1000)
    assert (found.page_bytes, found.pages, found.tokens, found.concurrency) == (None, None, None, None)
    assert found.weights_bytes is not None
    assert refusal(found) is None


@pytest.mark.parametrize("ordinary", [{"sliding_window": 4096, "use_sliding_window": False}, {"kv_lora_rank": None}])
def test_a_key_that_is_switched_off_means_nothing(tmp_path: Path, ordinary: dict[str, Any]) -> None:
    assert planned(ModelShape.read(model(tmp_path, LLAMA | ordinary))).page_bytes is not None


def test_a_draft_model_makes_the_plan_unknown(llama: ModelShape) -> None:
    found = planned(llama, speculative={"method": "eagle3", "model": "drafter"})
    assert (found.weights_bytes, found.page_bytes, found.total_bytes) == (None, None, None)


@pytest.mark.parametrize("dtype", ["nvfp4", "int8_per_token_head", "typo"])
def test_a_kv_type_with_scales_of_its_own_is_unknown(llama: ModelShape, dtype: str) -> None:
    assert planned(llama, kv_cache_dtype=dtype).page_bytes is None


@pytest.mark.parametrize(
    ("config", "context"),
    [
        ({}, 131072),
        ({"rope_scaling": None}, 131072),
        ({"rope_scaling": {"type": "linear", "factor": 2.0}}, 262144),
        ({"rope_scaling": {"rope_type": "yarn", "factor": 4.0}}, 131072),
        ({"rope_scaling": {"rope_type": "longrope"}, "original_max_position_embeddings": 4096}, 4096),
        ({"max_position_embeddings": None}, None),
    ],
)
def test_the_context_is_the_one_vllm_derives(tmp_path: Path, config: dict[str, Any], context: int | None) -> None:
    assert ModelShape.read(model(tmp_path, LLAMA | config)).context == context


def test_the_tokenizer_may_shorten_the_context(tmp_path: Path) -> None:
    (tmp_path / "tokenizer_config.json").write_text('{"model_max_length": 2048}')
    assert ModelShape.read(model(tmp_path, LLAMA)).context == 2048


@pytest.mark.parametrize("content", [b"", b"{", b"[]", b"\xff", b"[" * 100_000])
def test_a_config_that_can_not_be_read_is_a_sentence(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(PlanError, match=r"config\.json"):
        ModelShape.read(tmp_path)


@pytest.mark.parametrize(
    "content", [b"", b"\xff" * 8, struct.pack("<Q", 2) + b"[]", struct.pack("<Q", 8) + b'{"a": 3}']
)
def test_damaged_weights_are_a_sentence(tmp_path: Path, content: bytes) -> None:
    model(tmp_path, LLAMA).joinpath("model.safetensors").write_bytes(content)
    with pytest.raises(PlanError, match="damaged header"):
        ModelShape.read(tmp_path)


def test_a_folder_without_config_says_so(tmp_path: Path) -> None:
    with pytest.raises(PlanError, match=r"no config\.json"):
        ModelShape.read(tmp_path)


def test_what_fits_is_not_refused_and_an_unknown_device_refuses_nothing(llama: ModelShape) -> None:
    assert refusal(planned(llama)) is None
    assert refusal(planned(llama, None)) is None


def test_less_kv_cache_than_one_sequence_names_the_longest_that_fits(llama: ModelShape) -> None:
    sentence = refusal(planned(llama, kv_cache_memory=2**30)) or ""
    assert "holds 8176 tokens (1.07 GB)" in sentence
    assert "131072" in sentence
    assert "engine.max_model_len = 8176." in sentence


def test_the_null_block_holds_no_part_of_a_sequence(llama: ModelShape) -> None:
    page = planned(llama).page_bytes or 0
    assert refusal(planned(llama, kv_cache_memory=65 * page, max_model_len=1024)) is None
    assert refusal(planned(llama, kv_cache_memory=64 * page, max_model_len=1024)) is not None


def test_a_kv_cache_above_the_device_names_the_one_there_is_room_for(llama: ModelShape) -> None:
    refused = planned(llama, 24 * GB, kv_cache_memory=20 * GB, max_model_len=4096)
    room = 24 * GB - (refused.weights_bytes or 0) - (refused.activation_bytes or 0)
    assert f"engine.kv_cache_memory = {room}." in (refusal(refused) or "")
    assert refusal(planned(llama, 24 * GB, kv_cache_memory=room, max_model_len=4096)) is None


def test_weights_above_the_device_can_only_be_answered_by_another_model(llama: ModelShape) -> None:
    sentence = refusal(planned(llama, 8 * GB)) or ""
    assert "16.06 GB of weights" in sentence
    assert "smaller model" in sentence


@given(st.integers(17, 30), st.integers(1, 4096), st.integers(100, 131072))
def test_what_a_refusal_names_fits_and_one_more_does_not(gigabytes: int, active: int, context: int) -> None:
    weights = Weights(parameters=8_030_261_248, other_bytes=0, disk_bytes=0)
    shape = ModelShape(32, 4096, 32, 8, 128, 14336, 1, 128256, "bfloat16", 131072, None, False, weights, None)

    def refused(max_len: int, max_active: int) -> str | None:
        sections = {"engine": {"max_model_len": max_len}, "scheduler": {"token_budget": 4096, "max_active": max_active}}
        return refusal(plan(shape, profile(**sections), gigabytes * GB, "cuda"))

    sentence = refused(context, active)
    assume(sentence is not None)
    for name, values in (
        ("engine.max_model_len", lambda value: (value, active)),
        ("scheduler.max_active", lambda value: (context, value)),
    ):
        if f"{name} = " in (sentence or ""):
            value = int((sentence or "").split(f"{name} = ")[1].split(",")[0].rstrip("."))
            assert refused(*values(value)) is None
            assert refused(*values(value + 1)) is not None
