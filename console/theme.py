"""The console's own themes, and which theme suits a terminal."""

from textual.theme import Theme

DARK = Theme(
    name="llmconsole-dark",
    dark=True,
    # All of xterm's 256 colours, so that a terminal without true colour shows the same.
    primary="#5fafff",
    secondary="#00af87",
    accent="#ffaf00",
    warning="#ffaf00",
    error="#ff875f",
    success="#5fafff",
    foreground="#d0d0d0",
    background="#121212",
    surface="#1c1c1c",
    panel="#262626",
    variables={"border-blurred": "#3a3a3a", "footer-key-foreground": "#5fafff", "block-cursor-text-style": "none"},
)

LIGHT = Theme(
    name="llmconsole-light",
    dark=False,
    primary="#005faf",
    secondary="#00875f",
    accent="#af5f00",
    warning="#af5f00",
    error="#af0000",
    success="#005faf",
    foreground="#303030",
    background="#eeeeee",
    surface="#e4e4e4",
    panel="#d7d7d7",
    variables={"border-blurred": "#bcbcbc", "footer-key-foreground": "#005faf", "block-cursor-text-style": "none"},
)

THEMES = (DARK, LIGHT)
SIXTEEN_COLOURS = "ansi-dark"


def suitable_theme(color_system: str | None) -> str:
    """The theme for a terminal of rich's colour system: ours, or the terminal's own sixteen colours."""
    return SIXTEEN_COLOURS if color_system in ("standard", "windows") else DARK.name
