"""Evaluate a language model that adapts to the text: dynamic evaluation, and the continuous cache.

Dynamic evaluation keeps learning. Krause et al. 2018 divide gradients by their size on the training
text, and pull weights back to the trained ones. The text comes in segments of a few tokens. Each is
scored by the weights after the previous segment, and only then is one step taken on it:

    p += λ R (p_train − p) − η g / (MS + ε),    R = min(MS / norm, 1/λ)

with g the gradient of the segment's mean nll, MS a statistic of the gradients g_b of the training
segments, and norm one number for all parameters. Two readings are in use. Krause's code has
MS = sqrt(mean_b g_b²) and norm the mean over tensors of mean(MS); Yang et al.'s 2018 (MoS)
has MS = sqrt(Σ_b g_b²) and norm their sum. With P tensors and n training segments the second is
the first with λ/P, η/sqrt(n) and ε/sqrt(n).

Parameters are a list of tensors that require gradients, each once (a tied matrix is one); all other
lists here have the same order and shapes. Dropout, DropConnect and noise must be off, gradients on.
A `torch.nn.LSTM` on cuDNN has no gradients in evaluation mode. Switch it to training mode with all
rates 0, or run under `torch.backends.cudnn.flags(enabled=False)`; the LSTMs of
`highrank_plugins.trunks` need neither.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple

import torch
from torch import Tensor

# (segment, state before it) → (its summed nll, a scalar with gradients; number of tokens; state
# after it, detached). The model defines segments and states; the first state is given.
ScoreSegment = Callable[[Any, Any], tuple[Tensor, int, Any]]


class Scored(NamedTuple):
    """Hold a segment's summed nll in nats before its step, its tokens, and the state after it."""

    nll: float
    tokens: int
    state: Any


@dataclass(frozen=True)
class Adaptation:
    """Hold the settings of how fast weights learn and forget.

    Args:
        lr: η ≥ 0.
        eps: ε > 0, added to MS.
        lamb: λ in [0, 1], the pull towards the trained weights.
        normalise: norm is the "mean" or the "sum" over tensors of mean(MS).
    """

    lr: float
    eps: float
    lamb: float
    normalise: str = "mean"

    def __post_init__(self) -> None:
        if not 0 <= self.lr < math.inf:
            raise ValueError(f"lr must be at least 0, got {self.lr}")
        if not 0 < self.eps < math.inf:
            raise ValueError(f"eps must be above 0, got {self.eps}")
        if not 0 <= self.lamb <= 1:
            raise ValueError(f"lamb must lie in [0, 1], got {self.lamb}")
        _check_known("normalise", self.normalise, ("mean", "sum"))


class GradientStatistics:
    """Sum g_b² of each parameter over training segments b: `sums` of n `segments`."""

    def __init__(self, parameters: Sequence[Tensor]) -> None:
        self.sums = [torch.zeros_like(p, requires_grad=False) for p in parameters]
        self.segments = 0

    def add(self, gradients: Sequence[Tensor]) -> None:
        """Add one segment: g_b, the gradients of its mean nll."""
        for total, gradient in zip(self.sums, gradients, strict=True):
            total.addcmul_(gradient, gradient)
        self.segments += 1

    def finish(self, statistic: str = "rms") -> list[Tensor]:
        """Return MS: "rms" is sqrt(Σ_b g_b² / n), "sum" is sqrt(Σ_b g_b²)."""
        _check_known("statistic", statistic, ("rms", "sum"))
        if not self.segments:
            raise ValueError("no gradient statistics: the training text is empty")
        count = self.segments if statistic == "rms" else 1
        return [(total / count).sqrt_() for total in self.sums]


def decay_rates(
    mean_squares: Sequence[Tensor], lamb: float, normalise: str = "mean"
) -> list[Tensor]:
    """Return R = min(MS / norm, 1/λ); without the bound for λ = 0.

    The norm is the "mean" or the "sum" over tensors of mean(MS).
    """
    _check_known("normalise", normalise, ("mean", "sum"))
    means = torch.stack([ms.mean() for ms in mean_squares])
    norm = means.sum() if normalise == "sum" else means.mean()
    if not norm.isfinite():
        raise FloatingPointError(
            "the gradients of the training text are not finite: the checkpoint has diverged"
        )
    if norm == 0:
        raise ValueError("the gradients of the training text are all 0: nothing can be learnt")
    largest = 1 / lamb if lamb else math.inf
    return [(ms / norm).clamp_(max=largest) for ms in mean_squares]


def gather_statistics(
    score: ScoreSegment,
    parameters: Sequence[Tensor],
    segments: Iterable[Any],
    statistics: GradientStatistics,
    state: Any = None,
) -> Iterator[Scored]:
    """Add the gradient of every training segment to `statistics`, and yield after each."""
    for segment in segments:
        scored, gradients = _gradients(score, parameters, segment, state)
        statistics.add(gradients)
        state = scored.state
        yield scored


def dynamic_evaluation(
    score: ScoreSegment,
    parameters: Sequence[Tensor],
    segments: Iterable[Any],
    start: Sequence[Tensor],
    mean_squares: Sequence[Tensor],
    adaptation: Adaptation,
    state: Any = None,
) -> Iterator[Scored]:
    """Score one segment after another, and learn from each; yield after its step.

    A caller that keeps `parameters` and the state between two segments can resume from there.

    Args:
        parameters: changed in place; they need not be `start`.
        start: p_train, other tensors than `parameters`.
        mean_squares: MS.
        state: before the first segment.
    Raises:
        FloatingPointError: a loss is not finite; the parameters are then useless.
    """
    lr, eps, lamb = adaptation.lr, adaptation.eps, adaptation.lamb
    rates = decay_rates(mean_squares, lamb, adaptation.normalise)
    for segment in segments:
        scored, gradients = _gradients(score, parameters, segment, state)
        with torch.no_grad():
            lists = zip(parameters, gradients, start, mean_squares, rates, strict=True)
            for p, g, trained, ms, rate in lists:
                p.lerp_(trained, rate * lamb).addcdiv_(g, ms + eps, value=-lr)
        state = scored.state
        yield scored


