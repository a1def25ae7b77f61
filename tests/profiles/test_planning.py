"""The wire form of a change of profile, and its plan against the real engine's own figures."""

import json
import re
import struct
from pathlib import Path
from typing import Any

import pytest

from engine_host.api.client import HostClient
from engine_host.api.types import PlanLine, ProfileChange
from engine_host.planning import local_device, profile_change
from profiles.memory import plan
from profiles.model_shape import ModelShape
from profiles.schema import Profile
from profiles.store import ProfileStore
from tests.support import LiveHost, small_model

CONFIG = {
    "hidden_size": 576,
    "intermediate_size": 1536,
    "max_position_embeddings": 8192,
    "num_attention_heads": 9,
    "num_hidden_layers": 30,
    "num_key_value_heads": 3,
    "torch_dtype": "bfloat16",
    "vocab_size": 49152,
}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return model(tmp_path / "model", 30)


def model(folder: Path, layers: int) -> Path:
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": layers}))
    header = json.dumps({"a": {"dtype": "BF16", "shape": [8], "data_offsets": [0, 16]}}).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(16))
    return folder


def profile(name: str = "test", **sections: Any) -> Profile:
    return Profile.model_validate({"name": name, **sections})


def change(new: Profile, folder: Path, new_folder: Path | None = None, built: Profile | None = None) -> ProfileChange:
    running = profile("now", engine={"kv_cache_memory": 2**29, "block_size": 32})
    return profile_change(running, built or running, new, folder, new_folder, "cpu", 2**34)


def lines(found: ProfileChange) -> dict[str, PlanLine]:
    return {line.label: line for line in found.plan}


def test_a_rebuild_shows_knobs_as_text_and_both_plans(folder: Path) -> None:
    found = change(profile("next", engine={"kv_cache_memory": 2**30, "block_size": 64}), folder)
    assert (found.old, found.new, found.rebuild, found.refused) == ("now", "next", True, None)
    assert [(knob.path, knob.old, knob.new, knob.when, knob.unit) for knob in found.knobs] == [
        ("engine.block_size", "32", "64", "rebuild", "tokens"),
        ("engine.kv_cache_memory", str(2**29), str(2**30), "rebuild", "bytes"),
    ]
    plans = lines(found)
    assert (plans["page size"].old, plans["page size"].new) == (32 * 23040, 64 * 23040)
    assert (plans["KV pages"].old, plans["KV pages"].new) == (727, 727)
    assert plans["concurrent sequences at context"].new == 727 / 128
    assert plans["activations"].estimated
    assert not plans["KV cache"].estimated


def test_a_live_change_leaves_the_memory_as_it_was_built(folder: Path) -> None:
    live = profile("next", engine={"kv_cache_memory": 2**29, "block_size": 32}, scheduler={"token_budget": 8000})
    found = change(live, folder)
    assert not found.rebuild
    assert [line.old for line in found.plan] == [line.new for line in found.plan]


def test_what_can_not_fit_is_refused(folder: Path) -> None:
    found = change(profile("next", engine={"kv_cache_memory": 2**27}), folder)
    assert "engine.max_model_len = " in (found.refused or "")
    nothing = change(profile("next", engine={"kv_cache_memory": 2**20}), folder)
    assert "raise engine.kv_cache_memory" in (nothing.refused or "")


def test_another_model_is_a_rebuild_with_its_own_plan(folder: Path, tmp_path: Path) -> None:
    same = profile("now", engine={"kv_cache_memory": 2**29, "block_size": 32})
    found = change(same, folder, model(tmp_path / "half", 15))
    assert (found.knobs, found.rebuild) == ((), True)
    assert lines(found)["page size"].new == (lines(found)["page size"].old or 0) / 2
    assert not change(same, folder, folder).rebuild


def test_a_new_model_that_can_not_be_read_is_refused_and_one_on_a_hub_is_unknown(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    same = profile("now", engine={"kv_cache_memory": 2**29, "block_size": 32})
    assert "config.json" in (change(same, folder, tmp_path / "empty").refused or "")
    hub = change(same, folder, Path("owner/name"))
    assert hub.refused is None
    assert lines(hub)["KV pages"].new is None


def test_a_running_model_without_files_here_has_no_plan_and_no_refusal() -> None:
    found = change(profile("next"), Path("owner/name"))
    assert (found.plan, found.refused, found.rebuild) == ((), None, True)


@pytest.fixture
def served() -> Profile:
    """The profile of the shared host, with the values its command line goes first with."""
    tiny = ProfileStore(Path("/nowhere")).load("cpu-tiny")
    return tiny.model_copy(
        update={"engine": tiny.engine.model_copy(update={"dtype": "float32", "max_model_len": 2048})}
    )


@pytest.mark.engine
async def test_the_plan_is_the_engines_own_account_within_two_percent(live_host: LiveHost, served: Profile) -> None:
    planned = plan(ModelShape.read(small_model("float32")), served, local_device()[1], "cpu")
    client = HostClient(str(live_host.socket))
    try:
        kv = (await client.snapshot()).kv
        log = (await client.log(0, 5_000)).records
    finally:
        await client.close()
    assert kv is not None
    assert kv.page_bytes == planned.page_bytes
    assert kv.page_tokens == planned.block_size
    assert planned.pages == pytest.approx(kv.pages, rel=0.02)
    assert planned.kv_bytes == pytest.approx(kv.pages * kv.page_bytes, rel=0.02)

    said = [match for record in log if (match := re.search(r"KV cache size: ([\d,]+) tok.*: ([\d.]+)x", record.text))]
    assert planned.tokens == pytest.approx(int(said[0][1].replace(",", "")), rel=0.02)
    assert planned.concurrency == pytest.approx(float(said[0][2]), rel=0.02)


@pytest.mark.engine
@pytest.mark.parametrize(("kv_cache_dtype", "dtype"), [("fp8", "uint8"), ("auto", "bfloat16"), ("float16", "float16")])
def test_a_page_is_as_large_as_vllms_own_specification_says(folder: Path, kv_cache_dtype: str, dtype: str) -> None:
    import torch
    from vllm.v1.kv_cache_interface import FullAttentionSpec

    spec = FullAttentionSpec(block_size=32, num_kv_heads=3, head_size=64, dtype=getattr(torch, dtype))
    asked = profile(engine={"kv_cache_dtype": kv_cache_dtype, "block_size": 32})
    assert plan(ModelShape.read(folder), asked, None, "cuda").page_bytes == 30 * spec.page_size_bytes


def test_the_ceilings_of_live_knobs_are_those_of_the_engine_that_runs(folder: Path) -> None:
    built = profile("now", engine={"kv_cache_memory": 2**29, "block_size": 32}, scheduler={"token_budget": 512})
    live = change(profile(engine={"kv_cache_memory": 2**29, "block_size": 32}), folder, built=built)
    rebuilt = change(profile(engine={"kv_cache_memory": 2**28, "block_size": 32}), folder, built=built)
    assert lines(rebuilt)["token budget, ceiling"].old == 1024
    assert lines(rebuilt)["token budget, ceiling"].new == 8192
    assert not live.rebuild
    assert lines(live)["token budget, ceiling"].new == 1024
