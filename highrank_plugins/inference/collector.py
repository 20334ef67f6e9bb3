"""Run a checkpoint along a text, in blocks of tokens that fit in memory, in several processes.

A collection may be kept as `.npy` files that are larger than the memory.
"""

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from itertools import accumulate
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor
from tqdm import tqdm

from highrank_plugins.common.files import read_json, write_json
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.common.names import layer_name
from highrank_plugins.common.user_error import names_full_disk
from highrank_plugins.inference.loading import DTYPES, LoadedModel, load_model, pick_device
from highrank_plugins.inference.streaming_model import (
    TASK,
    SentenceText,
    StreamText,
    Text,
    digest_of_file,
)
from highrank_plugins.measures.base import Block, TextMeasure
from highrank_plugins.own_layers.ours import stored_matrix

QUANTITIES = ("log_probs", "logits", "features", "targets")
DESCRIPTION = "collection.json"
PATIENCE = timedelta(days=7)  # the first process waits until the slowest is done


@dataclass(frozen=True)
class Processes:
    """Describe this process: number `rank` of `count`."""

    rank: int = 0
    count: int = 1

    def share(self, total: int) -> range:
        """Return this process's range within 0 … total − 1; ranges follow the processes' order."""
        return range(total * self.rank // self.count, total * (self.rank + 1) // self.count)

    def gather(self, value: Any) -> list[Any] | None:
        """Return the values of all processes, in order, in the first one; None in the others."""
        if self.count == 1:
            return [value]
        values = [None] * self.count if self.rank == 0 else None
        dist.gather_object(value, values)
        return values

    def wait(self) -> None:
        """Wait until all processes have called this."""
        if self.count > 1:
            dist.barrier()


@contextmanager
def started() -> Iterator[Processes]:
    """Yield the processes that torchrun started, or this one alone."""
    count = int(os.environ.get("WORLD_SIZE", 1))
    if count == 1:
        yield Processes()
        return
    dist.init_process_group("gloo", timeout=PATIENCE)
    try:
        yield Processes(dist.get_rank(), count)
    finally:
        dist.destroy_process_group()


class Collector:
    """Run a model of any kind over a split; teacher-forced, or with the state carried along.

    Args:
        loaded: a language model or translation model that was read with its data: ours, or a stock
            model with a softmax.
        tokens: number of tokens to take from the start of the split; None: all.
        rows: number of tokens in memory at a time; with sentences, padding included.
        processes: each takes consecutive batches; together they cover the split in order.
    """

    def __init__(
        self,
        loaded: LoadedModel,
        split: str,
        *,
        tokens: int | None = None,
        rows: int = 500,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes()
        self.loaded, self.split, self.head = loaded, split, loaded.head
        self.dictionary = loaded.dictionary
        is_stream = hasattr(loaded.model, "bptt_features") and loaded.config.task._name == TASK
        self.text: Text = (
            StreamText(loaded, split, rows, tokens)
            if is_stream
            else SentenceText(loaded, split, rows)
        )
        whole = sum(self.text.counts)
        self.total = whole if tokens is None else min(tokens, whole)  # N of the whole text
        starts = [0, *accumulate(self.text.counts)]
        self.starts = [start for start in starts if start < self.total] + [self.total]
        batches = len(self.starts) - 1
        if batches < self.processes.count:
            raise ValueError(
                f"{split}: {self.processes.count} processes are too many for {batches} "
                f"{'batch' if batches == 1 else 'batches'} of up to {rows} tokens. Start fewer, "
                "or lower --segment"
            )
        self.share = self.processes.share(batches)  # the batches of this process

    @classmethod
    def open(
        cls,
        checkpoint: Path,
        data: str,
        split: str,
        *,
        dtype: str = "float32",
        device: str | None = None,
        **more: Any,
    ) -> Self:
        """Read a checkpoint and return its collector.

        Args:
            data: directory of fairseq-preprocess with its dictionaries.
            dtype: "float32", or "float64" for a model that computes in float64.
            device: "cpu", "cuda", "cuda:N"; None: a GPU if there is one.
            more: see the class.
        """
        return cls(load_model(checkpoint, data, pick_device(device), DTYPES[dtype]), split, **more)

    @property
    def dtype(self) -> torch.dtype:
        """Return the precision in which the model computes."""
        return stored_matrix(self.head).dtype

    def measure(self, measures: Sequence[TextMeasure]) -> list[Any] | None:
        """Return the results of several measures, from one pass over the text.

        NaN is a FloatingPointError that names the token. Processes but the first get None.
        """
        parts = self.observe(measures)
        if parts is None:
            return None
        return [measure.merge(own) for measure, own in zip(measures, parts, strict=True)]

    def observe(self, measures: Sequence[TextMeasure]) -> list[list[Any]] | None:
        """Show the text to several measures; return the parts of all processes, by measure."""
        for measure in measures:
            measure.start(self.loaded.words, self.dtype)
        for block in self.blocks(", ".join(map(layer_name, measures))):
            for measure in measures:
                measure.observe(block)
        parts = self.processes.gather([measure.part() for measure in measures])
        return None if parts is None else [list(own) for own in zip(*parts, strict=True)]

    def blocks(self, name: str = "collect") -> Iterator[Block]:
        """Yield this process's part of the text, in order, with a progress bar called `name`."""
        state = None
        if isinstance(self.text, StreamText):  # the trunk alone runs up to this part
            for index in range(self.share.start):
                *_, state = self.text.step(index, state)
        bar = tqdm(self.share, name, unit="batch", disable=self.processes.rank > 0, **bar_options())
        for index in bar:
            features, target, state = self.text.step(index, state)
            first, last = self.starts[index : index + 2]
            kept = slice(last - first)
            block = Block(self.head, features[kept], target[kept], first)
            block.refuse_nan(block.features, "features")
            yield block


# -- in files --------------------------------------------------------------------------------------


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
    if folder.exists() and any(folder.iterdir()):
        found = folder / DESCRIPTION
        if not found.exists() or read_json(found) != description:
            raise ValueError(f"{folder} holds something else; name another folder, or delete it")
        return description
    processes, part = collector.processes, folder.with_name(f"{folder.name}.part")
    processes.wait()  # all processes have read the folder
    if processes.rank == 0:
        _make_arrays(part, shapes)
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


def _make_arrays(folder: Path, shapes: dict[str, tuple[tuple[int, ...], str]]) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for earlier in folder.glob("*.npy"):
        earlier.unlink()
    for name, (shape, dtype) in shapes.items():
        path = folder / f"{name}.npy"
        with names_full_disk(folder):
            np.lib.format.open_memmap(path, "w+", dtype=dtype, shape=shape)
            with path.open("r+b") as file:  # a full disk would end who writes into the map: SIGBUS
                os.posix_fallocate(file.fileno(), 0, path.stat().st_size)


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
