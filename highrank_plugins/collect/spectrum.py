"""The spectrum of a model's log-probabilities, and what they give to impossible words."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from highrank_plugins.analysis import effective_rank, spectral_decay, spectral_entropy
from highrank_plugins.analysis.singular import Spectrum, spectrum_part, whole_spectrum

from .collector import Collector
from .loading import DTYPES

EPSILONS = (1e-3, 1e-4, 1e-5)


@dataclass(frozen=True)
class LogProbSpectrum:
    """Ranks of the matrix [contexts, words] of log-probabilities.

    `press_rank` is that of `dtype`, in which the model and the decomposition have computed;
    `effective_rank` by ε. `impossible_nats` is what the model loses per token to <s> and <pad>,
    which a text never has: the mean of −log(1 − P(<s>, <pad>)). Below `smallest_reliable` singular
    values are noise. `spectral_decay` is fitted to those that the Press rank counts.
    """

    contexts: int
    words: int
    dtype: str
    method: str
    smallest_reliable: float
    press_rank: int
    effective_rank: dict[str, int]
    spectral_entropy: float
    spectral_decay: float | None
    impossible_nats: float
    singular_values: list[float]


def log_prob_spectrum(collector: Collector, method: str = "auto") -> LogProbSpectrum | None:
    """The spectrum over the text of a collector, in its dtype; see `spectrum`.

    Several processes bring their triangles, or their XᵀX, together.

    Returns:
        None in processes other than the first.
    Raises:
        ValueError: see `spectrum`. FloatingPointError: NaN.
    """
    if method == "gram" and collector.dtype == "float64":
        raise ValueError(
            "--method gram: it squares the singular values, so that no rank in float64 can be "
            "told; take --method tsqr, or --dtype float32"
        )
    lost = Lost([collector.dictionary.bos(), collector.dictionary.pad()])
    blocks = (block.log_probs for block in collector.blocks("predict"))
    part = spectrum_part(lost.watch(blocks), DTYPES[collector.dtype], method)
    parts = collector.processes.gather((part, lost.nats))
    if parts is None:
        return None
    found = whole_spectrum([part for part, _ in parts])
    rank = found.press_rank()
    return LogProbSpectrum(
        contexts=found.shape[0],
        words=found.shape[1],
        dtype=collector.dtype,
        method=found.method,
        smallest_reliable=found.smallest_reliable,
        press_rank=rank,
        effective_rank={f"{eps:g}": effective_rank(found.values, eps) for eps in EPSILONS},
        spectral_entropy=spectral_entropy(found.values),
        spectral_decay=_decay(found, rank),
        impossible_nats=sum(nats for _, nats in parts) / found.shape[0],
        singular_values=found.values.tolist(),
    )


def _decay(found: Spectrum, rank: int) -> float | None:
    return spectral_decay(found.values, last=rank) if rank > 1 else None


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
