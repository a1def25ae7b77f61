"""Reading the options of `vllm serve`, and choosing parsers for a model."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager

from engine_host.engine import parser_choice
from engine_host.engine.parser_choice import ParserChoice, choose_parsers
from engine_host.engine.serve_args import ServeArgsError, overridden, parse_serve_args
from profiles.schema import Profile

MakeModel = Callable[..., str]


@pytest.fixture
def make_model(tmp_path: Path) -> MakeModel:
    def make(model_type: str, template: str, name: str = "model") -> str:
        folder = tmp_path / name
        folder.mkdir()
        (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
        (folder / "tokenizer_config.json").write_text(json.dumps({"chat_template": template}))
        return str(folder)

    return make


def test_flags_override_the_profile() -> None:
    profile = {"max_model_len": 1024, "enforce_eager": True, "max_num_seqs": 8}
    args = parse_serve_args("/models/tiny", ["--max-model-len", "2k", "--max-num-seqs=4"], profile)
    assert (args.max_model_len, args.max_num_seqs, args.enforce_eager) == (2000, 4, True)
    assert args.model == "/models/tiny"


def test_a_shorter_context_takes_the_profile_s_threshold_with_it() -> None:
    profile = {"max_model_len": 1024, "long_prefill_token_threshold": 256}
    assert parse_serve_args("/m", ["--max-model-len=128"], profile).long_prefill_token_threshold == 128
    assert parse_serve_args("/m", [], profile).long_prefill_token_threshold == 256


def test_a_profile_is_planned_as_the_flags_make_it() -> None:
    profile = Profile.model_validate({"name": "p", "engine": {"max_model_len": 1024, "block_size": 32}})
    flags = ["--dtype=float32", "--max-model-len=512", "--kv-cache-memory-bytes=1048576"]
    engine = overridden(profile, "/m", flags, "cpu").engine
    assert (engine.dtype, engine.max_model_len, engine.kv_cache_memory, engine.block_size) == (
        "float32",
        512,
        1048576,
        32,
    )
    assert overridden(profile, "/m", [], "cpu") == profile


def test_the_served_name_is_the_folders() -> None:
    assert parse_serve_args("/models/tiny", [], {}).served_model_name == ["tiny"]
    assert parse_serve_args("/models/tiny", ["--served-model-name", "a", "b"], {}).served_model_name == ["a", "b"]


@pytest.mark.parametrize(
    ("arguments", "profile", "names"),
    [
        (["--max-model-length", "1", "--nope"], {}, "nope"),
        (["--max-num-seqs", "many"], {}, "max-num-seqs"),
        (["--dtype", "float7"], {}, "dtype"),
        (["stray"], {}, "stray"),
        (["--help"], {}, "help"),
        (["--tool-call-parser", "nope"], {}, "hermes"),
        (["--chat-template", "/no/such/template.jinja"], {}, "template"),
        (["--ssl-keyfile", "key.pem"], {}, "TLS proxy"),
        (["--enable-auto-tool-choice"], {}, "--tool-call-parser"),
        ([], {"warp_factor": 9}, "warp_factor"),
    ],
)
def test_faults_are_sentences(
    arguments: list[str], profile: dict[str, object], names: str, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(ServeArgsError) as caught:
        parse_serve_args("/models/tiny", arguments, profile)
    assert names in str(caught.value)
    out, err = capfd.readouterr()
    assert "usage" not in out + err


TOOLS = "{% if tools %}"


@pytest.mark.parametrize(
    ("model_type", "template", "name", "tool", "reasoning"),
    [
        ("qwen2", TOOLS + "<tool_call>", "Qwen2.5", "hermes", None),
        ("qwen3", TOOLS + "<tool_call> enable_thinking <think>", "Qwen3", "hermes", "qwen3"),
        ("qwen3_moe", TOOLS + "<tool_call><function=", "Qwen3-Coder", "qwen3_coder", None),
        ("llama", TOOLS + "<|python_tag|>", "Llama-3.1", "llama3_json", None),
        ("llama", TOOLS + "<tool_call>", "Hermes-3-Llama", "hermes", None),
        ("llama", "no such thing", "SmolLM2", None, None),
        ("mistral", TOOLS + "[TOOL_CALLS]", "Mistral", "mistral", None),
        ("qwen2", "<think>", "DeepSeek-R1-Distill-Qwen", None, "deepseek_r1"),
        ("gpt_oss", TOOLS + "<|channel|>", "gpt-oss", "openai", "openai_gptoss"),
        ("never_heard_of", TOOLS, "new", None, None),
    ],
)
def test_parsers_are_chosen_by_family(
    make_model: MakeModel, model_type: str, template: str, name: str, tool: str | None, reasoning: str | None
) -> None:
    model = make_model(model_type, template, name)
    assert choose_parsers(model) == ParserChoice(tool, reasoning)
    args = parse_serve_args(model, [], {})
    assert (args.tool_call_parser, args.enable_auto_tool_choice) == (tool, tool is not None)
    assert args.structured_outputs_config.reasoning_parser == (reasoning or "")


def test_a_choice_can_be_overridden(make_model: MakeModel) -> None:
    model = make_model("qwen3", TOOLS + "<tool_call> enable_thinking <think>")
    args = parse_serve_args(
        model, ["--tool-call-parser", "pythonic", "--enable-auto-tool-choice", "--reasoning-parser", ""], {}
    )
    assert (args.tool_call_parser, args.reasoning_parser) == ("pythonic", "")
    assert parse_serve_args(model, ["--no-enable-auto-tool-choice"], {}).tool_call_parser is None


def test_an_own_chat_template_decides(make_model: MakeModel, tmp_path: Path) -> None:
    model = make_model("qwen2", TOOLS + "<tool_call>")
    template = tmp_path / "plain.jinja"
    template.write_text("{{ messages }}")
    assert choose_parsers(model, str(template)) == ParserChoice(None, None)


def test_every_parser_named_is_one_of_vllms() -> None:
    tools = {name for _, name in parser_choice.TOOL_MARKUP} | set(parser_choice.TOOL_TYPES.values())
    assert tools <= set(ToolParserManager.list_registered())
    reasoning = {*parser_choice.REASONING_TYPES.values(), "deepseek_r1", "mistral"}
    assert reasoning <= set(ReasoningParserManager.list_registered())
