"""The profile files: what is wrong in one is named by file, line and key, and costs the others nothing."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from profiles.errors import ProfileError
from profiles.store import MAX_BYTES, ProfileStore, default_profile, read_profile


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "good.toml").write_text("[scheduler]\ntoken_budget = 512\n")
    return tmp_path


BROKEN = {
    "typo in a key": (
        b"# mine\n[scheduler]\ntoken_bugdet = 3\n",
        (3, "scheduler.token_bugdet", "unknown key", "token_budget"),
    ),
    "key of another section": (
        b"[engine]\nmax_active = 3\n",
        (2, "engine.max_active", "unknown key", "scheduler.max_active"),
    ),
    "typo in a section": (b"\n[enginee]\nblock_size = 3\n", (2, "enginee", "unknown section", "engine")),
    "typo in an inline table": (
        b"[engine]\ndtype = 'auto'\nspeculative = { metod = 'ngram' }\n",
        (3, "engine.speculative.metod", "unknown key", "method"),
    ),
    "wrong type": (b'[scheduler]\ntoken_budget = "many"\n', (2, "scheduler.token_budget", "not 'many'", None)),
    "a number for a boolean": (b"scheduler.chunked_prefill = 1\n", (1, "scheduler.chunked_prefill", "not 1", None)),
    "wrong choice": (b'[scheduler]\npolicy = "priorty"\n', (2, "scheduler.policy", "'fcfs' or 'priority'", "priority")),
    "size without a unit it knows": (
        b'[engine]\nkv_cache_memory = "12 XiB"\n',
        (2, "engine.kv_cache_memory", "'12 XiB'", None),
    ),
    "out of range": (b"[flight]\nsnapshot_hz = 11\n", (2, "flight.snapshot_hz", "10", None)),
    "infinite": (b"[cost]\nusd_per_hour = inf\n", (2, "cost.usd_per_hour", "finite", None)),
    "syntax error": (b"[scheduler]\ntoken_budget = = 3\n", (2, "token_budget", "not valid TOML", None)),
    "key given twice": (b"[cost]\nusd_per_hour = 1\nusd_per_hour = 2\n", (3, "usd_per_hour", "not valid TOML", None)),
    "not UTF-8": (b"[scheduler]\npolicy = 'f\xff'\n", (2, "policy", "0xff is not UTF-8", None)),
    "10 MB of text": (b"# x\ndescription = '" + b"y" * 10_000_000 + b"'\n", (2, "description", "too long", None)),
    "nested without end": (b"x = " + b"[" * 20_000, (None, None, "not valid TOML", None)),
    "a key shown inside a text": (
        b"description = '''\npolicy = 3\n'''\n[scheduler]\npolicy = 3\n",
        (5, "scheduler.policy", "not 3", None),
    ),
    "two values that contradict": (b"[scheduler]\nmax_active = 5000\n", (None, None, "must not be above", None)),
    "another name than the file's": (b"name = 'other'\n", (1, "name", '"bad"', None)),
}


@pytest.mark.parametrize("case", BROKEN)
def test_a_broken_profile_names_file_line_and_key_and_the_others_load(folder: Path, case: str) -> None:
    content, (line, key, message, suggestion) = BROKEN[case]
    (folder / "bad.toml").write_bytes(content)

    profiles, problems = ProfileStore(folder).list()

    [problem] = problems
    assert (problem.file, problem.line, problem.key) == (folder / "bad.toml", line, key)
    assert message in problem.message
    assert problem.suggestion == suggestion
    assert "good" in [profile.name for profile in profiles]
    assert "bad" not in [profile.name for profile in profiles]


@settings(deadline=None)
@given(st.binary(max_size=300) | st.text(alphabet="[]{}='\"\n\r.# aé1\0", max_size=80).map(str.encode))
def test_no_bytes_are_too_odd_to_be_read_as_a_profile_or_a_problem(
    tmp_path_factory: pytest.TempPathFactory, content: bytes
) -> None:
    path = tmp_path_factory.mktemp("profiles") / "odd.toml"
    path.write_bytes(content)
    profile, problems = read_profile(path)
    assert (profile is None) == bool(problems)
    assert all("odd.toml" in str(problem) for problem in problems)


def test_every_problem_of_a_file_is_found(folder: Path) -> None:
    (folder / "bad.toml").write_text("[scheduler]\nmax_activ = 1\ntoken_budget = 'x'\n[enginee]\n")
    profile, problems = read_profile(folder / "bad.toml")
    assert profile is None
    assert sorted((problem.line or 0) for problem in problems) == [2, 3, 4]


def test_the_sentence_reads_as_a_place_and_what_to_do(folder: Path) -> None:
    (folder / "bad.toml").write_text("[scheduler]\nmax_activ = 1\n")
    with pytest.raises(ProfileError) as caught:
        ProfileStore(folder).load("bad")
    assert str(caught.value) == f"{folder}/bad.toml:2: scheduler.max_activ: unknown key. Did you mean max_active?"


def test_an_unreadable_or_odd_file_is_a_problem_and_no_crash(folder: Path) -> None:
    (folder / "loop.toml").symlink_to(folder / "loop.toml")
    (folder / "folder.toml").mkdir()
    (folder / "empty.toml").write_text("")
    profiles, problems = ProfileStore(folder).list()
    assert "empty" in [profile.name for profile in profiles]
    assert problems == ()
    assert read_profile(folder / "gone.toml")[1][0].message.startswith("can't be read")


def test_a_user_profile_shadows_the_builtin_one(folder: Path) -> None:
    (folder / "balanced.toml").write_text("description = 'mine'\n")
    assert ProfileStore(folder).load("balanced").description == "mine"


def test_an_unknown_name_suggests_the_nearest_and_never_leaves_the_folder(folder: Path) -> None:
    store = ProfileStore(folder / "profiles")
    with pytest.raises(ProfileError) as caught:
        store.load("balancd")
    assert caught.value.suggestion == "balanced"
    with pytest.raises(ProfileError):
        store.load("../good")


def test_a_profile_as_long_as_allowed_loads(folder: Path) -> None:
    text = "description = 'x'\n"
    (folder / "long.toml").write_text(text + "#" * (MAX_BYTES - len(text)))
    assert ProfileStore(folder).load("long").description == "x"


@pytest.mark.parametrize("name", ["balanced", "low-latency", "throughput", "long-context", "cpu-tiny"])
def test_builtin_profiles_load_and_say_what_they_are_for(name: str, tmp_path: Path) -> None:
    assert ProfileStore(tmp_path).load(name).description


def test_the_default_follows_the_device(tmp_path: Path) -> None:
    assert default_profile("cpu") == "cpu-tiny"
    assert default_profile("cuda") == "balanced"
    tiny = ProfileStore(tmp_path).load("cpu-tiny")
    assert tiny.engine.kv_cache_memory == 512 * 2**20
    assert tiny.engine.block_size == 32
