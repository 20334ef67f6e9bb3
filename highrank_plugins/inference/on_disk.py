"""Write a collection as `.npy` files that may be larger than the memory, and read it."""

import os
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.common.names import layer_name
from highrank_plugins.inference.collector import Collector
from highrank_plugins.inference.streaming_model import digest_of_file

QUANTITIES = ("log_probs", "logits", "features", "targets")
DESCRIPTION = "collection.json"


def write_collection(collector: Collector, folder: Path, what: Sequence[str]) -> dict[str, Any]:
    """Write quantities of all tokens into `folder`, and return their description.

    `log_probs.npy` and `logits.npy` [N, M], `features.npy` [N, F] in the precision of the
    collector; `targets.npy` int64 [N]; rows in the order of the text; `what` names some of
    `QUANTITIES`. `collection.json` describes them. Each process writes its rows into the same
    files. The folder's name ends with `.part` until it is complete.
    """
    dtype = str(collector.dtype).removeprefix("torch.")
    shapes = _shapes(collector, what, dtype)
    description = {
        "checkpoint": digest_of_file(collector.loaded.path),
        "split": collector.split,
        "text": collector.text.digest,
        "dtype": dtype,
        "what": list(what),
        "rows": collector.total,
        "classes": collector.head.num_classes,
    }
    if _is_finished(folder, description):
        return description
    processes, part = collector.processes, folder.with_name(f"{folder.name}.part")
    processes.wait()  # all processes have read the folder
    if processes.rank == 0:
        part.mkdir(parents=True, exist_ok=True)
        for earlier in part.glob("*.npy"):
            earlier.unlink()
        for name, (shape, dtype) in shapes.items():
            np.lib.format.open_memmap(part / f"{name}.npy", "w+", dtype=dtype, shape=shape)
    processes.wait()
    arrays = {name: np.lib.format.open_memmap(part / f"{name}.npy", "r+") for name in shapes}
    for block in collector.blocks():
        rows = slice(block.first, block.first + len(block.target))
        for name, array in arrays.items():
            value = block.target if name == "targets" else getattr(block, name)
            array[rows] = value.cpu().numpy()
    for array in arrays.values():
        array.flush()
    processes.wait()
    if processes.rank == 0:
        write_json(part / DESCRIPTION, description)
        os.replace(part, folder)
    processes.wait()
    return description


def _shapes(
    collector: Collector, what: Sequence[str], dtype: str
) -> dict[str, tuple[tuple[int, ...], str]]:
    unknown = [name for name in what if name not in QUANTITIES]
    if unknown or not what:
        raise ValueError(
            f"--what {','.join(what)}: expected some of {','.join(QUANTITIES)}, separated by commas"
        )
    head, rows = collector.head, collector.total
    if "logits" in what and not head.has_logits:
        raise ValueError(
            f"--what logits: {layer_name(head)} mixes the probabilities of several logit "
            "vectors and has no single one; leave logits out"
        )
    kinds = {"features": ((rows, head.feature_dim), dtype), "targets": ((rows,), "int64")}
    return {name: kinds.get(name, ((rows, head.num_classes), dtype)) for name in what}


def _is_finished(folder: Path, description: dict[str, Any]) -> bool:
    """Whether this collection is complete already; refuse a folder that holds something else."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if not (folder / DESCRIPTION).exists():
        raise ValueError(f"{folder} exists and is not a collection; name another folder")
    found = read_json(folder / DESCRIPTION)
    known = found if isinstance(found, dict) else {}
    if different := [name for name in description if known.get(name) != description[name]]:
        raise ValueError(
            f"{folder} holds another collection ({', '.join(different)} differ); name "
            "another folder, or delete this one"
        )
    return True


def read_collection(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a finished collection by name, as memory maps."""
    if not (folder / DESCRIPTION).exists():
        raise ValueError(
            f"{folder} holds no finished collection; run the same `highrank analyse collect` again"
        )
    description = read_json(folder / DESCRIPTION)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in description["what"]}


def rows_of(array: np.ndarray, rows: int = 500) -> Iterator[Tensor]:
    """Yield a memory map as blocks [≤ rows, …] for the functions of `highrank_plugins.analysis`."""
    for start in range(0, len(array), rows):
        yield torch.from_numpy(np.array(array[start : start + rows]))
