"""Checks a GGUF file before anything is loaded from it.

Reads the header by the GGUF specification, versions 2 and 3, little-endian, and trusts no count or length in it: a
damaged file ends in a sentence, not in a long loop or a huge allocation.
"""

import math
import mmap
import struct
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from engine_host.models.errors import ModelImportError

_MAGIC = b"GGUF"
_VERSIONS = (2, 3)
# struct codes of the value types of the specification, by number; 8 is a string, 9 an array.
_SCALARS = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "?", 10: "Q", 11: "q", 12: "d"}
_STRING, _ARRAY = 8, 9
_MAX_DIMENSIONS = 8


@dataclass(frozen=True)
class GgufHeader:
    """What the header says: the architecture as GGUF names it, and `split_count` files the model is spread over."""

    architecture: str
    split_count: int
    tensors: int


def check_gguf(path: Path) -> GgufHeader:
    """Read the header and check that the file holds every tensor it lists. Raises `ModelImportError`."""
    size = path.stat().st_size
    if size < 24:
        raise ModelImportError(f"{path} is not a GGUF file: it has only {size} bytes.")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[:4] != _MAGIC:
            raise ModelImportError(f"{path} is not a GGUF file: it doesn't begin with the letters GGUF.")
        version = int.from_bytes(data[4:8], "little")
        if version not in _VERSIONS:
            raise ModelImportError(f"{path} is GGUF version {version}; versions 2 and 3 can be imported.")
        try:
            return _Header(data, path).read()
        except (struct.error, UnicodeDecodeError, KeyError, OverflowError, RecursionError) as error:
            raise ModelImportError(f"{path} is damaged or cut short: its header can't be read to the end.") from error


class _Header:
    """A cursor over the header."""

    def __init__(self, data: mmap.mmap, path: Path) -> None:
        self.data, self.path, self.at = data, path, 8

    def read(self) -> GgufHeader:
        tensors, keys = self.scalar("Q"), self.scalar("Q")
        values = {self.string(): self.value(self.scalar("I")) for _ in range(keys)}
        ends = [self.tensor_end() for _ in range(tensors)]
        alignment = values.get("general.alignment", 32)
        architecture = values.get("general.architecture")
        if not ends or not isinstance(architecture, str) or not isinstance(alignment, int) or alignment < 1:
            raise ModelImportError(f"{self.path} holds no model: no tensors or no architecture in its header.")
        needed = math.ceil(self.at / alignment) * alignment + max(ends)
        if needed > len(self.data):
            raise ModelImportError(
                f"{self.path} is cut short: {needed:,} bytes are needed and {len(self.data):,} are there. "
                "Download it again."
            )
        return GgufHeader(architecture, int(values.get("split.count") or 1), tensors)

    def scalar(self, code: str) -> Any:
        (value,) = struct.unpack_from(f"<{code}", self.data, self.at)
        self.at += struct.calcsize(f"<{code}")
        return value

    def string(self) -> str:
        length = self.scalar("Q")
        raw = self.data[self.at : self.at + length]
        self.skip(length)
        return raw.decode()

    def value(self, kind: int) -> Any:
        """A metadata value; arrays are skipped and come back as `None`."""
        if kind == _STRING:
            return self.string()
        if kind != _ARRAY:
            return self.scalar(_SCALARS[kind])
        inner, count = self.scalar("I"), self.scalar("Q")
        if inner in _SCALARS:
            self.skip(count * struct.calcsize(_SCALARS[inner]))
        else:
            # Each round moves on or raises at the end of the file, so a wild count ends there.
            for _ in range(count):
                self.value(inner)
        return None

    def tensor_end(self) -> int:
        """Bytes from the start of the data section to the end of the next tensor in the list."""
        from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

        self.string()
        dimensions = self.scalar("I")
        if dimensions > _MAX_DIMENSIONS:
            raise struct.error("too many dimensions")
        elements = math.prod(self.scalar("Q") for _ in range(dimensions))
        kind, offset = self.scalar("I"), self.scalar("Q")
        try:
            block, block_bytes = GGML_QUANT_SIZES[GGMLQuantizationType(kind)]
        except ValueError:
            message = f"{self.path} uses tensor type {kind}, which can't be imported."
            raise ModelImportError(message) from None
        return int(offset + elements // block * block_bytes)

    def skip(self, count: int) -> None:
        if count > len(self.data) - self.at:
            raise struct.error("past the end")
        self.at += count
