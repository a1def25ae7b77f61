"""Building the serving classes."""

import copy
from argparse import Namespace
from typing import Any

from engine_host.engine.serving import build_serving


async def test_a_chosen_parser_that_does_not_fit_is_dropped(stub_engine: Any, serve_args: Namespace) -> None:
    """The tokenizer lacks the markers that this parser looks for; a parser the operator chose would be an error."""
    args = copy.deepcopy(serve_args)
    args.tool_call_parser, args.enable_auto_tool_choice, args.auto_parsers = "deepseek_v3", True, True
    serving = await build_serving(stub_engine, args)
    assert serving.state.openai_serving_chat.parser_cls is None


async def test_serving_can_be_built_again(stub_engine: Any, serve_args: Namespace) -> None:
    """As after a restart of the engine: vLLM registers metrics for its application only once a process."""
    first = await build_serving(stub_engine, serve_args)
    second = await build_serving(stub_engine, serve_args)
    assert first.streaming_paths == second.streaming_paths
