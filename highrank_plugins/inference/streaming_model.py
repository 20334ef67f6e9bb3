"""Run models over the texts of a binarised corpus: streams with a carried state, or sentences."""

import hashlib
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Self, TypeAlias

import numpy as np
import torch
from fairseq import checkpoint_utils, utils
from fairseq.models import FairseqLanguageModel
from torch import Tensor, nn
from tqdm import tqdm

from highrank_plugins.analysis.predictions import perplexity_of
from highrank_plugins.common.certificate import Mass
from highrank_plugins.common.checkpoint_file import read_checkpoint
from highrank_plugins.common.files import checksum
from highrank_plugins.common.formatting import bar_options
from highrank_plugins.inference.loading import LoadedModel, load_model, pick_device
from highrank_plugins.tasks.streams import Chunk, SplitTokens, Streams, chunk_plan, map_tensors

TASK = "bptt_language_modeling"
DIVERGED = 80.0  # nats per word
FairseqBatch = dict[str, Any]


class Segments(NamedTuple):
    """Cut parallel streams of a split into chunks of equal length."""

    streams: Streams
    chunks: list[Chunk]

    def starting_at(self, first: int) -> Iterator[FairseqBatch]:
        """Yield the batches from chunk number `first` on, see `Streams`."""
        return (self.streams[chunk] for chunk in self.chunks[first:])


class StreamingModel:
    """Hold a model in evaluation mode, without dropout, that passes on its recurrent state."""

    mass: Mass | None = None  # `score` adds to it

    def __init__(self, loaded: LoadedModel) -> None:
        self.model, self.task, self.arch = loaded.model, loaded.task, loaded.arch
        self.device = next(self.model.parameters()).device
        self.pad: int = self.task.dictionary.pad()

    @classmethod
    def open(cls, checkpoint: Path, data: str, device: str | None = None) -> Self:
        """Open the model of a checkpoint, if it has a state and its task carries that."""
        loaded = load_model(checkpoint, data, pick_device(device))
        arch, task = loaded.arch, loaded.config.task._name
        if not hasattr(loaded.model, "bptt_features"):
            raise ValueError(
                f"{checkpoint}: --arch {arch} has no recurrent state to carry along a text; this "
                "evaluation is for awd_lstm_lm_<head> (docs/reference/archs.md)"
            )
        if task != TASK:
            raise ValueError(
                f"{checkpoint} was trained with --task {task}, whose lines or blocks do not "
                f"continue each other; this evaluation is for --task {TASK}"
            )
        return cls(loaded)

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
        if self.mass is not None:
            self._add_mass(self.mass, batch, out)
        return out.loss, batch["ntokens"], map_tensors(Tensor.detach, out.state)

    @torch.no_grad()
    def _add_mass(self, mass: Mass, batch: FairseqBatch, out: Any) -> None:
        """Add the segments of one stream with a position; only their summed loss is known."""
        target = batch["target"][0].to(self.device)
        has_diverged = not out.loss < DIVERGED * len(target)  # and no rounding error stays small
        if mass.within(batch["position"], len(target)) and not has_diverged:
            log_probs = self.model.head.log_probs(out.features[:, 0])
            known = log_probs.gather(1, target[:, None])[:, 0].double()
            mass.add(known - (out.loss.double() + known.sum()) / len(target), target, log_probs)

    @torch.no_grad()
    def distributions(self, batch: FairseqBatch, hidden: Tensor, mass: Mass) -> dict[int, Tensor]:
        """Return log P of all words [M] at the positions of `mass`, by number in `hidden`."""
        places = mass.within(batch["position"], len(hidden))
        rows = self.model.head.log_probs(hidden[places]) if places else ()
        return dict(zip(places, rows, strict=True))

    @torch.no_grad()
    def observe(self, batch: FairseqBatch, state: Any) -> tuple[Tensor, Tensor, Tensor, Any]:
        """Return outputs before dropout [T, F], the next words, their log P, and the state."""
        out = self._forward(batch, state, reduction="none")
        target = batch["target"][0].to(self.device)
        return out.raw[:, 0], target, -out.nll[0], map_tensors(Tensor.detach, out.state)

    def _forward(self, batch: FairseqBatch, state: Any, reduction: str) -> Any:
        return self.model(
            batch["net_input"]["src_tokens"].to(self.device),
            state=map_tensors(lambda t: t.to(self.device), state),
            target=batch["target"].to(self.device),
            ignore_index=self.pad,
            reduction=reduction,
        )


