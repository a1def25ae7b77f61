"""What the start of an engine relies on in vLLM."""

import importlib.util
from pathlib import Path

from engine_host.engine.process import MP_CONTEXT_USERS


def test_every_module_that_holds_vllms_choice_of_process_start_is_known() -> None:
    """A module that imported the function by name and isn't listed would spawn, and take twice as long."""
    spec = importlib.util.find_spec("vllm")
    assert spec is not None
    assert spec.submodule_search_locations
    root = Path(spec.submodule_search_locations[0])
    holders = {
        ".".join(("vllm", *path.relative_to(root).with_suffix("").parts))
        for path in root.rglob("*.py")
        if "get_mp_context" in path.read_text(encoding="utf-8")
    }
    assert holders == set(MP_CONTEXT_USERS)
