"""The version of the program that runs."""

from importlib.metadata import PackageNotFoundError, version


def own_version() -> str:
    """As it is installed."""
    try:
        return version("llmconsole")
    except PackageNotFoundError:
        return "not installed"
