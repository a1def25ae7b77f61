"""What a model's folder says about the memory it needs. Reads config.json and the weight files' headers, no weights."""

import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

# Bytes an element, by the names safetensors and config.json use.
DTYPE_BYTES = {"float32": 4, "float16": 2, "bfloat16": 2}
_STORED = {"F32": "float32", "F16": "float16", "BF16": "bfloat16"}

# safetensors refuses longer headers (MAX_HEADER_SIZE of its reader).
_MAX_HEADER = 100_000_000

# RoPE types whose factor max_position_embeddings has already: `_get_and_verify_max_len` in vllm/config/model.py.
_ROPE_INCLUDED = ("default", "su", "longrope", "llama3", "yarn", "deepseek_yarn", "deepseek_llama_scaling")

# Keys in a config that mean another layout of the KV cache than pages of full attention in every layer.
_OTHER_LAYOUTS = {
    "kv_lora_rank": "multi-head latent attention",
    "layers_block_type": "layers of several kinds",
    "hybrid_override_pattern": "layers of several kinds",
    "attn_type_list": "layers of several kinds",
    "block_configs": "layers of several kinds",
    "full_attention_interval": "layers of several kinds",
    "attn_layer_period": "layers of several kinds",
    "mamba_d_state": "state-space layers",
    "state_size": "state-space layers",
    "compress_ratios": "compressed attention",
    "attention_chunk_size": "chunked attention",
    "num_kv_shared_layers": "layers that share their KV cache",
    "is_encoder_decoder": "an encoder and a decoder",
    # Other names for the number of KV heads.
    "n_head_kv": "KV heads named otherwise",
    "num_kv_heads": "KV heads named otherwise",
    "multi_query": "KV heads named otherwise",
    "multi_query_group_num": "KV heads named otherwise",
    "num_attention_groups": "KV heads named otherwise",
}


class PlanError(Exception):
    """Why no memory plan can be made, as a sentence."""


@dataclass(frozen=True)
class Weights:
    """Size of the weights: `parameters` are those in a floating type of 16 or 32 bits, `other_bytes` all else's bytes.

    `disk_bytes` is what all of them take in the files.
    """

    parameters: int
    other_bytes: int
    disk_bytes: int


@dataclass(frozen=True)
class ModelShape:
    """What the memory plan needs to know of a model.

    Sizes are numbers of elements, heads, layers or tokens; `None` is not told by the config. `dtype` is the config's,
    or else that of most weights. `context` is the longest one vLLM takes unasked. `experts` is the number one token
    passes through, and `intermediate` the width of one of them. `quantized_kv`: the model brings a data type for its
    KV cache. `no_pages` says in a few words why KV pages can't be computed.
    """

    layers: int | None
    hidden: int | None
    heads: int | None
    kv_heads: int | None
    head_dim: int | None
    intermediate: int | None
    experts: int
    vocab: int | None
    dtype: str | None
    context: int | None
    quantization: str | None
    quantized_kv: bool
    weights: Weights | None
    no_pages: str | None

    @classmethod
    def read(cls, folder: Path) -> "ModelShape":
        """The shape of the model in `folder`. Raises `PlanError`: no config.json there, or one that can't be read."""
        config = _json(folder / "config.json")
        nested = config.get("text_config")
        text: dict[str, Any] = {**config, **nested} if isinstance(nested, dict) else config
        quantization = config.get("quantization_config") or text.get("quantization_config")
        quantization = quantization if isinstance(quantization, dict) else None
        weights, stored = _weights(folder, config.get("tie_word_embeddings") is True)
        heads, hidden = _size(text, "num_attention_heads"), _size(text, "hidden_size")
        derived = hidden // heads if hidden and heads else None
        head_dim = _size(text, "head_dim") if text.get("head_dim") is not None else derived
        experts = _size(text, "num_experts_per_tok")
        return cls(
            layers=_size(text, "num_hidden_layers"),
            hidden=hidden,
            heads=heads,
            kv_heads=_size(text, "num_key_value_heads") if text.get("num_key_value_heads") is not None else heads,
            head_dim=head_dim,
            intermediate=(_size(text, "moe_intermediate_size") if experts else None)
            or _size(text, "intermediate_size"),
            experts=experts or 1,
            vocab=_size(text, "vocab_size"),
            dtype=_dtype(text) or stored,
            context=_context(folder, text),
            quantization=str(quantization.get("quant_method", "unnamed")) if quantization else None,
            quantized_kv=_says_kv_cache(quantization),
            weights=weights,
            no_pages=_other_layout(text),
        )

    def parameter_bytes(self, dtype: str, quantization: str | None) -> int | None:
        """Bytes of the weights in memory, loaded in `dtype`.

        As on disk where the model is quantized; unknown where it would be quantized while loading (`quantization` given
        and the model isn't).
        """
        if self.weights is None or (quantization is not None and self.quantization is None):
            return None
        if self.quantization is not None:
            return self.weights.disk_bytes
        return self.weights.parameters * DTYPE_BYTES[dtype] + self.weights.other_bytes


