"""What a level of the loss is asked to compute, checked."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar, NamedTuple, Protocol

import torch
from torch import Tensor

REDUCTIONS = ("none", "sum")
# Bytes of a chunk, at least and at most. On a CPU its working set should stay near the cache while
# its products stay large; above 32 MiB the C library also returns memory after every batch and
# faults it in again, which a large vocabulary is worth. On a GPU launches dominate small chunks.
DEFAULT_MEMORY = {"cpu": (31 * 2**20, 64 * 2**20), "cuda": (512 * 2**20, 512 * 2**20)}
# Between the two it grows with the vocabulary matrix: the products of every chunk pack it anew, and
# read and write its gradient.
CHUNK_PER_MATRIX = 4.5


class LossOutput(NamedTuple):
    """Loss (with weights and smoothing, differentiable), nll (without either) and hits.

    Per token for reduction "none", scalars for "sum"; `correct` is None unless asked for.
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor | None


class ChunkedHead(Protocol):
    """What the losses need to know of a head."""

    num_classes: int

    def tensors(self) -> dict[str, Tensor]: ...

    def chunk_log_probs(
        self, features: Tensor, tensors: dict[str, Tensor], draws: Any
    ) -> Tensor: ...

    def chunk_nll(
        self,
        features: Tensor,
        target: Tensor,
        tensors: dict[str, Tensor],
        draws: Any,
        smooth: bool,
    ) -> tuple[Tensor, Tensor | None]: ...

    def floats_per_token(self) -> int: ...

    # where there is a fused loss:

    fused: ClassVar[Any]  # type[highrank_plugins.losses.fused.FusedLoss], or None without one
    pointwise: Any

    def token_floats(self) -> int: ...

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], draws: Any
    ) -> dict[str, Tensor]: ...


@dataclass
class LossPlan:
    """One call of `Head.nll`, flattened: N tokens, F features, M classes."""

    head: ChunkedHead
    features: Tensor  # [N, F]
    target: Tensor  # [N], int64, in range: ignored tokens have another's
    ignored: Tensor | None  # [N] bool
    weight: Tensor | None  # [N]
    draws: Any  # highrank_plugins.heads.draws.Draws
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
    def every_class(self) -> float:
        """ε_i, the factor of Σ_x −log P_x."""
        return self.label_smoothing / max(self.head.num_classes - 1, 1)

    @property
    def on_target(self) -> float:
        """1 − ε − ε_i, the factor of −log P_target."""
        return 1 - self.label_smoothing - self.every_class

    def with_own_copies(self) -> LossPlan:
        """The same with targets and weights that nobody else can change."""
        weight = None if self.weight is None else self.weight.clone()
        return replace(self, target=self.target.clone(), weight=weight)

    def combine(self, nll: Tensor, smooth_sum: Tensor | None, start: int, stop: int) -> Tensor:
        """Weighted, smoothed loss [n] of the tokens start..stop−1; 0 where ignored."""
        loss = nll
        if smooth_sum is not None:
            loss = self.on_target * nll + self.every_class * smooth_sum
        if self.weight is not None:
            loss = loss * self.weight[start:stop].to(loss.dtype)
        return self.blank(loss, start, stop)

    def blank(self, values: Tensor, start: int, stop: int) -> Tensor:
        """`values` [n] of the tokens start..stop−1, 0 (or False) where ignored."""
        if self.ignored is None:
            return values
        return values.masked_fill(self.ignored[start:stop], 0)

    def hits(self, log_probs: Tensor, start: int, stop: int) -> Tensor:
        """Whether the most probable class is the target, [n] bool; False where ignored."""
        hit = log_probs.detach().argmax(-1) == self.target[start:stop]
        return self.blank(hit, start, stop)


def chunk_ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """start..stop−1 in nearly equal ranges of at most `size`, the first the longest; at least one
    range, even if it is empty."""
    tokens = stop - start
    chunks = max(1, -(-tokens // max(size, 1)))
    size = max(1, -(-tokens // chunks))
    return ((a, min(a + size, stop)) for a in range(start, max(stop, start + 1), size))


def tokens_within(
    features: Tensor, floats_per_token: int, memory: int | None, matrix: int = 0, most: int = 0
) -> int:
    """How many tokens a chunk may have, at least 1.

    Args:
        features: give the device and the width of numbers (at least 4 bytes).
        floats_per_token: numbers held per token.
        matrix: numbers of the vocabulary matrix.
        most: tokens; half of them where that is more: a plain softmax holds its logits two or
            three times, and a loss in chunks is to take less.
        memory: bytes; None takes the default of the device, at least 16 tokens and at most `most`.
    Raises:
        ValueError: the budget does not hold one token.
    """
    width = max(features.element_size(), 4)
    per_token = max(1, floats_per_token) * width
    if memory is None:
        low, high = DEFAULT_MEMORY.get(features.device.type, DEFAULT_MEMORY["cuda"])
        budget = min(max(low, int(CHUNK_PER_MATRIX * matrix * width)), high)
        return max(16, min(budget // per_token, max(most, -(-features.size(0) // 2))))
    if memory < per_token:
        raise ValueError(
            f"memory: {memory} bytes do not hold one token, which takes {per_token}; "
            "raise memory= (--head-loss-memory)"
        )
    return memory // per_token


def check_target(
    target: Tensor, leading: torch.Size, num_classes: int, ignore_index: int | None
) -> tuple[Tensor, Tensor | None]:
    """Flat target [N] with ignored tokens pointing to another's class, and where they are or None.

    That class has a probability; class 0 may be one that a bias of −∞ rules out.

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
