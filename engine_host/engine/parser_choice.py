"""Which of vLLM's tool-call and reasoning parsers reads a model's output, told from the model's own files.

The chat template decides first: it shows the very markup that the model was trained to write. `model_type` decides
where templates don't differ. The rows follow the parsers' own documentation in vLLM 0.32; a test checks that every
name here is one that vLLM knows.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_TOOLS = re.compile(r"\btools\b")

TOOL_MARKUP: tuple[tuple[str, str], ...] = (
    ("<function=", "qwen3_coder"),
    ("[TOOL_CALLS]", "mistral"),
    ("<｜tool▁calls▁begin｜>", "deepseek_v3"),
    ("<|python_tag|>", "llama3_json"),
    ("<|tool_call|>", "granite"),
)
"""Text of the chat template, and the tool parser for models that write so. The first match wins."""

TOOL_TYPES: dict[str, str] = {
    "apertus": "apertus",
    "ernie4_5_moe": "ernie45",
    "gemma4": "gemma4",
    "glm4_moe": "glm45",
    "gpt_oss": "openai",
    "hunyuan_v1_dense": "hunyuan_a13b",
    "hunyuan_v1_moe": "hunyuan_a13b",
    "internlm2": "internlm",
    "jamba": "jamba",
    "kimi_k2": "kimi_k2",
    "lfm2": "lfm2",
    "llama": "llama3_json",
    "llama4": "llama4_pythonic",
    "minimax_m2": "minimax_m2",
    "mistral": "mistral",
    "mistral3": "mistral",
    "mixtral": "mistral",
    "olmo3": "olmo3",
    "phi3": "phi4_mini_json",
    "qwen2": "hermes",
    "qwen2_moe": "hermes",
    "qwen3": "hermes",
    "qwen3_moe": "hermes",
    "seed_oss": "seed_oss",
    "step3_text": "step3",
}
"""`model_type` of the model's config, and its tool parser."""

REASONING_TYPES: dict[str, str] = {
    "ernie4_5_moe": "ernie45",
    "glm4_moe": "glm45",
    "gpt_oss": "openai_gptoss",
    "hunyuan_v1_moe": "hunyuan_a13b",
    "kimi_k2": "kimi_k2",
    "minimax_m2": "minimax_m2",
    "olmo3": "olmo3",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3",
    "seed_oss": "seed_oss",
    "step3_text": "step3",
}
"""`model_type`, and the reasoning parser, for models whose chat template knows about thinking."""

_THINKS = ("<think>", "enable_thinking", "[THINK]", "<|channel|>", "<seed:think>", "thinking")


@dataclass(frozen=True)
class ParserChoice:
    """Names of vLLM's parsers; `None` where the model needs none or nothing is known of it."""

    tool: str | None
    reasoning: str | None


def choose_parsers(model: str, chat_template: str | None = None) -> ParserChoice:
    """Choose for a model folder. A model that isn't a local folder gets no parser: its files aren't known yet.

    `chat_template` takes the place of the model's own where the operator has set one (a file or the text itself).
    """
    folder = Path(model)
    config = _read_json(folder / "config.json")
    template = _template(folder, chat_template)
    if config is None or not template:
        return ParserChoice(None, None)
    model_type = str(config.get("model_type", ""))
    return ParserChoice(_tool_parser(model_type, template), _reasoning_parser(model_type, folder.name, template))


def _tool_parser(model_type: str, template: str) -> str | None:
    if not _TOOLS.search(template):
        return None
    if (known := TOOL_TYPES.get(model_type)) is not None and model_type not in ("llama", "qwen3_moe"):
        return known
    # Fine-tunes of Llama and Qwen bring their own markup.
    by_markup = next((name for markup, name in TOOL_MARKUP if markup in template), None)
    return by_markup or ("hermes" if "<tool_call>" in template else known)


def _reasoning_parser(model_type: str, name: str, template: str) -> str | None:
    if not any(mark in template for mark in _THINKS):
        return None
    if re.search(r"deepseek.*r1|r1-distill", name, re.IGNORECASE):
        return "deepseek_r1"
    if "[THINK]" in template:
        return "mistral"
    if model_type in ("qwen3", "qwen3_moe") and "<think>" not in template:
        return None
    return REASONING_TYPES.get(model_type)


def _template(folder: Path, chat_template: str | None) -> str:
    if chat_template is not None:
        try:
            return Path(chat_template).read_text()
        except OSError:
            return chat_template
    try:
        return (folder / "chat_template.jinja").read_text()
    except OSError:
        pass
    found = (_read_json(folder / "tokenizer_config.json") or {}).get("chat_template", "")
    if isinstance(found, list):
        return "\n".join(str(each.get("template", "")) for each in found if isinstance(each, dict))
    return str(found or "")


def _read_json(path: Path) -> dict[str, Any] | None:
    try:
        value = json.loads(path.read_text())
    except (OSError, ValueError):
        return None
    return value if isinstance(value, dict) else None
