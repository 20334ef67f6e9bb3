"""Write checkpoints whole, open only safe and undamaged ones, and only with their own words.

Writing. What breaks: an interrupted copy to `checkpoint_best.pt` destroys old and new; after a
failed write fairseq goes on in the same handle and returns as if all were well. Why:
`PathManager.copy` is `shutil.copyfile`, and `_torch_persistent_save` repeats `torch.save(obj, f)`.
What we do: write each attempt into a new file, which is flushed, read back, compared and renamed
(`common/files.py`). Other names are hard links. Delete when: fairseq does the same.

Reading. What breaks: 988 of 1000 single flipped bits load silently; for a forbidden class, torch
advises to switch weights_only off; omegaconf resolves `${…}`; options such as `decoder_layers` are
run as code. Why: `load_checkpoint_to_cpu` hands any file to torch.load, which compares no checksum,
its `cfg` to omegaconf, and 30 modules hand strings of it to Python's eval. What we do: refuse what
is no zip with right checksums (0.4 s per gigabyte), names a class outside of
`compat/safe_globals.py`, or has options that are not plain or hold code. Delete when: never.

Words and options. What breaks: with two words of a dictionary swapped, every command computes with
the wrong embeddings; `-s de -t en` lets a model from English to German translate German;
parameters are loaded into another model whose sizes fit. Why: a checkpoint holds no words, and no
values of unset options. What we do: store hashes of the words, the languages, and
`function_options` of the model, and compare them wherever they are loaded; a file without a hash
gives a warning. Delete when: fairseq stores the dictionary.
"""

import ast
import math
import os
import time
from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from fairseq import checkpoint_utils, models
from fairseq.data import Dictionary
from fairseq.file_io import PathManager
from fairseq.tasks import FairseqTask
from omegaconf import OmegaConf

from highrank_plugins.common.certificate import compare_where_certified
from highrank_plugins.common.checkpoint_file import (
    ReasonsOf,
    check_sizes_and_paths,
    read_checkpoint,
    warn_without_hash,
)
from highrank_plugins.common.files import digest_of_words, link_whole, write_whole
from highrank_plugins.common.heartbeat import listening
from highrank_plugins.common.names import flag
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

LAST = "checkpoint_last.pt"
_ATTEMPTS = 3
_PLAIN = (str, int, float, bool, type(None))
_MAX_CONFIG_VALUES = 100_000  # real configurations have about 1,000
# what eval must not meet in lists such as "[(512, 3)] * 20", and the most copies of a list
_CODE = (ast.Call, ast.JoinedStr, ast.Lambda, ast.comprehension, ast.Pow, ast.LShift)
_MAX_COPIES = 10_000
# last words of options that fairseq never runs, so that names such as runs(2)/best.pt are no code
_PATHS = ("data", "dir", "path", "file", "model", "codes", "teacher", "once", "project", "repo")
_observers: list[Callable[[str, dict[str, Any]], None]] = []


@replaces(checkpoint_utils, "torch_persistent_save")
def save(_stock: Callable, obj: Any, filename: str, async_write: bool = False) -> None:
    """Save all or nothing, in three attempts; paths are local, since remote ones need iopath."""
    for attempt in range(1, _ATTEMPTS + 1):
        try:
            return write_whole(filename, lambda file: torch.save(obj, file))
        except OSError:
            if attempt == _ATTEMPTS:
                raise
            time.sleep(2.5)  # a network disk may be back by then


@replaces(PathManager, "copy")
def copy(_stock: Callable, src_path: str, dst_path: str, overwrite: bool = False) -> Any:
    """Give a file a second name."""
    link_whole(src_path, dst_path)
    return dst_path


def add_function_options(state: dict[str, Any], model: Any) -> None:
    """Add all options that a model's function depends on to those of a checkpoint."""
    options = state["cfg"]["model"]
    if isinstance(options, Namespace):  # of fairseq's older models
        options = vars(options)
    for listener in listening(model):
        options.update(listener.function_options())


def progress_of(path: str) -> tuple[bool, int, float]:
    """Return whether a file has an optimizer's state, its updates and time, or False, -1, 0."""
    try:
        updates = int(read_checkpoint(path, "optimizer_history", -1, "num_updates"))
        has_state = read_checkpoint(path).get("last_optimizer_state") is not None
        return has_state, updates, os.path.getmtime(path)
    except (OSError, TypeError, ValueError):
        return False, -1, 0.0


def is_own(options: Any, path: str) -> bool:
    """Whether a checkpoint lies in --save-dir."""
    return os.path.dirname(os.path.realpath(path)) == os.path.realpath(options.save_dir)


def how_to_resume(options: Any) -> str:
    """Return what to do to resume a run; some options begin each start from somewhere else."""
    starts = ["restore_file"] * (options.restore_file != LAST)
    resets = ("optimizer", "lr_scheduler", "dataloader", "meters")
    starts += [name for kind in resets if getattr(options, name := f"reset_{kind}")]
    without = f" without {' and '.join(map(flag, starts))}" if starts else ""
    return f"run the same command{without} to resume"


@replaces(checkpoint_utils, "load_checkpoint_to_cpu")
def load_checkpoint_to_cpu(stock: Callable, path: str, *args: Any, **kwargs: Any) -> dict[str, Any]:
    """Load a safe, whole checkpoint that whoever asked (`shown_to`) accepts; run nothing in it."""
    state = read_checkpoint(path, whole=True)
    _check_config(path, state)
    check_sizes_and_paths(path, state)
    try:
        state = stock(path, *args, **kwargs)
        state["model"]
    except KeyError as error:  # fairseq upgrades old formats
        raise UserError(f"{path} is not a training checkpoint: it lacks {error}") from None
    warn_without_hash(str(path), state)
    for observe in _observers:
        observe(path, state)
    return state


