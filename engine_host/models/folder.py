"""Checks a Hugging Face folder: the files vLLM will want are there and whole. Imports no torch."""

import json
from pathlib import Path

from engine_host.models.errors import ModelImportError

_INDEXES = ("model.safetensors.index.json", "pytorch_model.bin.index.json")


def check_folder(path: Path) -> None:
    """Raise `ModelImportError` unless `path` has a config and complete weights."""
    if not (path / "config.json").is_file():
        raise ModelImportError(f"{path} is not a model folder: it has no config.json.")
    try:
        weights = _weight_files(path)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise ModelImportError(f"The weights index in {path} can't be read. Download the model again.") from error
    if not weights:
        raise ModelImportError(f"{path} has no weights: no .safetensors and no .bin file.")
    for file in weights:
        if not file.is_file():
            raise ModelImportError(f"{path} is incomplete: {file.name} is missing. Download the model again.")
        if file.suffix == ".safetensors" and not _safetensors_whole(file):
            raise ModelImportError(f"{file} is damaged or cut short. Download it again.")


def _weight_files(path: Path) -> list[Path]:
    for index in _INDEXES:
        if (path / index).is_file():
            listed = json.loads((path / index).read_text())["weight_map"].values()
            return [path / name for name in sorted(set(listed))]
    return sorted(path.glob("*.safetensors")) or sorted(path.glob("pytorch_model*.bin"))


def _safetensors_whole(file: Path) -> bool:
    """Whether the file is as long as its header (8 bytes of length, then JSON with each tensor's end) says."""
    size = file.stat().st_size
    try:
        with file.open("rb") as stream:
            header = int.from_bytes(stream.read(8), "little")
            if header > size:
                return False
            tensors = json.loads(stream.read(header))
        ends = [entry["data_offsets"][1] for name, entry in tensors.items() if name != "__metadata__"]
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError):
        return False
    return size == 8 + header + max(ends, default=0)
