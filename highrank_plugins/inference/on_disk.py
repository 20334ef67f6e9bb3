"""Write a collection as `.npy` files that may be larger than the memory, and resume it."""

import json
import os
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from highrank_plugins.common.files import read_json
from highrank_plugins.common.names import layer_name
from highrank_plugins.inference.collector import Collector
from highrank_plugins.inference.saved_progress import SavedProgress
from highrank_plugins.inference.streaming_model import digest_of_file

QUANTITIES = ("log_probs", "logits", "features", "targets")
DESCRIPTION = "collection.json"
Arrays = dict[str, np.memmap]


def write_collection(
    collector: Collector, folder: Path, what: Sequence[str], save_seconds: float = 60
) -> dict[str, Any]:
    """Write quantities of all tokens into `folder`; an interrupted collection is resumed.

    `log_probs.npy` and `logits.npy` [N, M], `features.npy` [N, F] in the precision of the
    collector; `targets.npy` int64 [N]; rows in the order of the text. `collection.json` describes
    them. Each process writes its rows into the same files. The folder's name ends with `.part`
    until it is complete.

    Args:
        what: of `QUANTITIES`.
        save_seconds: seconds between two saves of this process's progress.
    Returns:
        the description.
    """
    shapes = _shapes(collector, what)
    identity = _identity(collector, what)
    description = identity | {"rows": collector.total, "classes": collector.head.num_classes}
    if _is_finished(folder, description):
        return description
    processes, part = collector.processes, folder.with_name(f"{folder.name}.part")
    _check_begun(part, shapes, processes.count)
    path = part / f"progress-{processes.rank}-of-{processes.count}.pt"
    saved = SavedProgress(path, identity, save_seconds, "--output")
    processes.wait()  # all processes have read the folder
    if processes.rank == 0 and not list(part.glob("progress-*.pt")):
        part.mkdir(parents=True, exist_ok=True)
        for name, (shape, dtype) in shapes.items():
            np.lib.format.open_memmap(part / f"{name}.npy", "w+", dtype=dtype, shape=shape)
    processes.wait()
    arrays = {name: np.lib.format.open_memmap(part / f"{name}.npy", "r+") for name in shapes}
    _fill(collector, arrays, saved)
    processes.wait()
    if processes.rank == 0:
        text = json.dumps(description, indent=2, ensure_ascii=False)
        (part / DESCRIPTION).write_text(f"{text}\n", encoding="utf-8")
        os.replace(part, folder)
        for done in folder.glob("progress-*.pt"):
            done.unlink()
    processes.wait()
    return description


def _fill(collector: Collector, arrays: Arrays, saved: SavedProgress) -> None:
    start = saved.progress.get("batch", collector.share.start)
    last = saved.progress.get("state")
    for block, state in collector.steps(start, last, "collect"):
        start += 1
        for name, array in arrays.items():
            rows = slice(block.first, block.first + len(block.target))
            value = block.target if name == "targets" else getattr(block, name)
            array[rows] = value.cpu().numpy()
        if start == collector.share.stop or saved.is_due():
            for array in arrays.values():
                array.flush()  # write the numbers before the marker that says so
            saved.progress = {"batch": start, "state": state}
            saved.save()


def _shapes(collector: Collector, what: Sequence[str]) -> dict[str, tuple[tuple[int, ...], str]]:
    """Return shape and dtype of each quantity."""
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
    dtype = str(collector.dtype).removeprefix("torch.")
    kinds = {"features": ((rows, head.feature_dim), dtype), "targets": ((rows,), "int64")}
    return {name: kinds.get(name, ((rows, head.num_classes), dtype)) for name in what}


def _identity(collector: Collector, what: Sequence[str]) -> dict[str, Any]:
    """Return the values that distinguish this collection from any other."""
    return {
        "checkpoint": digest_of_file(collector.loaded.path),
        "split": collector.split,
        "text": collector.text.digest,
        "tokens": collector.total,
        "dtype": str(collector.dtype).removeprefix("torch."),
        "what": list(what),
        "processes": collector.processes.count,
    }


def _is_finished(folder: Path, description: dict[str, Any]) -> bool:
    """Whether this collection is complete already; refuse a folder that holds something else."""
    if not folder.exists() or not any(folder.iterdir()):
        return False
    if not (folder / DESCRIPTION).exists():
        raise ValueError(f"--output {folder} exists and is not a collection; name another folder")
    found = read_json(folder / DESCRIPTION)
    if not isinstance(found, dict):
        raise ValueError(f"--output {folder} holds a damaged {DESCRIPTION}; delete the folder")
    # a complete collection does not depend on who wrote which part
    different = [n for n in description if n != "processes" and found.get(n) != description[n]]
    if different:
        raise ValueError(
            f"--output {folder} holds another collection ({', '.join(different)} differ); name "
            "another folder, or delete this one"
        )
    return True


def _check_begun(part: Path, names: Iterable[str], count: int) -> None:
    """Refuse to resume a collection that another number of processes began."""
    begun = [path.stem for path in part.glob("progress-*.pt")]
    others = [name for name in begun if not name.endswith(f"-of-{count}")]
    if others:
        raise ValueError(
            f"{part}: {others[0]} was written by {others[0].rpartition('-')[2]} processes; "
            "resume with that number, or delete the folder to start again"
        )
    missing = [name for name in names if not (part / f"{name}.npy").exists()]
    if begun and missing:
        raise ValueError(f"{part}: {missing[0]}.npy is missing; delete the folder to start again")


def read_collection(folder: Path) -> dict[str, np.ndarray]:
    """Return the arrays of a finished collection by name, as memory maps."""
    if not (folder / DESCRIPTION).exists():
        raise ValueError(
            f"{folder} holds no finished collection; run the same `highrank analyse collect` "
            "again to resume it"
        )
    description = read_json(folder / DESCRIPTION)
    return {name: np.load(folder / f"{name}.npy", mmap_mode="r") for name in description["what"]}


def rows_of(array: np.ndarray, rows: int = 500) -> Iterator[Tensor]:
    """Yield a memory map as blocks [≤ rows, …] for the functions of `highrank_plugins.analysis`."""
    for start in range(0, len(array), rows):
        yield torch.from_numpy(np.array(array[start : start + rows]))