def digest_of_file(path: Path) -> str:
    """Return a digest that tells one file from another."""
    return checksum(path)[:16]


TextStep: TypeAlias = tuple[Tensor, Tensor, Any]  # features [n, F], the next words [n], the state


def _digest(batches: Iterable[FairseqBatch]) -> str:
    """Return a digest of input words, predicted words, and their division into batches."""
    found = hashlib.sha256()
    for batch in batches:
        for words in (batch["net_input"]["src_tokens"], batch["target"]):
            found.update(f"{tuple(words.shape)}".encode())
            found.update(words.contiguous().numpy().data)
    return found.hexdigest()[:16]


class StreamText:
    """Read one stream, whose state is carried from batch to batch; `counts` are their tokens."""

    def __init__(self, loaded: LoadedModel, split: str, rows: int, tokens: int | None) -> None:
        self.model = StreamingModel(loaded)
        self.segments = self.model.segments(split, rows, tokens=tokens)
        self.counts = [chunk.length for chunk in self.segments.chunks]
        self.digest = _digest(self.segments.starting_at(0))

    @torch.no_grad()
    def step(self, index: int, state: Any) -> TextStep:
        """Run the model at batch number `index`, after the state that batch `index` − 1 left."""
        batch = self.segments.streams[self.segments.chunks[index]]
        device = self.model.device
        words = batch["net_input"]["src_tokens"].to(device)
        state = map_tensors(lambda tensor: tensor.to(device), state)
        out = self.model.model.bptt_features(words, state)
        return out.features[:, 0], batch["target"][0].to(device), out.state


class SentenceText:
    """Read sentences, or a language model's blocks, each on its own; `size` tokens a batch."""

    def __init__(self, loaded: LoadedModel, split: str, size: int) -> None:
        model, task = loaded.model, loaded.task
        self.model, self.pad = model, task.target_dictionary.pad()
        self.device = next(model.parameters()).device
        task.load_dataset(split)
        self.dataset = task.dataset(split)
        indices = np.arange(len(self.dataset))
        if not len(indices):
            raise ValueError(f"{split} is empty: its text has no tokens")
        limits = utils.resolve_max_positions(task.max_positions(), model.max_positions())
        _, ignored = self.dataset.filter_indices_by_size(indices, limits)
        if len(ignored):
            raise ValueError(
                f"{split}: {len(ignored)} of {len(indices)} sentences are longer than the model's "
                f"{limits} positions; the first is number {ignored[0]}. Remove them from the text"
            )
        longest = max(int(self.dataset.num_tokens(index)) for index in indices)
        self.batches = self.dataset.batch_by_size(indices, max_tokens=max(size, longest))
        self.counts: list[int] = []
        self.digest = _digest(self._counted())

    def _counted(self) -> Iterator[FairseqBatch]:
        for batch in map(self._collate, self.batches):
            self.counts.append(int(batch["target"].ne(self.pad).sum()))
            yield batch

    def _collate(self, indices: np.ndarray) -> FairseqBatch:
        batch: FairseqBatch = self.dataset.collater([self.dataset[index] for index in indices])
        if not isinstance(batch.get("target"), Tensor):
            raise ValueError("the task must have exactly one target; see --criterion")
        return batch

    @torch.no_grad()
    def step(self, index: int, state: Any) -> TextStep:
        """Run the model at batch number `index`; the state is None."""
        batch = self._collate(self.batches[index])
        batch = utils.apply_to_sample(lambda tensor: tensor.to(self.device), batch)
        features = self._features(batch["net_input"])
        order = batch["id"].argsort()  # fairseq sorts a batch by length
        features, target = features[order], batch["target"][order]
        kept = target.ne(self.pad)
        return features[kept], target[kept], None

    def _features(self, inputs: dict[str, Tensor]) -> Tensor:
        """Return what the output layer reads, [B, T, F]."""
        decoder = self.model.decoder
        if isinstance(self.model, FairseqLanguageModel):
            return decoder.extract_features(inputs["src_tokens"], encoder_out=None)[0]
        encoded = self.model.encoder(inputs["src_tokens"], src_lengths=inputs["src_lengths"])
        return decoder.extract_features(inputs["prev_output_tokens"], encoder_out=encoded)[0]