def _json(file: Path) -> dict[str, Any]:
    try:
        data = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise PlanError(f"{file.parent} is not a model folder: it has no {file.name}.") from None
    except OSError as error:
        raise PlanError(f"{file} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{file} is not valid JSON. Download the model again.") from error
    if not isinstance(data, dict):
        raise PlanError(f"{file} is not a model's configuration. Download the model again.")
    return data


def _size(config: dict[str, Any], key: str) -> int | None:
    value = config.get(key)
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def _dtype(config: dict[str, Any]) -> str | None:
    """transformers 5 writes `dtype`, earlier ones `torch_dtype`."""
    name = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return name if name in DTYPE_BYTES else None


def _says_kv_cache(quantization: dict[str, Any] | None) -> bool:
    """Whether the model brings a data type for its KV cache, which vLLM then takes for "auto"."""
    return quantization is not None and any(quantization.get(key) for key in ("kv_cache_scheme", "kv_cache_quant_algo"))


def _other_layout(config: dict[str, Any]) -> str | None:
    for key, reason in _OTHER_LAYOUTS.items():
        if config.get(key):
            return reason
    kinds = config.get("layer_types")
    if isinstance(kinds, list) and set(kinds) - {"full_attention", "attention"}:
        return "layers of several kinds"
    if not isinstance(kinds, list) and config.get("sliding_window") and config.get("use_sliding_window") is not False:
        return "sliding-window attention"
    return None


def _context(folder: Path, config: dict[str, Any]) -> int | None:
    """The longest context in tokens, as `_get_and_verify_max_len` in vllm/config/model.py derives it."""
    longest = _size(config, "max_position_embeddings")
    if longest is None:
        return None
    rope = config.get("rope_parameters") or config.get("rope_scaling") or {}
    if not isinstance(rope, dict) or any(isinstance(value, dict) for value in rope.values()):
        return None
    kind, factor = rope.get("rope_type", rope.get("type", "default")), rope.get("factor")
    if kind == "longrope":
        return _size(config, "original_max_position_embeddings") or _size(rope, "original_max_position_embeddings")
    limit = float(longest)
    if (folder / "tokenizer_config.json").is_file():
        asked = _json(folder / "tokenizer_config.json").get("model_max_length")
        limit = min(limit, asked) if isinstance(asked, int | float) and asked > 0 else limit
    if kind not in _ROPE_INCLUDED and isinstance(factor, int | float):
        limit *= factor
    return int(limit)


def _weights(folder: Path, tied: bool) -> tuple[Weights | None, str | None]:
    """The weights and the data type most of them have; `None` where no safetensors file tells.

    A model that ties its embeddings loads them once, also where the file has them twice.
    """
    elements: dict[str, int] = {}
    other = disk = 0
    for file in _weight_files(folder):
        tensors = _header(file)
        for name, tensor in tensors.items():
            if name == "__metadata__" or (tied and name == "lm_head.weight"):
                continue
            try:
                (start, end), stored = tensor["data_offsets"], _STORED.get(tensor["dtype"])
                size = int(end) - int(start)
            except (KeyError, TypeError, ValueError) as error:
                raise PlanError(f"{file} has a damaged header. Download the model again.") from error
            disk += size
            if stored is None:
                other += size
            else:
                elements[stored] = elements.get(stored, 0) + size // DTYPE_BYTES[stored]
    if not disk:
        return None, None
    most = max(elements, key=lambda name: elements[name]) if elements else None
    return Weights(sum(elements.values()), other, disk), most


def _weight_files(folder: Path) -> Iterator[Path]:
    index = folder / "model.safetensors.index.json"
    if index.is_file():
        listed = _json(index).get("weight_map")
        names = set(listed.values()) if isinstance(listed, dict) else set()
        yield from (folder / str(name) for name in sorted(names))
    elif (folder / "model.safetensors").is_file():
        yield folder / "model.safetensors"
    else:
        yield from sorted(folder.glob("*.safetensors"))


def _header(file: Path) -> dict[str, Any]:
    """A safetensors header: 8 bytes of length, little-endian, then JSON: each tensor's dtype, shape and offsets."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            header = json.loads(stream.read(length)) if length <= _MAX_HEADER else None
    except OSError as error:
        raise PlanError(f"{file} can't be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise PlanError(f"{file} has a damaged header. Download the model again.") from error
    if not isinstance(header, dict):
        raise PlanError(f"{file} has a damaged header. Download the model again.")
    return header
