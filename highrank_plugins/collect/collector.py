"""A checkpoint along a text, in blocks of tokens that fit in memory."""

from collections.abc import Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from tqdm import tqdm

from highrank_plugins.heads import Head
from highrank_plugins.heads.draws import ChunkDraws
from highrank_plugins.heads.logit_head import LogitHead

from .loading import DTYPES, build, open_checkpoint, pick_device
from .output_layer import head_of
from .processes import Processes
from .streaming_model import TASK, StreamingModel
from .texts import SentenceText, StreamText, Text


class Block:
    """n tokens of a text; what is asked for is computed, once.

    `features` [n, F] are what the layer reads, `target` [n] the words that are predicted. `first`
    is the number of the first of them in the text.
    """

    def __init__(self, head: Head, features: Tensor, target: Tensor, first: int) -> None:
        self.head, self.features, self.target, self.first = head, features, target, first

    @cached_property
    def log_probs(self) -> Tensor:
        """log P of every class [n, M].

        Raises:
            FloatingPointError: NaN; names the token.
        """
        with torch.no_grad():
            log_probs = self.head.log_probs(self.features)
        self.refuse_nan(log_probs, "log-probabilities")
        return log_probs

    @cached_property
    def logits(self) -> Tensor | None:
        """f(z) [n, M], whose log_softmax `log_probs` is; None where K logit vectors are mixed
        as probabilities.

        Raises:
            FloatingPointError: NaN; names the token.
        """
        if not isinstance(self.head, LogitHead):
            return None
        with torch.no_grad():
            tensors = self.head.tensors()
            z = self.head.chunk_logits(self.features, tensors, ChunkDraws())
            logits = self.head.apply_pointwise(z, tensors)
        self.refuse_nan(logits, "logits")
        return logits

    def refuse_nan(self, values: Tensor, name: str) -> None:
        """Look at numbers [n, …] of this block.

        Raises:
            FloatingPointError: NaN; names the token.
        """
        broken = values.isnan().any(1)
        if broken.any():
            raise FloatingPointError(
                f"token {self.first + int(broken.nonzero()[0])} of the text: {name} are NaN. The "
                "checkpoint has diverged, or overflows; take an earlier one. What was collected "
                "before it is kept"
            )


class Collector:
    """A model of any kind over a split; teacher-forced, or with the state carried along.

    Args:
        checkpoint: a language model or translation model, ours or stock fairseq's, with a softmax.
        data: the directory of fairseq-preprocess with its dictionaries.
        tokens: only the first so many of the split.
        rows: tokens that are held at a time; with sentences, padding included.
        dtype: "float32", or "float64" for a model that computes in float64.
        device: "cpu", "cuda", "cuda:N"; None: a GPU if there is one.
        processes: each has a run of the batches; the whole is theirs in order.
    Raises:
        ValueError: the checkpoint is damaged, has another dictionary, or another output layer;
            the split has no tokens or sentences that are too long.
        OSError: the checkpoint, a dictionary or the split is missing.
    """

    def __init__(
        self,
        checkpoint: Path,
        data: str,
        split: str,
        *,
        tokens: int | None = None,
        rows: int = 500,
        dtype: str = "float32",
        device: str | None = None,
        processes: Processes | None = None,
    ) -> None:
        self.processes = processes or Processes()
        self.split, self.checkpoint, self.dtype = split, checkpoint, dtype
        self.model, self.task, self.text = _open(
            checkpoint, data, split, tokens, rows, dtype, device
        )
        self.head = head_of(self.model, str(checkpoint))
        self.dictionary = self.task.target_dictionary
        whole = sum(self.text.counts)
        self.total = whole if tokens is None else min(tokens, whole)  # N of the whole text
        starts = [0, *accumulate(self.text.counts)]
        self.starts = [start for start in starts if start < self.total] + [self.total]
        batches = len(self.starts) - 1
        if batches < self.processes.count:
            raise ValueError(
                f"{split}: {batches} batches for {self.processes.count} processes; start fewer, or "
                f"take smaller batches than of {rows} tokens"
            )
        self.share = self.processes.share(batches)  # the batches of this process

    @property
    def has_logits(self) -> bool:
        """Whether blocks have `logits`."""
        return isinstance(self.head, LogitHead)

    @property
    def rows(self) -> range:
        """The tokens of the text that this process has."""
        return range(self.starts[self.share.start], self.starts[self.share.stop])

    def blocks(self, name: str = "collect") -> Iterator[Block]:
        """This process's part of the text, in order, with a progress bar called `name`."""
        return (block for block, _ in self.steps(self.share.start, None, name))

    def steps(self, start: int, state: Any, name: str) -> Iterator[tuple[Block, Any]]:
        """From batch number `start` on, each block with the state after it.

        Args:
            state: that after batch `start` − 1; None where another process has had that.
        Raises:
            FloatingPointError: the model's features are NaN; names the token.
        """
        if state is None:
            state = self._state_before(start)
        bar = tqdm(
            range(start, self.share.stop), name, mininterval=1, unit="batch",
            disable=self.processes.rank > 0,
        )  # fmt: skip
        for index in bar:
            features, target, state = self.text.step(index, state)
            first, last = self.starts[index : index + 2]
            kept = slice(last - first)
            block = Block(self.head, features[kept], target[kept], first)
            block.refuse_nan(block.features, "features")
            yield block, state

    def _state_before(self, start: int) -> Any:
        """The state at a later part of a stream: the trunk alone runs through what is before."""
        state = None
        if isinstance(self.text, StreamText):
            for index in range(start):
                state = self.text.step(index, state).state
        return state


def _open(
    path: Path,
    data: str,
    split: str,
    tokens: int | None,
    rows: int,
    dtype: str,
    device: str | None,
) -> tuple[Any, Any, Text]:
    """Model, task and text of a checkpoint."""
    checkpoint, chosen = open_checkpoint(path, data), pick_device(device)
    model, task = build(checkpoint, chosen, DTYPES[dtype])
    if hasattr(model, "bptt_features") and checkpoint.task == TASK:
        stream = StreamingModel(model, task, checkpoint.arch, chosen)
        return model, task, StreamText(stream, stream.segments(split, rows, tokens=tokens))
    return model, task, SentenceText(model, task, split, rows)
