"""The colours of the console's data: hues for series and requests, a heat ramp, and the states.

Every value is one of xterm's 256 colours, so a terminal without true colour shows the same picture. The hues follow
Okabe and Ito (Color Universal Design, 2008), the ramp follows cividis (Nuñez et al., PLOS ONE 2018); both stay apart
for colour-blind eyes, and neither sets red against green alone.
"""

SERIES: tuple[str, ...] = (
    "#5fafff",  # sky blue
    "#ffaf00",  # orange
    "#00af87",  # bluish green
    "#d787af",  # reddish purple
    "#ffff5f",  # yellow
    "#d75f00",  # vermilion
    "#0087d7",  # blue
    "#d7d7af",  # the eighth hue, black on paper, is a pale one on a dark screen
)
"""Eight hues for series, in the order they are handed out."""

HEAT: tuple[str, ...] = ("#00005f", "#303030", "#4e4e4e", "#5f5f5f", "#87875f", "#afaf5f", "#d7d75f", "#ffff5f")
"""A ramp from cold to hot whose lightness rises evenly."""

GOOD = "#5fafff"
WARN = "#ffaf00"
BAD = "#d75f00"
UNKNOWN = "#808080"

MUTED = "#808080"

FREE_PAGE = "#303030"
CACHED_PAGE = "#5f5f87"
DIM_PAGE = "#6c6c6c"
"""A page in use by a request that has no hue of its own."""
SHARED_PAGE = "#eeeeee"
"""A page in use by several requests."""


def series(index: int) -> str:
    """The hue of series `index`, starting over after the eighth."""
    return SERIES[index % len(SERIES)]


def heat(fraction: float) -> str:
    """The ramp's colour for a fraction of 0 (cold) to 1 (hot); values outside are taken as the nearer end."""
    step = int(min(max(fraction, 0.0), 1.0) * len(HEAT))
    return HEAT[min(step, len(HEAT) - 1)]
