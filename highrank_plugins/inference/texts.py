"""Read features from batches of sentences, or from one stream with a carried state."""

import hashlib
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from fairseq import utils
from fairseq.models import FairseqEncoderDecoderModel, FairseqLanguageModel
from torch import Tensor

from highrank_plugins.inference.streaming_model import Segments, StreamingModel
from highrank_plugins.tasks.carried_state import map_tensors


class TextStep(NamedTuple):
    """Hold features [n, F] after a batch, the words [n] that they predict, and the state."""

    features: Tensor
    target: Tensor
    state: Any


class Text(Protocol):
    """Hold a split in batches, in the order of the corpus.

    `counts` are their numbers of tokens; `digest` identifies these batches.
    """

    counts: list[int]
    digest: str

    def step(self, index: int, state: Any) -> TextStep:
        """Run the model at batch number `index`, after the state that batch `index` − 1 left."""


class Digest:
    """Compute a digest of input words, predicted words, and their division into batches."""

    def __init__(self) -> None:
        self._hash = hashlib.sha256()

    def add(self, batch: dict[str, Any]) -> None:
        """Add the next batch."""
        for words in (batch["net_input"]["src_tokens"], batch["target"]):
            self._hash.update(f"{tuple(words.shape)}".encode())
            self._hash.update(words.contiguous().numpy().data)

    def __str__(self) -> str:
        return self._hash.hexdigest()[:16]


class StreamText:
    """Read one stream, whose state is carried from batch to batch."""

    def __init__(self, model: StreamingModel, segments: Segments) -> None:
        self.model, self.segments = model, segments
        self.counts = [chunk.length for chunk in segments.chunks]
        digest = Digest()
        for batch in segments.starting_at(0):
            digest.add(batch)
        self.digest = str(digest)

    @torch.no_grad()
    def step(self, index: int, state: Any) -> TextStep:
        batch = self.segments.streams[self.segments.chunks[index]]
        device = self.model.device
        words = batch["net_input"]["src_tokens"].to(device)
        state = map_tensors(lambda tensor: tensor.to(device), state)
        out = self.model.model.bptt_features(words, state)
        return TextStep(out.features[:, 0], batch["target"][0].to(device), out.state)


class SentenceText:
    """Read sentences, or a language model's blocks, each on its own, with given targets.

    Args:
        model: encoder and decoder, or a language model, of fairseq or of ours.
        task: of its training run; says how a language model's text is cut into blocks.
        size: tokens of a batch, with padding; a longer sentence is a batch.
    """

    def __init__(self, model: Any, task: Any, split: str, size: int) -> None:
        if not isinstance(model, (FairseqEncoderDecoderModel, FairseqLanguageModel)):
            raise ValueError(
                f"{type(model).__name__} is neither a language model nor an encoder with a decoder"
            )
        self.model, self.pad = model, task.target_dictionary.pad()
        self.device = next(model.parameters()).device
        task.load_dataset(split)
        self.dataset = task.dataset(split)
        self.batches = self._cut(split, task, size)
        self.counts, digest = [], Digest()
        for batch in map(self._collate, self.batches):
            self.counts.append(int(batch["target"].ne(self.pad).sum()))
            digest.add(batch)
        self.digest = str(digest)

    def _cut(self, split: str, task: Any, size: int) -> list[np.ndarray]:
        indices = np.arange(len(self.dataset))
        if not len(indices):
            raise ValueError(f"{split} is empty: its text has no tokens")
        limits = utils.resolve_max_positions(task.max_positions(), self.model.max_positions())
        _, ignored = self.dataset.filter_indices_by_size(indices, limits)
        if len(ignored):
            raise ValueError(
                f"{split}: {len(ignored)} of {len(indices)} sentences are longer than the model's "
                f"{limits} positions; the first is number {ignored[0]}. Remove them from the text"
            )
        longest = max(int(self.dataset.num_tokens(index)) for index in indices)
        return self.dataset.batch_by_size(indices, max_tokens=max(size, longest))

    def _collate(self, indices: np.ndarray) -> dict[str, Any]:
        batch = self.dataset.collater([self.dataset[index] for index in indices])
        if not isinstance(batch.get("target"), Tensor):
            raise ValueError("the task must have exactly one target; see --criterion")
        return batch

    @torch.no_grad()
    def step(self, index: int, state: Any) -> TextStep:
        batch = self._collate(self.batches[index])
        batch = utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)
        features = self._features(batch["net_input"])
        order = batch["id"].argsort()  # fairseq sorts a batch by length
        features, target = features[order], batch["target"][order]
        kept = target.ne(self.pad)
        return TextStep(features[kept], target[kept], None)

    def _features(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return what the output layer reads, [B, T, F]."""
        decoder = self.model.decoder
        if isinstance(self.model, FairseqLanguageModel):
            return decoder.extract_features(inputs["src_tokens"], encoder_out=None)[0]
        encoded = self.model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])
        return decoder.extract_features(inputs["prev_output_tokens"], encoder_out=encoded)[0]
