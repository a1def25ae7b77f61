"""What lies between the running profile and another: each knob that differs, and when its change takes effect."""

from dataclasses import dataclass, replace

from profiles.schema import Knob, Profile, knobs, value_of
from profiles.section import When

# A live knob of the scheduler that has a ceiling is named like the knob of the headroom that sets it.
_LIMITED = (("scheduler", "token_budget"), ("scheduler", "max_active"))


@dataclass(frozen=True)
class KnobDiff:
    """One knob that differs.

    `old` and `new` are the effective values, `None` where there is none; `why` is set where the change takes effect
    at another time than the schema says.
    """

    path: tuple[str, ...]
    old: object
    new: object
    when: When
    unit: str | None
    why: str | None = None


@dataclass(frozen=True)
class ProfileDiff:
    """The knobs that differ, in the order of the schema."""

    knobs: tuple[KnobDiff, ...]

    @property
    def rebuild(self) -> bool:
        """Whether a knob that differs needs the engine built anew."""
        return any(knob.when == "rebuild" for knob in self.knobs)


def diff(running: Profile, new: Profile, built: Profile | None = None) -> ProfileDiff:
    """What applying `new` would change.

    `running` has the live values in force; `built` is the profile the engine was built with (`running` if `None`), so
    the one whose ceilings are allocated and whose rebuild knobs hold. A live knob raised above its ceiling needs a
    rebuild. Headroom says how much is allocated at the next build: alone it is no reason for one.
    """
    built = built if built is not None else running
    found = [_knob_diff(knob, running, new, built) for knob in knobs((*running.tiers, *new.tiers))]
    differing = [knob for knob in found if knob is not None]
    if all(knob.when == "live" or knob.path[0] == "headroom" for knob in differing):
        differing = [_kept(knob, built) if knob.path[0] == "headroom" else knob for knob in differing]
    return ProfileDiff(tuple(differing))


def value_text(value: object) -> str:
    """A knob's value as a person reads it, without its unit."""
    if value is None:
        return "–"
    return str(value).lower() if isinstance(value, bool) else str(value)


def _knob_diff(knob: Knob, running: Profile, new: Profile, built: Profile) -> KnobDiff | None:
    old = value_of(running if knob.when == "live" else built, knob.path)
    wanted = value_of(new, knob.path)
    if old == wanted:
        return None
    if knob.path in _LIMITED:
        ceiling = _ceiling(built, knob.path[-1])
        if isinstance(wanted, int) and wanted > ceiling:
            why = f"above the ceiling of {ceiling} {knob.unit} allocated at start"
            return KnobDiff(knob.path, old, wanted, "rebuild", knob.unit, why)
    return KnobDiff(knob.path, old, wanted, knob.when, knob.unit)


def _kept(knob: KnobDiff, built: Profile) -> KnobDiff:
    why = f"the ceiling allocated at start stays: {_ceiling(built, knob.path[-1])}"
    return replace(knob, when="live", why=why)


def _ceiling(built: Profile, name: str) -> int:
    return built.allocated_tokens if name == "token_budget" else built.allocated_requests
