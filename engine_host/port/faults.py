"""Whose fault an unexpected error is."""

from collections.abc import Iterator
from types import TracebackType

_PREPARING = ("vllm.renderers.", "vllm.tokenizers.")
"""Modules of vLLM that turn a request into tokens, before the engine is asked."""

_TYPE_ERRORS = (AssertionError, AttributeError, IndexError, KeyError, TypeError)
"""What code raises that looks into a value of another shape than it takes for granted."""

MESSAGE = "The messages or prompt of the request could not be read: a part of them has the wrong shape or is missing."


def is_of_request(error: BaseException) -> bool:
    """Whether vLLM stumbled over the shape of a request while it made the prompt: no server's error, but a 400."""
    return isinstance(error, _TYPE_ERRORS) and any(
        name.startswith(_PREPARING) for name in _modules(error.__traceback__)
    )


def _modules(traceback: TracebackType | None) -> Iterator[str]:
    while traceback is not None:
        yield str(traceback.tb_frame.f_globals.get("__name__", ""))
        traceback = traceback.tb_next