@contextmanager
def shown_to(observe: Callable[[str, dict[str, Any]], None]) -> Iterator[None]:
    """Call a function with each checkpoint that is read in this block, before it is used."""
    _observers.append(observe)
    try:
        yield
    finally:
        _observers.pop()


def _check_config(path: str, state: dict[str, Any]) -> None:
    waiting: list[tuple[Any, Any]] = [("", state.get("cfg")), ("", state.get("args"))]
    count, refused = 0, f"{path} is refused: its configuration"
    while waiting:
        (name, value), count = waiting.pop(), count + 1
        if count > _MAX_CONFIG_VALUES:
            raise UserError(f"{refused} is too large, or contains itself")
        if isinstance(value, Namespace):
            value = vars(value)
        if type(value) is dict:
            waiting += [*value.items(), *(("", key) for key in value)]
        elif type(value) in (list, tuple):
            waiting += [(name, own) for own in value]
        elif type(value) not in _PLAIN:
            raise UserError(
                f"{refused} holds a {type(value).__name__}, but only plain values are safe"
            )
        elif isinstance(value, str) and "${" in value:
            raise UserError(
                f"{refused} holds {value!r}, which omegaconf would resolve. fairseq stores "
                "resolved values: save the checkpoint again with those"
            )
        elif isinstance(value, str) and not str(name).endswith(_PATHS) and _is_code(value):
            raise UserError(
                f"{refused} has {name} {value[:60]!r}, which fairseq could run as code. Use a "
                "checkpoint from a source you trust"
            )


def _is_code(text: str) -> bool:
    """Whether Python's eval would run functions, or take long, if it was given this text."""
    try:
        nodes = list(ast.walk(ast.parse(text.strip(), mode="eval")))
    except (SyntaxError, ValueError, RecursionError, MemoryError):  # so would eval
        return False
    products = [n for n in nodes if isinstance(n, ast.BinOp) and isinstance(n.op, ast.Mult)]
    sides = [getattr(side, "value", 1) for n in products for side in (n.left, n.right)]
    copies = math.prod(side for side in sides if type(side) is int)
    return copies > _MAX_COPIES or any(isinstance(node, _CODE) for node in nodes)


@replaces(checkpoint_utils, "load_model_ensemble_and_task")
def load_models(stock: Callable, filenames: list[str], *args: Any, **kwargs: Any) -> Any:
    with ReasonsOf(":".join(map(str, filenames))):
        found = stock(filenames, *args, **kwargs)
    for filename, model in zip(filenames, found[0], strict=True):
        for listener in listening(model):  # fairseq-validate does not prepare it for inference
            listener.check_loaded()
        compare_where_certified(Path(filename), model)
    return found


@replaces(models, "build_model")
def build_model(stock: Callable, cfg: Any, task: Any, from_checkpoint: bool = False) -> Any:
    """Build a model; compare one that is built from a checkpoint with the checkpoint's options."""
    options = plain_options(cfg)  # fairseq drops what the model does not know
    arch = options.get("_name") or options.get("arch")
    known = {*models.ARCH_MODEL_REGISTRY, *models.MODEL_REGISTRY}
    if from_checkpoint and arch and arch not in known:
        raise UserError(
            f"the checkpoint's architecture {arch} is unknown here; pass the --user-dir of "
            "its training run, which registers it"
        )
    model = stock(cfg, task, from_checkpoint)
    for listener in listening(model) if from_checkpoint else ():
        listener.check_saved_options(options)
    return model


def plain_options(options: Any) -> dict[str, Any]:
    if OmegaConf.is_config(options):
        options = OmegaConf.to_container(options)
    found = vars(options) if isinstance(options, Namespace) else options
    return found if isinstance(found, dict) else {}


@replaces(FairseqTask, "state_dict")
def state_dict(stock: Callable, task: FairseqTask) -> dict[str, Any]:
    return {**stock(task), "dictionaries": _hashes(task), "languages": _languages(task)}


@replaces(FairseqTask, "load_state_dict")
def load_state_dict(stock: Callable, task: FairseqTask, state: Mapping[str, Any]) -> None:
    check_words(task, state)
    stock(task, state)


def check_words(task: FairseqTask, state: Mapping[str, Any]) -> None:
    """Compare dictionaries and direction of a task with the task state of a checkpoint."""
    languages, ours = state.get("languages"), _languages(task)
    if languages and languages != ours and languages == ours[::-1]:
        pairs = (*ours, *languages)
        raise UserError(
            "-s {} -t {}: the model translates {} to {}; exchange the two".format(*pairs)
        )
    saved = state.get("dictionaries", {})
    for side, digest in _hashes(task).items():
        if saved.get(side, digest) != digest:
            raise UserError(
                f"the {side} dictionary (dict.*txt) is not the dictionary that the checkpoint "
                "was trained with: its words or their order differ, though the sizes may "
                "fit. Give the directory of binarised data of that training run, or binarise "
                "with its dictionaries (--srcdict, --tgtdict)"
            )


def _hashes(task: FairseqTask) -> dict[str, str]:
    found = {}
    # `dicts`: a dictionary per language; options name source and target
    for side in () if hasattr(task, "dicts") else ("target", "source"):
        try:
            dictionary = getattr(task, f"{side}_dictionary", None)
        except NotImplementedError:  # the task has no words
            continue
        if isinstance(dictionary, Dictionary):
            found[side] = digest_of_words(dictionary[index] for index in range(len(dictionary)))
    return found


def _languages(task: FairseqTask) -> list[str]:
    cfg = getattr(task, "cfg", None)
    found = [getattr(cfg, f"{side}_lang", None) for side in ("source", "target")]
    return found if all(found) else []
