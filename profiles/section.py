"""What every section of a profile is made of: strict, immutable, each key with its unit and when it takes effect."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ByteSize, ConfigDict, Field, TypeAdapter

When = Literal["live", "rebuild"]

# Far above any context or batch; keeps a slip of the finger from reaching the engine's 32-bit sizes.
MAX_TOKENS = 2**26


def knob(default: Any, when: When, unit: str | None, description: str, **bounds: Any) -> Any:
    """A pydantic field that also carries `when` and `unit`."""
    return Field(default, description=description, json_schema_extra={"when": when, "unit": unit}, **bounds)


_BYTE_SIZE = TypeAdapter(ByteSize)


def _bytes_from_text(value: object) -> object:
    """Sizes are written as a number of bytes or as text with a unit ("512MiB"); pydantic's `ByteSize` reads both."""
    if isinstance(value, str):
        return int(_BYTE_SIZE.validate_python(value))
    return value


Bytes = Annotated[int, BeforeValidator(_bytes_from_text)]


class Section(BaseModel):
    """Base of all sections: immutable, strictly typed, and a key it doesn't know is an error."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True, allow_inf_nan=False)
