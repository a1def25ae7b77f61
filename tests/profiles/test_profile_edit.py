"""Saving values changes those and nothing else: comments, order and everything unknown to us stay."""

import re
from pathlib import Path

import pytest
import tomli
from hypothesis import example, given
from hypothesis import strategies as st

from profiles.edit import save_values, with_values
from profiles.errors import ProfileError
from profiles.store import ProfileStore, check_text

SOURCES = {
    "tables": (
        "# top\ndescription = 'd' # c1\n\n[engine] # c2\n# c3\nblock_size = 32 # c4\ndtype = 'auto'\n\n"
        "[engine.speculative] # c5\nmethod = 'ngram' # c6\n# c7\n[scheduler]\ntoken_budget = 512\n# end\n"
    ),
    "dotted keys": (
        "scheduler.policy = 'fcfs' # c1\n# c2\nengine.block_size = 32 # c3\nengine.speculative.method='ngram'\n"
    ),
    "inline tables": "engine = { block_size = 32, speculative = { method = 'ngram' } } # c1\nscheduler = {} # c2\n",
    "out of order": "[engine]\nblock_size = 16 # c1\n[cost] # c2\n[engine.speculative]\n# c3\nmethod = 'ngram' # c4\n",
    "only a child": "[engine.speculative] # c1\nmethod = 'ngram' # c2\n",
    "no newline at the end": "[scheduler]\npolicy = 'fcfs' # c1",
    "windows line ends": "# c1\r\n[scheduler] # c2\r\npolicy = 'fcfs' # c3\r\ntoken_budget = 600\r\n",
    "nothing": "",
}
VALUES = {
    "engine.block_size": ("16", "64"),
    "engine.max_model_len": ("100",),
    "engine.kv_cache_dtype": ("fp8",),
    "engine.speculative.num_speculative_tokens": ("3",),
    "engine.speculative.method": ("ngram",),
    "scheduler.token_budget": ("300", "4_096"),
    "scheduler.policy": ("priority", '"fcfs"'),
    "scheduler.chunked_prefill": ("true",),
    "headroom.max_active": ("1.5",),
    "cost.usd_per_hour": ("2",),
    "description": ("one # no comment", ""),
}
changes = st.lists(st.sampled_from(sorted(VALUES)), unique=True).flatmap(
    lambda paths: st.fixed_dictionaries({path: st.sampled_from((*VALUES[path], "")) for path in paths})
)


@pytest.fixture
def store(tmp_path: Path) -> ProfileStore:
    return ProfileStore(tmp_path / "profiles")


def flat(text: str) -> dict[str, object]:
    def walk(table: dict[str, object], prefix: str) -> dict[str, object]:
        found: dict[str, object] = {}
        for key, value in table.items():
            found |= walk(value, f"{prefix}{key}.") if isinstance(value, dict) else {f"{prefix}{key}": value}
        return found

    return walk(tomli.loads(text), "")


def parsed(text: str) -> object:
    try:
        return tomli.loads(f"value = {text}")["value"]
    except tomli.TOMLDecodeError:
        return text


@given(st.sampled_from(sorted(SOURCES)), changes)
@example("only a child", {"engine.block_size": "16", "description": "one"})
def test_exactly_the_asked_values_change_and_no_comment_is_lost(case: str, values: dict[str, str]) -> None:
    source = SOURCES[case]
    text = with_values(Path("mine.toml"), source, values)

    wanted = {path: value for path, value in flat(source).items() if path not in values}
    wanted |= {path: parsed(value) for path, value in values.items() if value}
    assert flat(text) == wanted
    comment = re.compile(r"# (?:c\d|top|end)")
    assert comment.findall(text) == comment.findall(source)
    profile, _ = check_text(Path("mine.toml"), text)
    assert profile is not None


@given(st.sampled_from(["balanced", "cpu-tiny"]), changes)
def test_a_builtin_profile_keeps_all_its_comments(base: str, values: dict[str, str]) -> None:
    source = ProfileStore(Path("/nowhere")).file(base).read_text()
    text = with_values(Path("mine.toml"), source, values)
    assert re.findall(r"#.*", text.replace("one # no comment", "")) == re.findall(r"#.*", source)


