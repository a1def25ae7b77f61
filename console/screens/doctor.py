"""The Doctor screen."""

from console.screens.base import HostScreen


class DoctorScreen(HostScreen):
    """Nothing yet."""
