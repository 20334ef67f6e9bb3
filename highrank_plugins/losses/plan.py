"""What an implementation of the loss is asked to compute, checked."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

REDUCTIONS = ("none", "sum", "mean")


class LossOutput(NamedTuple):
    """Loss (with weights and smoothing, differentiable), nll (without either), correct tokens.

    Per token for reduction "none", else scalars; `correct` is None unless asked for.
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor | None


class ClassWeights(NamedTuple):
    """Weights in the gradient of a row of logits, total P − target 1[x = y] − smoothing.

    `total` is the sum of the weights of all classes: 1, except for a single class.
    """

    total: float = 1.0
    target: float = 1.0
    smoothing: float = 0.0


class ChunkedHead(Protocol):
    """What the losses need to know of a head."""

    num_classes: int

    def tensors(self) -> dict[str, Tensor]: ...

    def chunk_log_probs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: Any
    ) -> Tensor: ...

    def chunk_nll(
        self,
        features: Tensor,
        target: Tensor,
        tensors: dict[str, Tensor],
        random_state: Any,
        smooth: bool,
    ) -> tuple[Tensor, Tensor | None]: ...

    def floats_per_token(self) -> int: ...

    # where there is a fused loss:

    fused: ClassVar[Any]  # type[highrank_plugins.losses.fused.FusedLoss], or None without one
    pointwise: Any

    def token_floats(self) -> int: ...

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: Any
    ) -> dict[str, Tensor]: ...


@dataclass
class LossPlan:
    """One call of `Head.nll`, flattened: N tokens, F features, M classes."""

    head: ChunkedHead
    features: Tensor  # [N, F]
    target: Tensor  # [N], int64, in range: ignored tokens have another's
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


def check_target(
    target: Tensor, leading: torch.Size, num_classes: int, ignore_index: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return a flat target [N], where ignored tokens have another's class, and where these are.

    That class has a probability, while a bias of −∞ may rule out class 0.

    Raises:
        ValueError: another shape or dtype, or a class outside [0, M). On a GPU the range is
            checked by an asynchronous assertion, so that nothing waits.
    """
    if target.shape != leading:
        raise ValueError(
            f"target: expected shape {tuple(leading)}, that of features without the last "
            f"dimension, got {tuple(target.shape)}"
        )
    if target.dtype != torch.int64:
        raise ValueError(f"target: expected dtype torch.int64, got {target.dtype}")
    flat = target.reshape(-1)
    ignored = None
    if ignore_index is not None:
        ignored = flat == ignore_index
        flat = flat.masked_fill(ignored, 0)
        if flat.numel():
            flat = torch.where(ignored, flat.amax(), flat)
    wrong = (flat < 0) | (flat >= num_classes)
    if wrong.is_cuda:
        torch._assert_async(~wrong.any(), f"target out of range [0, {num_classes})")
    elif wrong.any():
        raise ValueError(
            f"target: class {int(flat[wrong][0])} is out of range [0, {num_classes}); "
            "tokens to be left out need ignore_index"
        )
    return flat, ignored