Text: TypeAlias = StreamText | SentenceText


# -- saved progress --------------------------------------------------------------------------------

START: dict[str, Any] = {
    "position": 0, "nll": 0.0, "tokens": 0, "state": None, "extra_state": None, "mass": 0.0
}  # fmt: skip


class SavedProgress:
    """Keep a dictionary `progress` in a file of the evaluation that has an `identity`."""

    def __init__(self, path: Path, identity: dict[str, Any], seconds: float) -> None:
        self.path, self.identity, self.seconds = path, identity, seconds
        self.progress: dict[str, Any] = {}
        self.saved_at = time.monotonic()
        if not path.exists():
            return
        before, self.progress = (
            read_checkpoint(path, name, whole=True) for name in ("identity", "progress")
        )
        if changes := "; ".join(
            f"{name}: {before.get(name)} there, {identity.get(name)} now"
            for name in dict.fromkeys([*before, *identity])
            if before.get(name) != identity.get(name)
        ):
            raise ValueError(
                f"{path} is the progress of another evaluation ({changes}). Resume that one, "
                f"give another --output, or delete this file"
            )

    def save(self) -> None:
        """Write the file, all or nothing: a kill leaves the old one or the new one."""
        stored = {"identity": self.identity, "progress": self.progress}
        checkpoint_utils.torch_persistent_save(stored, str(self.path))
        self.saved_at = time.monotonic()

    def remove(self) -> None:
        """Delete the file: the evaluation is over."""
        self.path.unlink(missing_ok=True)


class Walk:
    """Yield the segments that an earlier process has not evaluated, and keep the results.

    `done` holds `nll` (a sum in nats), the worst `mass`, `tokens` and `position`, the number of
    segments, so far. The next segment needs the recurrent `state` and the tensors of `extra_state`,
    which are None at the start.
    """

    def __init__(self, saved: SavedProgress, name: str, segments: Segments) -> None:
        self.saved, self.name, self.segments = saved, name, segments
        self.done = saved.progress[name] = START | saved.progress.get(name, {})

    def __iter__(self) -> Iterator[FairseqBatch]:
        first, total = self.done["position"], len(self.segments.chunks)
        more = bar_options() | {"initial": first, "unit": "segment"}
        with tqdm(None, self.name, total, **more) as self.bar:
            yield from self.segments.starting_at(first)

    def add(self, nll: float, tokens: int, **after: Any) -> None:
        """Add the result of a segment, with what is known after it; save it if it is time."""
        self.done |= {
            "nll": self.done["nll"] + nll,
            "tokens": self.done["tokens"] + tokens,
            "position": self.done["position"] + 1,
            **after,
        }
        if time.monotonic() - self.saved.saved_at >= self.saved.seconds:
            self.saved.save()
        self.bar.set_postfix(ppl=f"{self.perplexity:.2f}", refresh=False)
        self.bar.update()

    def end(self) -> None:
        """Save the result without states."""
        self.done |= {"state": None, "extra_state": None}
        self.saved.save()

    @property
    def perplexity(self) -> float:
        """Return the perplexity so far."""
        return perplexity_of(self.done["nll"] / self.done["tokens"])