@torch.enable_grad()
def _gradients(
    score: ScoreSegment, parameters: Sequence[Tensor], segment: Any, state: Any
) -> tuple[Scored, Sequence[Tensor]]:
    """Return a segment's score and the gradients of its mean nll; 0 for unused parameters."""
    nll, tokens, state = score(segment, state)
    scored = Scored(float(nll.detach()), tokens, state)
    if not math.isfinite(scored.nll):
        raise FloatingPointError(
            f"the loss of a segment is {scored.nll}: the weights have diverged: lower --lr or "
            "raise --eps. If no update came before it, the model itself is broken"
        )
    return scored, torch.autograd.grad(
        nll / tokens, parameters, allow_unused=True, materialize_grads=True
    )


def _check_known(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be {' or '.join(known)}, got {value!r}")


BLOCK = 256  # tokens scored at a time, which takes BLOCK × (window + BLOCK) numbers


class NeuralCache:
    """Mix a model with the cache of Grave et al. 2017, which favours recent words.

    P(x) = (1 − λ) P_model(x) + λ Σ_i a_i [w_i = x],  a = softmax_i(θ h_i·h_t).

    i runs over the `window` positions before t; w_i is the word that came after h_i. A text may
    be passed in pieces of any size, with the same result.

    The first `window` tokens of a text fill the cache and are scored by the model alone. From then
    on the cache is full, and every token is compared with exactly `window` pairs.

    Args:
        theta: θ, how sharply the cache attends; 0 weighs all words of the window equally.
        lamb: λ in [0, 1), the weight of the cache.
        window: number of pairs, at least 1.
    Attributes:
        hidden, words: the pairs, [n, F] and int64 [n] with n ≤ window; None before the first piece.
            Set them to continue from another cache.
    """

    def __init__(self, theta: float, lamb: float, window: int) -> None:
        if not math.isfinite(theta):
            raise ValueError(f"theta must be a number, got {theta}")
        if not 0 <= lamb < 1:
            raise ValueError(f"lamb must lie in [0, 1), got {lamb}")
        if window < 1:
            raise ValueError(f"window must be at least 1, got {window}")
        self.theta, self.lamb, self.window = theta, lamb, window
        self.hidden: Tensor | None = None
        self.words: Tensor | None = None

    @torch.no_grad()
    def log_probs(
        self, hidden: Tensor, target: Tensor, model_log_probs: Tensor,
        whole: dict[int, Tensor] | None = None,
    ) -> Tensor:  # fmt: skip
        """Return log P(target) [T] of the next T tokens of the text, and add them to the cache.

        Args:
            hidden: h_t, the last layer's outputs before dropout, [T, F], float32 or float64.
            target: the words after them, int64 [T].
            model_log_probs: log P_model(target), [T].
            whole: log P_model of all words [M] of some tokens, by number; log P takes their place.
        """
        if hidden.dim() != 2 or not hidden.shape[:1] == target.shape == model_log_probs.shape:
            raise ValueError(
                "expected hidden [T, F], target [T] and model_log_probs [T], got "
                f"{list(hidden.shape)}, {list(target.shape)} and {list(model_log_probs.shape)}"
            )
        pieces = zip(*(t.split(BLOCK) for t in (hidden, target, model_log_probs)), strict=True)
        found, whole = [], {} if whole is None else whole
        for start, (outputs, words, scores) in zip(count(0, BLOCK), pieces, strict=False):
            own = {n - start: row for n, row in whole.items() if 0 <= n - start < BLOCK}
            found.append(self._block(outputs, words, scores, own))
            whole.update({n + start: row for n, row in own.items()})
        return torch.cat(found)

    def _block(
        self, hidden: Tensor, target: Tensor, model_log_probs: Tensor, whole: dict[int, Tensor]
    ) -> Tensor:
        known, keys, words = 0, hidden, target
        if self.hidden is not None and self.words is not None:
            known = len(self.words)
            keys, words = torch.cat([self.hidden, hidden]), torch.cat([self.words, target])
        # clone, because views would keep older pairs in memory
        self.hidden, self.words = keys[-self.window :].clone(), words[-self.window :].clone()
        order = torch.arange(keys.size(0), device=keys.device)
        distance = order[known:].unsqueeze(1) - order
        outside = (distance < 1) | (distance > self.window)
        scores = (hidden @ keys.t()).mul_(self.theta).masked_fill_(outside, -math.inf)
        total = scores.logsumexp(-1)
        for n, row in whole.items():
            pointer = torch.zeros_like(row).index_add(0, words, (scores[n] - total[n]).exp())
            whole[n] = self._mix(row, pointer.log(), order[known + n])
        pointer = scores.masked_fill_(words != target.unsqueeze(1), -math.inf).logsumexp(-1) - total
        return self._mix(model_log_probs, pointer, order[known:])

    def _mix(self, model_log_probs: Tensor, pointer: Tensor, place: Tensor) -> Tensor:
        weight = math.log(self.lamb) if self.lamb else -math.inf
        mixed = torch.logaddexp(model_log_probs + math.log1p(-self.lamb), pointer + weight)
        # before the cache is full, a row may have nothing to attend to; discard its NaN
        return torch.where(place < self.window, model_log_probs, mixed)
