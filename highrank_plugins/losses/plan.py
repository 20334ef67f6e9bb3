"""Describe one loss to its implementations: what to compute, and the result."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, NamedTuple

from torch import Tensor

from highrank_plugins.losses.chunked_head import ChunkedHead


class LossOutput(NamedTuple):
    """Hold loss (with weights and smoothing, differentiable), nll (without), correct tokens.

    Per token for reduction "none", else scalars; `correct` is None unless asked for.
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor | None


class ClassWeights(NamedTuple):
    """Weigh the gradient of a row of logits: total P − target 1[x = y] − smoothing.

    `total` is the sum of the weights of all classes: 1, except for a single class.
    """

    total: float = 1.0
    target: float = 1.0
    smoothing: float = 0.0


@dataclass
class LossPlan:
    """Describe one call of `Head.nll`, flattened: N tokens, F features, M classes."""

    head: ChunkedHead
    features: Tensor  # [N, F]
    target: Tensor  # [N], int64, in range: ignored tokens have the class of another
    ignored: Tensor | None  # [N] bool
    weight: Tensor | None  # [N]
    random_state: Any  # highrank_plugins.heads.random_state.RandomState
    label_smoothing: float
    reduction: str
    memory: int | None
    accuracy: bool
    filter_gradients: bool

    @property
    def smooth(self) -> bool:
        """Whether Σ_x −log P_x is needed at all."""
        return self.label_smoothing > 0

    @property
    def smoothing_weight(self) -> float:
        """Return ε_i, the factor of Σ_x −log P_x."""
        return self.label_smoothing / max(self.head.num_classes - 1, 1)

    @property
    def target_weight(self) -> float:
        """Return 1 − ε − ε_i, the factor of −log P_target."""
        return 1 - self.label_smoothing - self.smoothing_weight

    @property
    def class_weights(self) -> ClassWeights:
        """Return the weights of all classes, of the target and of each class."""
        total = self.target_weight + self.head.num_classes * self.smoothing_weight
        return ClassWeights(total, self.target_weight, self.smoothing_weight)

    def with_own_copies(self) -> LossPlan:
        """Copy the plan, with targets and weights that nobody else can change."""
        weight = None if self.weight is None else self.weight.clone()
        return replace(self, target=self.target.clone(), weight=weight)

    def combine(self, nll: Tensor, smooth_sum: Tensor | None, start: int, stop: int) -> Tensor:
        """Return the weighted, smoothed loss [n] of the tokens start..stop−1; 0 where ignored."""
        loss = nll
        if smooth_sum is not None:
            loss = self.target_weight * nll + self.smoothing_weight * smooth_sum
        if self.weight is not None:
            loss = loss * self.weight[start:stop].to(loss.dtype)
        return self.blank(loss, start, stop)

    def blank(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Return `values` [n] of the tokens start..stop−1, 0 (or False) where ignored."""
        if self.ignored is None:
            return values
        return values.masked_fill(self.ignored[start:stop], 0)

    def correct(self, log_probs: Tensor, start: int, stop: int) -> Tensor:
        """Return whether the most probable class is the target, [n] bool; False where ignored."""
        correct = log_probs.detach().argmax(-1) == self.target[start:stop]
        return self.blank(correct, start, stop)
