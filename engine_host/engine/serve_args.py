"""The options of `vllm serve`, read by vLLM's own parser, with sentences in place of usage texts and exits."""

import argparse
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NoReturn

from vllm.entrypoints.launchers.cli_args import make_arg_parser, validate_parsed_serve_args
from vllm.exceptions import VLLMError
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.utils.argparse_utils import FlexibleArgumentParser

from engine_host.engine.parser_choice import choose_parsers
from engine_host.engine.process import DeviceKind
from profiles.schema import Profile

NOT_OURS: dict[str, str] = {
    "api_server_count": "there is one server process, the host itself",
    "data_parallel_multi_port_external_lb": "there is one port",
    "enable_ssl_refresh": "the port speaks plain HTTP: put a TLS proxy in front of it",
    "grpc": "the port speaks HTTP",
    "grpc_port": "the port speaks HTTP",
    "headless": "leave out the screen with 'llmconsole serve' instead",
    "middleware": "the port isn't vLLM's application",
    "root_path": "the port is served at the root",
    "ssl_ca_certs": "the port speaks plain HTTP: put a TLS proxy in front of it",
    "ssl_certfile": "the port speaks plain HTTP: put a TLS proxy in front of it",
    "ssl_keyfile": "the port speaks plain HTTP: put a TLS proxy in front of it",
    "uds": "the host has a Unix socket of its own",
}
"""Options that would be silently ignored, and why they are refused."""


class ServeArgsError(Exception):
    """The options can't be served with; one sentence to show."""


class _Parser(FlexibleArgumentParser):
    """vLLM's parser, raising instead of printing its usage and ending the process."""

    def error(self, message: str) -> NoReturn:
        raise ServeArgsError(f"{_capitalized(message)}. The options are those of 'vllm serve' 0.32.")

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        raise ServeArgsError(message or "vLLM's parser has ended early.")


def parse_serve_args(
    model: str, serve_args: Sequence[str], engine_arguments: Mapping[str, object]
) -> argparse.Namespace:
    """Parse options of `vllm serve` for `model`.

    `engine_arguments`, by the names of vLLM's engine arguments, are the defaults that `serve_args` override. Where no
    served name is given it is the model folder's. Where no parsers are given they are chosen for the model, and
    `auto_parsers` of the result is true; `--no-enable-auto-tool-choice` and an empty name choose none.

    Raises `ServeArgsError`.
    """
    parser = make_arg_parser(_Parser(prog="llmconsole", add_help=False))
    known = {action.dest for action in parser._actions}
    if unknown := sorted(set(engine_arguments) - known):
        raise ServeArgsError(f"The profile sets {', '.join(unknown)}, which vLLM 0.32 does not have.")
    defaults = {name: parser.get_default(name) for name in NOT_OURS}
    parser.set_defaults(**engine_arguments)
    chosen_by_profile = {"tool_call_parser", "reasoning_parser", "enable_auto_tool_choice"} & set(engine_arguments)
    unset = {"tool_call_parser", "reasoning_parser", "enable_auto_tool_choice"} - chosen_by_profile
    parser.set_defaults(**dict.fromkeys(unset))
    try:
        args: argparse.Namespace = parser.parse_args([*serve_args])
        if args.model_tag is not None:
            raise ServeArgsError(f"Unexpected argument {args.model_tag!r}: the model is chosen with --model.")
        for name, why in NOT_OURS.items():
            if getattr(args, name) != defaults[name]:
                raise ServeArgsError(f"--{name.replace('_', '-')} is not supported here: {why}.")
        args.model = model
        args.served_model_name = args.served_model_name or [Path(model).name or model]
        # vLLM refuses a threshold above the context; one that was meant for a longer context is no fault of the user's.
        longest, threshold = args.max_model_len, args.long_prefill_token_threshold
        if isinstance(longest, int) and threshold == engine_arguments.get("long_prefill_token_threshold"):
            args.long_prefill_token_threshold = min(threshold, longest) if longest > 0 else threshold
        _choose_parsers(args)
        validate_parsed_serve_args(args)
    except ServeArgsError:
        raise
    except (VLLMError, ValueError, TypeError, KeyError, OSError, argparse.ArgumentError) as error:
        raise ServeArgsError(f"{_capitalized(str(error).removeprefix('Error: '))}") from error
    return args


OVERRIDES = {
    "dtype": "dtype",
    "quantization": "quantization",
    "kv_cache_dtype": "kv_cache_dtype",
    "block_size": "block_size",
    "max_model_len": "max_model_len",
    "gpu_memory_utilization": "gpu_memory_utilization",
    "kv_cache_memory_bytes": "kv_cache_memory",
    "tensor_parallel_size": "tensor_parallel_size",
    "pipeline_parallel_size": "pipeline_parallel_size",
}
"""Engine arguments that decide about memory, and the knobs of `[engine]` they override."""


def overridden(profile: Profile, model: str, serve_args: Sequence[str], device: DeviceKind) -> Profile:
    """The profile as the command line's options make it. Raises `ServeArgsError`."""
    if not serve_args:
        return profile
    given = profile.engine_arguments(device)
    args = parse_serve_args(model, serve_args, given)
    plain = parse_serve_args(model, [], given)
    changed = {
        knob: getattr(args, name) for name, knob in OVERRIDES.items() if getattr(args, name) != getattr(plain, name)
    }
    return profile.model_copy(update={"engine": profile.engine.model_copy(update=changed)})


def _choose_parsers(args: argparse.Namespace) -> None:
    """Fill in the parsers that nobody chose."""
    for plugin, load in (
        (args.tool_parser_plugin, ToolParserManager.import_tool_parser),
        (args.reasoning_parser_plugin, ReasoningParserManager.import_reasoning_parser),
    ):
        if plugin:
            load(plugin)
    choice = choose_parsers(args.model, args.chat_template)
    args.auto_parsers = False
    if args.tool_call_parser is None and args.enable_auto_tool_choice is None and choice.tool is not None:
        args.tool_call_parser, args.enable_auto_tool_choice, args.auto_parsers = choice.tool, True, True
    if args.reasoning_parser is None and choice.reasoning is not None:
        args.reasoning_parser, args.auto_parsers = choice.reasoning, True
    args.tool_call_parser = args.tool_call_parser or None
    args.reasoning_parser = args.reasoning_parser or ""
    args.enable_auto_tool_choice = bool(args.enable_auto_tool_choice)
    _check_name("--tool-call-parser", args.tool_call_parser, ToolParserManager.list_registered())
    _check_name("--reasoning-parser", args.reasoning_parser, ReasoningParserManager.list_registered())
    # vLLM's serving classes read it here; the engine's own configuration does the same later.
    args.structured_outputs_config.reasoning_parser = args.reasoning_parser


def _check_name(option: str, name: str | None, known: Sequence[str]) -> None:
    if name and name not in known:
        raise ServeArgsError(f"{option} {json.dumps(name)} is not known to vLLM; it knows {', '.join(known)}.")


def _capitalized(text: str) -> str:
    text = text.strip().rstrip(".")
    return text[:1].upper() + text[1:]
