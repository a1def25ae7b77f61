"""Saves what is on the screen, as a picture or as data. Call it from a thread: drawing a picture takes a while."""

from __future__ import annotations

import re
import time
from pathlib import Path

import platformdirs

from profiles.files import beside

_FACE = re.compile(r"@font-face\s*\{.*?\}", re.DOTALL)
_FAMILY = re.compile(r"font-family:[^;\"]*")
_MONOSPACE = "DejaVu Sans Mono"
_FONTS = ("DejaVuSansMono.ttf", "DejaVuSansMono-Bold.ttf", "DejaVuSans.ttf")
"""Come with matplotlib; the last has the braille patterns that the monospaced ones lack."""


def saved_dir() -> Path:
    """Where views and exported data are put."""
    return platformdirs.user_data_path("llmconsole") / "saved"


def save_text(what: str, extension: str, text: str) -> Path:
    """Write text of the screen `what` into a new file, and return where. Raises OSError."""
    return _write(_stem(what).with_suffix(f".{extension}"), text.encode())


def save_view(what: str, svg: str) -> tuple[Path, Path]:
    """Write a picture of the screen `what` as SVG and as PNG. Raises OSError, or ValueError where it can't be drawn."""
    stem = _stem(what)
    return _write(stem.with_suffix(".svg"), svg.encode()), _write(stem.with_suffix(".png"), png(svg))


def png(svg: str) -> bytes:
    """A screenshot's SVG drawn as PNG, at its own size.

    It names a web font, which can't be loaded here, and text in a font that isn't there isn't drawn at all: a font of
    our own takes its place, the same on every machine. What that lacks (East Asian scripts) is an empty box; the SVG
    has it.
    """
    import matplotlib
    import resvg_py

    fonts = Path(matplotlib.get_data_path()) / "fonts" / "ttf"
    return bytes(
        resvg_py.svg_to_bytes(
            svg_string=_FAMILY.sub(f"font-family: {_MONOSPACE}", _FACE.sub("", svg)),
            font_files=[str(fonts / name) for name in _FONTS],
            font_family=_MONOSPACE,
            monospace_family=_MONOSPACE,
            skip_system_fonts=True,
        )
    )


def _stem(what: str) -> Path:
    return saved_dir() / f"llmconsole-{what}-{time.strftime('%Y%m%d-%H%M%S')}"


def _write(path: Path, content: bytes) -> Path:
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with beside(path) as new:
        new.write_bytes(content)
    return path
