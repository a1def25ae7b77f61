"""docs/profiles.md tells every key as the schema has it."""

from pathlib import Path

from profiles.schema import Knob, knobs

DOCS = Path(__file__).parents[2] / "docs" / "profiles.md"


def row(knob: Knob) -> str:
    default = "–" if knob.default is None else str(knob.default).lower()
    return f"| `{'.'.join(knob.path)}` | {default} | {knob.unit or ''} | {knob.when} | {knob.description} |"


def test_the_table_of_keys_is_the_schema() -> None:
    written = [line for line in DOCS.read_text().splitlines() if line.startswith("| `") and "." in line.split("`")[1]]
    assert written == [row(knob) for knob in knobs()]
