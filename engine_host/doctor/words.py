"""How numbers look in the doctor's sentences."""


def seconds(value: float) -> str:
    """A time with its unit, three digits."""
    if value < 1:
        return f"{value * 1000:.3g} ms"
    return f"{value:.3g} s" if value < 120 else f"{value / 60:.0f} min"


def percent(share: float) -> str:
    """A share of 0 to 1."""
    return f"{share * 100:.3g} %" if share < 0.1 else f"{share * 100:.0f} %"


def count(number: float, noun: str, plural: str = "") -> str:
    """A whole number of things."""
    return f"{number:,.0f} {noun if round(number) == 1 else plural or noun + 's'}"


def round_down(value: float, unit: int) -> int:
    """The multiple of `unit` at or below `value`."""
    return int(value // unit) * unit
