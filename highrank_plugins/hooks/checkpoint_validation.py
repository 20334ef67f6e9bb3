"""Damaged checkpoints load with other weights, and fairseq trusts hostile ones.

What breaks: torch checks no checksum, so 988 of 1000 single flipped bits load silently. Truncated
files die with "PytorchStreamReader failed reading zip archive: failed finding central directory".
For a disallowed class, torch advises to switch weights_only off. Omegaconf resolves `${…}` in the
stored configuration (`${oc.env:…}` reads the environment).
Why: `load_checkpoint_to_cpu` hands any file to torch.load, and its `cfg` to omegaconf.
What we do: before fairseq sees the file, refuse files that are not an uncompressed zip with right
checksums, or name a class outside the allow-list (`safe_globals`). Refuse old formats (before torch
1.6), and configurations with anything but plain values, or with embeddings to read from a pipe or a
device. Refuse configurations with more layers or larger sizes than the weights have. The check maps
the file into memory and reads it once, about 0.4 s per gigabyte.
Delete when: never; `--restore-file`, `--finetune-from-model`, generation, evaluation and the hub
interface all load through here.
"""

import argparse
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import torch
from fairseq import checkpoint_utils
from fairseq.file_io import PathManager
from torch.serialization import get_unsafe_globals_in_checkpoint

from highrank_plugins.common.checkpoint_file import check_archive, check_sizes_and_paths
from highrank_plugins.common.patching import replaces
from highrank_plugins.common.user_error import UserError

_PLAIN = (str, int, float, bool, type(None))
_MAX_CONFIG_VALUES = 100_000  # real configurations have about 1,000


@replaces(checkpoint_utils, "load_checkpoint_to_cpu")
def load_checkpoint_to_cpu(
    stock: Callable[..., dict[str, Any]], path: str, *args: Any, **kwargs: Any
) -> dict[str, Any]:
    """Load a checkpoint that `check_checkpoint` accepts."""
    if not PathManager.path_requires_pathmanager(path):
        check_checkpoint(path)
    return stock(path, *args, **kwargs)


def check_checkpoint(path: str) -> None:
    """Read a checkpoint without running anything from it."""
    check_archive(path)
    state = _load_safely(path)
    _check_config(path, state)
    check_sizes_and_paths(path, state)


def _load_safely(path: str) -> dict[str, Any]:
    try:
        forbidden = sorted(get_unsafe_globals_in_checkpoint(path))
        # mmap: the weights are not read
        state = None if forbidden else torch.load(path, "cpu", weights_only=True, mmap=True)
    except (pickle.UnpicklingError, RuntimeError, ValueError) as error:
        reason = str(error).partition("\n")[0]
        raise UserError(f"{path} is refused: not a valid checkpoint ({reason})") from None
    if forbidden:
        raise UserError(
            f"{path} is refused: it names {', '.join(forbidden)}, which could run code when "
            "loaded. Use a checkpoint from a source you trust, saved with plain values only"
        )
    if not isinstance(state, dict):
        raise UserError(f"{path} is not a checkpoint of fairseq: it holds a {type(state).__name__}")
    return state


def _check_config(path: str, state: dict[str, Any]) -> None:
    for count, value in enumerate(_leaves([state.get("cfg"), state.get("args")])):
        if count > _MAX_CONFIG_VALUES:
            raise UserError(
                f"{path} is refused: its configuration is too large, or contains itself"
            )
        if type(value) not in _PLAIN:
            raise UserError(
                f"{path} is refused: its configuration holds a {type(value).__name__}, "
                "but only plain values are safe"
            )
        if isinstance(value, str) and "${" in value:
            raise UserError(
                f"{path} is refused: its configuration holds {value!r}, which omegaconf would "
                "resolve. fairseq stores resolved values: save the checkpoint again with those"
            )


def _leaves(root: Any) -> Iterator[Any]:
    """Yield keys and values at every depth; containers count too, so that cycles end."""
    waiting = [root]
    while waiting:
        value = waiting.pop()
        if isinstance(value, argparse.Namespace):
            value = vars(value)
        if type(value) is dict:
            waiting += [*value.keys(), *value.values()]
            yield None
        elif type(value) in (list, tuple):
            waiting += value
            yield None
        else:
            yield value
