"""The schema: what the engine is built with, what runs, and that each knob says what it is."""

import ast
import importlib.util
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
import tomlkit
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import ValidationError

from profiles.schema import LiveKnobs, Profile, knobs
from profiles.store import read_profile


def profile(**sections: Any) -> Profile:
    return Profile.model_validate({"name": "test", **sections})


@st.composite
def profiles(draw: st.DrawFn) -> Profile:
    tokens = draw(st.integers(1, 65_536))
    return profile(
        description=draw(st.text(st.characters(codec="utf-8", exclude_characters="\r"))),
        engine={
            "dtype": draw(st.sampled_from(["auto", "bfloat16", "float32"])),
            "block_size": draw(st.none() | st.sampled_from([32, 64, 128])),
            "gpu_memory_utilization": draw(st.floats(0.01, 1.0)),
            "kv_cache_memory": draw(st.none() | st.integers(1, 2**40)),
            "enforce_eager": draw(st.booleans()),
        },
        scheduler={
            "token_budget": tokens,
            "max_active": draw(st.integers(1, tokens)),
            "long_prefill_threshold": draw(st.integers(0, 65_536)),
            "policy": draw(st.sampled_from(["fcfs", "priority"])),
            "watermark": draw(st.floats(0.0, 0.99)),
        },
        headroom={"token_budget": draw(st.floats(2.0, 16.0)), "max_active": draw(st.floats(1.0, 2.0))},
        flight={"snapshot_hz": draw(st.floats(0.1, 10.0))},
        cost={"usd_per_hour": draw(st.none() | st.floats(0, 1000))},
    )


@settings(deadline=None)
@given(profiles())
def test_a_profile_written_as_toml_reads_back_the_same(tmp_path_factory: pytest.TempPathFactory, one: Profile) -> None:
    path: Path = tmp_path_factory.mktemp("profiles") / "test.toml"
    path.write_text(tomlkit.dumps(one.model_dump(exclude_none=True)), encoding="utf-8", newline="")
    assert read_profile(path) == (one, ())


@settings(deadline=None)
@given(profiles())
def test_running_values_never_exceed_what_is_allocated(one: Profile) -> None:
    arguments, live = one.engine_arguments("cuda"), one.live_values()
    assert live.token_budget <= arguments["max_num_batched_tokens"]  # type: ignore[operator]
    assert live.max_active <= arguments["max_num_seqs"]  # type: ignore[operator]
    assert arguments["max_num_seqs"] <= arguments["max_num_batched_tokens"]  # type: ignore[operator]


@settings(deadline=None)
@given(profiles())
def test_the_cpu_engine_is_eager_and_sized_in_bytes_where_bytes_are_given(one: Profile) -> None:
    arguments = one.engine_arguments("cpu")
    assert arguments["enforce_eager"] is True
    assert ("gpu_memory_utilization" in arguments) == (one.engine.kv_cache_memory is None)
    assert None not in arguments.values()


def test_ngram_speculation_becomes_the_engines_dictionary() -> None:
    arguments = profile(engine={"speculative": {"num_speculative_tokens": 3}}).engine_arguments("cuda")
    assert arguments["speculative_config"] == {
        "method": "ngram",
        "num_speculative_tokens": 3,
        "prompt_lookup_min": 2,
        "prompt_lookup_max": 4,
    }


@pytest.mark.parametrize(
    "sections",
    [
        {"engine": {"speculative": {"method": "eagle"}}},
        {"engine": {"speculative": {"method": "ngram", "model": "draft"}}},
        {"engine": {"speculative": {"prompt_lookup_min": 5}}},
        {"engine": {"max_model_len": 1024}, "scheduler": {"long_prefill_threshold": 2048}},
        {"scheduler": {"chunked_prefill": False}},
        {"scheduler": {"chunked_prefill": False}, "engine": {"max_model_len": 8192}},
        {"scheduler": {"token_budget": 100, "max_active": 100}, "headroom": {"token_budget": 1.0}},
    ],
)
def test_values_that_contradict_each_other_are_refused(sections: dict[str, Any]) -> None:
    with pytest.raises(ValidationError):
        profile(**sections)


def test_chunking_may_be_off_where_every_prompt_fits_a_step() -> None:
    one = profile(scheduler={"chunked_prefill": False}, engine={"max_model_len": 4096})
    assert one.engine_arguments("cuda")["enable_chunked_prefill"] is False


def test_a_profile_cannot_be_changed() -> None:
    with pytest.raises(ValidationError):
        profile().scheduler.token_budget = 1  # type: ignore[misc]


def test_every_knob_says_what_it_is_and_the_live_ones_are_those_handed_to_the_scheduler() -> None:
    assert all(knob.description for knob in knobs())
    live = {knob.path[-1] for knob in knobs() if knob.when == "live" and knob.path[0] in ("scheduler", "flight")}
    assert live == {field.name for field in fields(LiveKnobs)}


def test_the_engine_knows_every_argument_by_that_name() -> None:
    """Read from vLLM's source, because importing it takes seconds."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.origin is not None
    tree = ast.parse((Path(spec.origin).parent / "engine" / "arg_utils.py").read_text())
    [engine_args] = [node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "EngineArgs"]
    known = {
        node.target.id
        for node in engine_args.body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }
    everything = profile(
        engine={
            "model": "m",
            "quantization": "awq",
            "block_size": 32,
            "max_model_len": 8192,
            "kv_cache_memory": "1GiB",
            "speculative": {},
        }
    )
    assert everything.engine_arguments("cuda").keys() <= known
