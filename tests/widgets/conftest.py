"""What the widgets' tests share."""

from collections.abc import Callable
from typing import Any

import pytest
from textual.app import App


@pytest.fixture
def screen_text() -> Callable[[App[Any]], str]:
    """Reads what stands on an app's screen, a line a row."""

    def read(app: App[Any]) -> str:
        return "\n".join(strip.text.rstrip() for strip in app.screen._compositor.render_strips())

    return read
