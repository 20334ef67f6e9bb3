"""Run a recurrent language model over the texts of a binarised corpus as streams."""

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self

import torch
from fairseq.models import ARCH_MODEL_REGISTRY, MODEL_REGISTRY
from torch import Tensor, nn

from highrank_plugins.common.checksums import checksum
from highrank_plugins.inference.loading import LoadedModel, load_model, pick_device
from highrank_plugins.tasks.carried_state import map_tensors
from highrank_plugins.tasks.streams import Chunk, SplitTokens, Streams, chunk_plan

TASK = "bptt_language_modeling"
FairseqBatch = dict[str, Any]


class Segments(NamedTuple):
    """Cut parallel streams of a split into chunks of equal length."""

    streams: Streams
    chunks: list[Chunk]

    def starting_at(self, first: int) -> Iterator[FairseqBatch]:
        """Yield the batches from chunk number `first` on, see `Streams`."""
        return (self.streams[chunk] for chunk in self.chunks[first:])


class Observed(NamedTuple):
    """Hold the model's output for T tokens of one stream.

    `hidden` [T, F] are the last layer's outputs before dropout, `target` [T] the words after them,
    `log_probs` [T] the logarithms of their probabilities; `state` is the one after them.
    """

    hidden: Tensor
    target: Tensor
    log_probs: Tensor
    state: Any


class StreamingModel:
    """Hold a model in evaluation mode, without dropout, that passes on its recurrent state.

    Args:
        model, task: of a `LoadedModel`; the model carries a state, the task is
            `bptt_language_modeling`.
    """

    def __init__(self, model: Any, task: Any, arch: str, device: torch.device) -> None:
        self.model, self.task, self.arch, self.device = model, task, arch, device
        self.pad: int = task.dictionary.pad()

    @classmethod
    def open(cls, checkpoint: Path, data: str, device: str | None = None) -> Self:
        """Open the model of a checkpoint.

        Args:
            data: the directory of fairseq-preprocess.
            device: "cpu", "cuda" or "cuda:N"; None: a GPU if there is one.
        """
        chosen = pick_device(device)
        loaded = load_model(checkpoint, data, chosen)
        _check_kind(loaded)
        return cls(loaded.model, loaded.task, loaded.arch, chosen)

    def parameters(self) -> list[nn.Parameter]:
        """Return the trainable parameters; a tied matrix counts once."""
        return [p for p in self.model.parameters() if p.requires_grad]

    def text(self, split: str, tokens: int | None = None) -> Tensor:
        """Return the word numbers of a split, or the first `tokens` of them; [N]."""
        self.task.load_dataset(split)
        return self.task.dataset(split).tokens[:tokens]

    def segments(
        self, split: str, length: int, count: int = 1, tokens: int | None = None
    ) -> Segments:
        """Cut a split into chunks of `length` tokens of `count` streams."""
        text = SplitTokens(self.text(split, tokens), split)
        streams = Streams(text, self.task.dictionary, count, 0, 1, length)
        return Segments(streams, chunk_plan(len(streams), length))

    def score(self, batch: FairseqBatch, state: Any) -> tuple[Tensor, int, Any]:
        """Return the summed nll of a batch, with gradients; its tokens; the state after it."""
        out = self._forward(batch, state, reduction="sum")
        return out.loss, batch["ntokens"], map_tensors(Tensor.detach, out.state)

    @torch.no_grad()
    def observe(self, batch: FairseqBatch, state: Any) -> Observed:
        """Return outputs and scores of a batch of one stream, without gradients."""
        out = self._forward(batch, state, reduction="none")
        target = batch["target"][0].to(self.device)
        return Observed(out.raw[:, 0], target, -out.nll[0], map_tensors(Tensor.detach, out.state))

    def _forward(self, batch: FairseqBatch, state: Any, reduction: str) -> Any:
        return self.model(
            batch["net_input"]["src_tokens"].to(self.device),
            state=map_tensors(lambda t: t.to(self.device), state),
            target=batch["target"].to(self.device),
            ignore_index=self.pad,
            reduction=reduction,
        )


def digest_of_tokens(tokens: Tensor) -> str:
    """Return a digest that tells one text from another."""
    return hashlib.sha256(tokens.contiguous().numpy().data).hexdigest()[:16]


def digest_of_file(path: Path) -> str:
    """Return a digest that tells one file from another."""
    return checksum(path)[:16]


def _check_kind(loaded: LoadedModel) -> None:
    """Refuse models without a state to carry, and tasks that do not carry it."""
    path, arch, task = loaded.path, loaded.arch, loaded.task_name
    model = ARCH_MODEL_REGISTRY.get(arch, MODEL_REGISTRY.get(arch))
    if not hasattr(model, "bptt_features"):
        raise ValueError(
            f"{path}: --arch {arch} has no recurrent state to carry along a text; this evaluation "
            "is for awd_lstm_lm_<head> (docs/reference/archs.md)"
        )
    if task != TASK:
        raise ValueError(
            f"{path} was trained with --task {task}, whose lines or blocks do not continue each "
            f"other; this evaluation is for --task {TASK}"
        )
