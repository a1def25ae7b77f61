"""Importing vLLM without the garbage collector: it makes some million objects, all there to stay."""

import gc
import importlib
import sys


def import_ahead(*names: str) -> None:
    """Import modules, and take what they made out of the collector's sight.

    The collector would walk through all of it again and again while it grows: a quarter of the time an import of vLLM
    takes. Raises what the import raises; what is imported already costs nothing.
    """
    if all(name in sys.modules for name in names):
        return
    gc.disable()
    try:
        for name in names:
            importlib.import_module(name)
    finally:
        gc.freeze()
        gc.enable()