@given(st.sampled_from(sorted(SOURCES)))
def test_saving_nothing_changes_nothing(case: str) -> None:
    assert with_values(Path("mine.toml"), SOURCES[case], {}) == SOURCES[case]


def test_what_is_saved_is_the_users_own_and_is_read_back(store: ProfileStore) -> None:
    path = save_values(store, "mine", "cpu-tiny", {"engine.kv_cache_memory": "1GiB", "scheduler.max_active": "8"})
    assert path == store.user_dir / "mine.toml"
    profile = store.load("mine")
    assert (profile.engine.kv_cache_memory, profile.scheduler.max_active) == (2**30, 8)
    assert profile.engine.block_size == store.load("cpu-tiny").engine.block_size
    assert list(store.user_dir.iterdir()) == [path]


def test_saving_a_builtin_one_by_its_name_shadows_it_and_saving_again_builds_on_that(store: ProfileStore) -> None:
    save_values(store, "balanced", "balanced", {"scheduler.max_active": "8"})
    save_values(store, "balanced", "balanced", {"scheduler.token_budget": "99"})
    profile = store.load("balanced")
    assert (profile.scheduler.max_active, profile.scheduler.token_budget) == (8, 99)


@pytest.mark.parametrize(
    ("values", "key", "message"),
    [
        ({"scheduler.token_budget": "many"}, "scheduler.token_budget", "not 'many'"),
        ({"scheduler.token_budget": "0"}, "scheduler.token_budget", "1"),
        ({"scheduler.token_bugdet": "3"}, "scheduler.token_bugdet", "unknown key"),
        ({"scheduler": "3"}, "scheduler", "unknown key"),
        ({"scheduler.max_active": "9000"}, None, "must not be above"),
    ],
)
def test_a_wrong_value_is_named_and_nothing_is_written(
    store: ProfileStore, values: dict[str, str], key: str | None, message: str
) -> None:
    before = save_values(store, "mine", "cpu-tiny", {}).read_bytes()
    with pytest.raises(ProfileError) as caught:
        save_values(store, "mine", "mine", values)
    assert caught.value.key == key
    assert message in caught.value.message
    assert (store.user_dir / "mine.toml").read_bytes() == before


@pytest.mark.parametrize("text", ["3\n[cost]", "3 # mine", "'''\n", '"\n'])
def test_a_value_can_not_smuggle_in_more_than_a_value(store: ProfileStore, text: str) -> None:
    with pytest.raises(ProfileError, match=r"scheduler\.max_active"):
        save_values(store, "mine", "cpu-tiny", {"scheduler.max_active": text})


@pytest.mark.parametrize("name", ["", "../mine", "a/b", ".hidden", "a\nb", "x" * 65])
def test_a_name_that_is_no_file_name_is_refused(store: ProfileStore, name: str) -> None:
    with pytest.raises(ProfileError, match="no name for a profile"):
        save_values(store, name, "cpu-tiny", {})
    assert not store.user_dir.exists()


def test_a_value_where_a_section_should_be_is_a_sentence(store: ProfileStore) -> None:
    store.user_dir.mkdir()
    (store.user_dir / "odd.toml").write_text("engine = 3\n")
    with pytest.raises(ProfileError, match="no section"):
        save_values(store, "odd", "odd", {"engine.block_size": "32"})


def test_a_name_inside_the_source_follows_the_file(store: ProfileStore) -> None:
    store.user_dir.mkdir()
    (store.user_dir / "old.toml").write_text('name = "old" # c\n')
    assert save_values(store, "new", "old", {}).read_text() == 'name = "new" # c\n'


def test_a_link_stays_a_link(store: ProfileStore, tmp_path: Path) -> None:
    store.user_dir.mkdir()
    (tmp_path / "kept.toml").write_text("# c\n")
    (store.user_dir / "mine.toml").symlink_to(tmp_path / "kept.toml")
    save_values(store, "mine", "mine", {"cost.usd_per_hour": "3"})
    assert (store.user_dir / "mine.toml").is_symlink()
    assert "usd_per_hour = 3" in (tmp_path / "kept.toml").read_text()


def test_a_folder_that_can_not_be_written_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ProfileError, match="can't be written"):
        save_values(ProfileStore(tmp_path / "file" / "profiles"), "mine", "cpu-tiny", {})
