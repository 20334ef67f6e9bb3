"""The spectrum of a language model's log-probabilities, and what they give to impossible words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from tqdm import tqdm

from highrank_plugins.analysis import effective_rank, spectrum

from .predictions import log_prob_blocks
from .streaming_model import StreamingModel

EPSILONS = (1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class LogProbSpectrum:
    """Ranks of the matrix [contexts, words] of log-probabilities.

    `press_rank` is that of `dtype`; `effective_rank` by ε. `impossible_nats` is what the model
    loses per token to <s> and <pad>, which a text never has: the mean of −log(1 − P(<s>, <pad>)).
    """

    contexts: int
    words: int
    dtype: str
    method: str
    smallest_reliable: float
    press_rank: int
    effective_rank: dict[str, int]
    impossible_nats: float
    singular_values: list[float]


def log_prob_spectrum(
    checkpoint: Path, data: str, split: str, dtype: str, tokens: int | None, segment: int
) -> LogProbSpectrum:
    """Run a checkpoint along a split as one stream, see `StreamingModel` and `spectrum`.

    Args:
        dtype: "float32" or "float64".
        tokens: only the first so many.
        segment: rows that are held at a time.
    Raises:
        ValueError: see `StreamingModel` and `spectrum`.
    """
    model = StreamingModel(checkpoint, data)
    segments = model.segments(split, segment, tokens=tokens)
    dictionary = model.task.dictionary
    lost = Lost([dictionary.bos(), dictionary.pad()])
    blocks = tqdm(
        log_prob_blocks(model, segments), "predict", len(segments.chunks), mininterval=1, unit="seg"
    )
    found = spectrum(lost.watch(blocks), getattr(torch, dtype))
    return LogProbSpectrum(
        contexts=found.shape[0],
        words=found.shape[1],
        dtype=dtype,
        method=found.method,
        smallest_reliable=found.smallest_reliable,
        press_rank=found.press_rank(),
        effective_rank={f"{eps:g}": effective_rank(found.values, eps) for eps in EPSILONS},
        impossible_nats=lost.nats / found.shape[0],
        singular_values=found.values.tolist(),
    )


class Lost:
    """Sums what log-probabilities lose to some classes, in nats."""

    def __init__(self, classes: list[int]) -> None:
        self.classes, self.nats = classes, 0.0

    def watch(self, blocks: Iterable[Tensor]) -> Iterator[Tensor]:
        """Passes blocks [n, M] on."""
        for block in blocks:
            impossible = block[:, self.classes].double().exp().sum(1)
            self.nats -= float(torch.log1p(-impossible).sum())
            yield block
