"""docs/profiles.md tells every key as the schema has it, and what the built-in tiers are."""

from pathlib import Path

from profiles.gateway import BUILT_IN_TIERS, Tier
from profiles.schema import Knob, knobs

DOCS = Path(__file__).parents[2] / "docs" / "profiles.md"


def row(knob: Knob) -> str:
    default = "–" if knob.default is None else str(knob.default).lower()
    return f"| `{'.'.join(knob.path)}` | {default} | {knob.unit or ''} | {knob.when} | {knob.description} |"


def test_the_table_of_keys_is_the_schema() -> None:
    written = [line for line in DOCS.read_text().splitlines() if line.startswith("| `") and "." in line.split("`")[1]]
    assert written == [row(knob) for knob in knobs()]


def test_the_table_of_tiers_is_where_the_built_in_ones_differ() -> None:
    tiers = [Tier(**values) for values in BUILT_IN_TIERS.values()]
    differ = [key for key in Tier.model_fields if len({str(getattr(tier, key)) for tier in tiers}) > 1]
    rows = [f"| `{key}` | {' | '.join(str(getattr(tier, key)).lower() for tier in tiers)} |" for key in differ]
    header = f"| key | {' | '.join(f'`{name}`' for name in BUILT_IN_TIERS)} |"
    lines = DOCS.read_text().splitlines()
    begin = lines.index(header) + 2
    assert lines[begin : lines.index("", begin)] == rows
