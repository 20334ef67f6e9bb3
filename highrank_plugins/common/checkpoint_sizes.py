"""Refuse the sizes that a stranger's checkpoint claims, before memory is taken for them."""

import os
from typing import Any

from highrank_plugins.common.files import require_regular
from highrank_plugins.common.saved_options import saved_options
from highrank_plugins.common.user_error import UserError

_SIZES = ("dim", "components", "heads", "knots")  # last words of options that size tensors
_SMALL = 4096  # sizes up to here are never refused; defaults of the smallest models reach it


def check_sizes_and_paths(path: str, state: dict[str, Any]) -> None:
    """Refuse weights and options that would take unbounded memory or time.

    These are:

    - sparse weights, and a weight that is larger than the file's data;
    - more layers than weights, and sizes above the number of all parameters;
    - embeddings from a pipe or a device.

    Args:
        path: for messages.
        state: holds "model" with weights by name, and "cfg" with the options of "model".
    """
    import torch

    options = saved_options(state, "model")
    weights = state.get("model")
    named = weights if isinstance(weights, dict) else {}
    tensors = {name: t for name, t in named.items() if isinstance(t, torch.Tensor)}
    for name, tensor in tensors.items():
        if tensor.layout is not torch.strided:
            raise UserError(f"{path} is refused: {name} is a sparse tensor; save it as a dense one")
    stored = sum(tensor.untyped_storage().nbytes() for tensor in tensors.values())
    for name, tensor in tensors.items():
        if tensor.nbytes > stored:  # a view that repeats numbers would grow to this size if copied
            raise UserError(
                f"{path} is refused: {name} declares {tensor.nbytes} bytes, but all weights "
                f"have {stored}. Use a checkpoint from a source you trust"
            )
    limits = {"layers": (len(tensors), f"{len(tensors)} tensors")}
    limits |= dict.fromkeys(_SIZES, (max(stored, _SMALL), f"{stored} bytes"))
    for name, value in options.items() if isinstance(options, dict) else ():
        most, weights_are = limits.get(str(name).rpartition("_")[2], (value, ""))
        if type(value) is int and value > most:
            raise UserError(
                f"{path} is refused: its configuration has {name} {value}, but its weights "
                f"are {weights_are}. Use a checkpoint from a source you trust"
            )
        if str(name).endswith("_path") and isinstance(value, str) and not os.path.isdir(value):
            require_regular(value)
