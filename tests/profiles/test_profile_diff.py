"""What a change of profile does: which knobs differ, and whether the engine must be built anew."""

import pytest

from profiles.diff import KnobDiff, diff, value_text
from profiles.schema import Profile, knobs


def profile(**sections: object) -> Profile:
    return Profile.model_validate({"name": "test", **sections})


def changed(running: Profile, new: Profile, built: Profile | None = None) -> dict[str, KnobDiff]:
    return {".".join(knob.path): knob for knob in diff(running, new, built).knobs}


def test_a_profile_does_not_differ_from_itself_by_another_name() -> None:
    other = profile(description="as before").model_copy(update={"name": "other"})
    assert diff(profile(), other).knobs == ()
    assert not diff(profile(), other).rebuild


def test_knobs_come_in_the_order_of_the_schema_with_both_values() -> None:
    new = profile(targets={"ttl_ms": 50.0}, engine={"block_size": 32}, scheduler={"policy": "fcfs"})
    found = diff(profile(), new)
    assert [(knob.path[-1], knob.old, knob.new, knob.when, knob.unit) for knob in found.knobs] == [
        ("block_size", None, 32, "rebuild", "tokens"),
        ("policy", "priority", "fcfs", "live", None),
        ("ttl_ms", None, 50.0, "live", "ms"),
    ]
    assert found.rebuild


LIVE: dict[str, dict[str, object]] = {
    "scheduler": {
        "token_budget": 8192,
        "max_active": 512,
        "long_prefill_threshold": 7,
        "policy": "fcfs",
        "watermark": 0.1,
    },
    "flight": {"snapshot_hz": 1.0},
    "cost": {"usd_per_hour": 2.0},
    "targets": {"ttft_ms": 9.0, "ttl_ms": 9.0},
}


@pytest.mark.parametrize("section", LIVE)
def test_what_the_schema_calls_live_needs_no_rebuild_up_to_the_ceiling(section: str) -> None:
    found = diff(profile(), profile(**{section: LIVE[section]}))
    assert len(found.knobs) == len(LIVE[section])
    assert not found.rebuild


def test_chunked_prefill_is_switched_off_live() -> None:
    short = {"max_model_len": 2048}
    assert not diff(profile(engine=short), profile(engine=short, scheduler={"chunked_prefill": False})).rebuild


@pytest.mark.parametrize(("knob", "value", "ceiling"), [("token_budget", 8193, 8192), ("max_active", 513, 512)])
def test_a_live_knob_above_the_allocated_ceiling_needs_a_rebuild_and_says_why(
    knob: str, value: int, ceiling: int
) -> None:
    [found] = diff(profile(), profile(scheduler={knob: value})).knobs
    assert found.when == "rebuild"
    assert found.why is not None
    assert str(ceiling) in found.why


def test_the_ceilings_are_those_of_the_profile_the_engine_was_built_with() -> None:
    built = profile(scheduler={"token_budget": 1024})
    lowered = profile(scheduler={"token_budget": 512})
    assert not diff(lowered, profile(scheduler={"token_budget": 2048}), built).rebuild
    assert diff(lowered, profile(scheduler={"token_budget": 2049}), built).rebuild


def test_live_knobs_compare_with_what_runs_and_rebuild_knobs_with_what_was_built() -> None:
    built = profile(engine={"block_size": 16})
    running = profile(engine={"block_size": 32}, scheduler={"watermark": 0.5})
    found = changed(running, profile(engine={"block_size": 32}), built)
    assert (found["engine.block_size"].old, found["engine.block_size"].new) == (16, 32)
    assert (found["scheduler.watermark"].old, found["scheduler.watermark"].new) == (0.5, 0.0)
    assert diff(running, built, built).knobs == (found["scheduler.watermark"],)


def test_headroom_alone_is_no_reason_for_a_rebuild() -> None:
    new = profile(headroom={"token_budget": 1.0}, scheduler={"token_budget": 5000})
    found = changed(profile(), new)
    assert not diff(profile(), new).rebuild
    assert found["headroom.token_budget"].when == "live"
    assert found["headroom.token_budget"].why == "the ceiling allocated at start stays: 8192"
    assert found["scheduler.token_budget"].why is None


@pytest.mark.parametrize(
    "also", [{"engine": {"block_size": 32}}, {"scheduler": {"token_budget": 9000}}], ids=["engine", "ceiling"]
)
def test_headroom_is_part_of_a_rebuild_that_happens_anyway(also: dict[str, object]) -> None:
    found = changed(profile(), profile(headroom={"max_active": 3.0}, **also))
    assert (found["headroom.max_active"].when, found["headroom.max_active"].why) == ("rebuild", None)


def test_switching_speculation_on_shows_every_knob_of_it() -> None:
    found = changed(profile(), profile(engine={"speculative": {"method": "ngram"}}))
    assert {path: knob.old for path, knob in found.items()} == {
        "engine.speculative.method": None,
        "engine.speculative.num_speculative_tokens": None,
        "engine.speculative.prompt_lookup_min": None,
        "engine.speculative.prompt_lookup_max": None,
    }


def test_every_knob_that_needs_a_rebuild_is_one_of_engine_or_headroom() -> None:
    # The diff treats headroom apart from other rebuild knobs, by the name of its section.
    assert {knob.path[0] for knob in knobs() if knob.when == "rebuild"} == {"engine", "headroom"}


def test_values_read_as_in_a_profile() -> None:
    assert [value_text(value) for value in (None, True, 0.5, 3, "priority")] == ["–", "true", "0.5", "3", "priority"]
