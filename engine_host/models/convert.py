"""The import's child process: `python -m engine_host.models.convert SOURCE TARGET DTYPE`.

Here torch and transformers load, so that the command that waits stays light and its terminal clean. Events go to
standard output as JSON lines: `{"phase", "done", "total"}` while it works, then `{"result": …}` or `{"error": …}`.
Everything else that is printed goes to standard error. Standard input is held open by the parent: when it closes, the
parent is gone, and what was written is removed.
"""

import errno
import functools
import hashlib
import json
import os
import shutil
import sys
import threading
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import Any, TextIO

from engine_host.models.errors import ModelImportError
from engine_host.models.folder import check_folder
from engine_host.models.gguf import check_gguf

Report = Callable[[str, int, int], None]
_CHUNK = 4 * 2**20
_POLL_S = 0.2


def main(arguments: list[str]) -> int:
    """Convert; 0 and a result event, or 1 and an error event."""
    source, target, dtype = Path(arguments[0]), Path(arguments[1]), arguments[2]
    events = os.fdopen(os.dup(1), "w", buffering=1)
    os.dup2(2, 1)
    threading.Thread(target=_die_with_parent, args=(target,), daemon=True).start()
    try:
        result = _convert(source, target, dtype, lambda *step: _emit_progress(events, *step))
    except ModelImportError as error:
        return _fail(events, str(error))
    except MemoryError:
        return _fail(events, f"{source} needs more memory than there is. Close other programs, or import elsewhere.")
    except OSError as error:
        if error.errno == errno.ENOSPC:
            return _fail(events, f"The disk of {target.parent} is full. Make room and import again.")
        raise
    events.write(json.dumps({"result": result}) + "\n")
    return 0


def _fail(events: TextIO, sentence: str) -> int:
    events.write(json.dumps({"error": sentence}) + "\n")
    return 1


def _emit_progress(events: TextIO, phase: str, done: int, total: int) -> None:
    events.write(json.dumps({"phase": phase, "done": done, "total": total}) + "\n")


def _die_with_parent(target: Path) -> None:
    os.read(0, 1)
    shutil.rmtree(target, ignore_errors=True)
    os._exit(1)


def _convert(source: Path, target: Path, dtype: str, report: Report) -> dict[str, Any]:
    if source.is_dir():
        check_folder(source)
        _copy_folder(source, target, report)
        facts: dict[str, Any] = {"sha256": None}
    else:
        header = check_gguf(source)
        if header.split_count > 1:
            raise ModelImportError(f"{source} is one of {header.split_count} parts. Merge them into one file first.")
        facts = {"sha256": _sha256(source, report)}
        _convert_gguf(source, target, dtype, header.architecture, report)
    return facts | _check(source, target, report)


def _sha256(source: Path, report: Report) -> str:
    digest, done, total = hashlib.sha256(), 0, source.stat().st_size
    with source.open("rb") as stream:
        while chunk := stream.read(_CHUNK):
            digest.update(chunk)
            done += len(chunk)
            report("reading", done, total)
    return digest.hexdigest()


def _copy_folder(source: Path, target: Path, report: Report) -> None:
    """Hard links where the file system allows, copies where not; hidden files stay behind."""
    total = sum(path.stat().st_size for path in source.rglob("*") if path.is_file())
    done = 0

    def link_or_copy(name: str, to: str) -> str:
        nonlocal done
        whole = os.path.realpath(name)
        try:
            os.link(whole, to)
        except OSError:
            shutil.copyfile(whole, to)
        done += os.stat(to).st_size
        report("copying", done, total)
        return to

    try:
        shutil.copytree(source, target, copy_function=link_or_copy, ignore=shutil.ignore_patterns(".*"))
    except shutil.Error as error:
        name, _, why = error.args[0][0]
        raise ModelImportError(f"{name} can't be copied: {why}.") from error


def _convert_gguf(source: Path, target: Path, dtype: str, architecture: str, report: Report) -> None:
    report("loading libraries", 0, 0)
    import gguf
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig, modeling_gguf_pytorch_utils
    from transformers.utils import logging

    # transformers parses the file for config, weights and tokenizer each, and builds the name map once a submodule;
    # once in all takes a third of the time.
    gguf.GGUFReader = functools.cache(gguf.GGUFReader)
    gguf.get_tensor_name_map = functools.cache(gguf.get_tensor_name_map)
    # transformers shows its progress in bars only; the one over the tensors doesn't go through its own hook.
    modeling_gguf_pytorch_utils.tqdm = lambda items, **_: _Watched(items, "dequantizing", report)
    logging.set_tqdm_hook(lambda _factory, positional, _: _Watched(positional[0], "loading", report))
    report("reading the header", 0, 0)
    try:
        model = AutoModelForCausalLM.from_pretrained(
            source.parent,
            gguf_file=source.name,
            quantization_config=GgufConfig(dequantize=True),
            dtype=getattr(torch, dtype),
        )
        tokenizer = AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name)
    except (MemoryError, OSError):
        raise
    except Exception as error:  # transformers raises whatever it likes at a file it can't use
        raise ModelImportError(
            f'{source} (architecture "{architecture}") can\'t be imported: {_first_line(error)}'
        ) from error
    logging.set_tqdm_hook(None)
    model = model.to(getattr(torch, dtype))
    total = sum(weight.numel() * weight.element_size() for weight in model.parameters())
    with _SizeWatch(target, total, report):
        model.save_pretrained(target)
        tokenizer.save_pretrained(target)


def _check(source: Path, target: Path, report: Report) -> dict[str, Any]:
    """Load config and tokenizer as vLLM will, and say what was stored."""
    report("checking", 0, 0)
    from transformers import AutoConfig, AutoTokenizer

    check_folder(target)
    try:
        config = AutoConfig.from_pretrained(target)
        tokenizer = AutoTokenizer.from_pretrained(target)
        tokenizer.encode("Hello")
    except Exception as error:  # as above
        raise ModelImportError(f"{source} has no usable config or tokenizer: {_first_line(error)}") from error
    dtype = getattr(config, "dtype", None)
    return {
        "architecture": next(iter(getattr(config, "architectures", None) or ()), None),
        "dtype": str(dtype).removeprefix("torch.") if dtype is not None else None,
        "chat_template": tokenizer.chat_template is not None,
    }


def _first_line(error: Exception) -> str:
    text = str(error).strip() or type(error).__name__
    return text.splitlines()[0][:300]


class _Watched:
    """Stands in for a progress bar of transformers."""

    def __init__(self, items: Iterable[Any], phase: str, report: Report) -> None:
        self.items, self.phase, self.report = items, phase, report

    def __iter__(self) -> Iterator[Any]:
        items = list(self.items)
        for done, item in enumerate(items):
            self.report(self.phase, done, len(items))
            yield item


class _SizeWatch:
    """Reports how much of `total` bytes stands in `target`, while its block runs."""

    def __init__(self, target: Path, total: int, report: Report) -> None:
        self.target, self.total, self.report = target, total, report
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.watch, daemon=True)

    def watch(self) -> None:
        while not self.over.wait(_POLL_S):
            done = sum(path.stat().st_size for path in self.target.glob("*") if path.is_file())
            self.report("writing", min(done, self.total), self.total)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self.thread.join()


if __name__ == "__main__":
    code = main(sys.argv[1:])
    sys.stdout.flush()
    os._exit(code)  # Nothing is left to do, and torch takes its time to unload.
