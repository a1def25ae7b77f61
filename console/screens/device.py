"""The Device screen."""

from console.screens.base import HostScreen


class DeviceScreen(HostScreen):
    """Nothing yet."""
