"""The Cost screen."""

from console.screens.base import HostScreen


class CostScreen(HostScreen):
    """Nothing yet."""
