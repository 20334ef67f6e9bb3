"""Describe one loss to its implementations: what to compute, and the result."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NamedTuple, TypedDict

import torch
from torch import Tensor

from highrank_plugins.common.names import did_you_mean

Named = dict[str, Tensor]  # name of a head's tensor → the tensor, or a value that belongs to it
AnyHead = Any  # a highrank_plugins.heads.Head


class LossOutput(NamedTuple):
    """Hold the loss (weighted, smoothed, with z-loss), and scores without; None unless asked for.

    Only the loss is differentiable. Each is per token for reduction "none", else a scalar.
    """

    loss: Tensor
    nll: Tensor
    correct: Tensor | None
    entropy: Tensor | None = None  # −Σ_x P_x log P_x, in nats

    def __getattr__(self, name: str) -> Any:
        """Raise AttributeError; where a tensor has the attribute, it says which tensor to use."""
        hint = f": use .loss.{name}, and reduction='mean' or 'sum' for one number"
        raise AttributeError(f"LossOutput has no {name!r}{hint if hasattr(Tensor, name) else ''}")

    def map(self, function: Callable[[Tensor], Tensor]) -> LossOutput:
        tensors: list[Any] = [None if t is None else function(t) for t in self]
        return LossOutput(*tensors)


class Scores(NamedTuple):
    """Hold scores of N tokens; None if they are not wanted."""

    nll_N: Tensor
    smooth_sum_N: Tensor | None = None  # Σ_x −log P_x, or the loss of a `targets.Target`
    correct_N: Tensor | None = None  # whether the target is the most probable class, bool
    entropy_N: Tensor | None = None  # −Σ_x P_x log P_x
    square_norm_N: Tensor | None = None  # lse²; for a mixture Σ_k lse_k²


class ClassWeights(NamedTuple):
    """Weigh the gradient of a row of logits: (total + 2 z lse) P − target 1[x = y] − smoothing."""

    total: float = 1.0  # sum of the weights of all classes: 1, except for a single class
    target: float = 1.0
    smoothing: float = 0.0
    z: float = 0.0


class LossOptions(TypedDict, total=False):
    """Name the options of `Head.nll`, which describes them."""

    weight: Tensor | None
    label_smoothing: float
    ignore_index: int | None
    reduction: str
    impl: str
    memory: int | None
    accuracy: bool
    filter_gradients: bool
    entropy: bool
    z_loss: float
    kept_tokens: int | None


def check_names(options: LossOptions) -> None:
    """Refuse an option that the loss does not have, and name the nearest."""
    known = [*LossOptions.__annotations__]
    for name in options:
        if name not in known:
            raise TypeError(f"nll has no argument {name!r}{did_you_mean(name, known)}")


@dataclass
class LossPlan:
    """Describe one call of `Head.nll`, flattened: N tokens, F features, M classes."""

    head: AnyHead
    features: Tensor  # [N, F]
    target: Any  # [N] int64, all in range: ignored tokens get any class
    random_state: Any  # highrank_plugins.heads.random_state.RandomState
    # the options
    weight: Tensor | None = None  # [N]
    label_smoothing: float = 0.0
    ignore_index: int | None = None
    reduction: str = "none"  # implementations have sums for means
    impl: str = "auto"
    memory: int | None = None
    accuracy: bool = False
    filter_gradients: bool = False
    entropy: bool = False
    z_loss: float = 0.0  # factor of lse², or of Σ_k lse_k² for a mixture
    kept_tokens: int | None = None
    # what follows from them
    own: bool = False  # whether the layer is not this package's, see `own_layers.ours`
    most: int | None = None  # tokens of a chunk, where a check wants several of a few tokens
    falls_back: bool = False  # to another implementation, where the first choice cannot serve
    split: Any = None  # a VocabularyParallel, where the head has the classes of this process alone
    ignored: Tensor | None = None  # [N] bool
    # a `targets.Target`: `target` then holds row numbers 0..N−1, on the CPU, and `label` its labels
    soft: Any = None
    label: Tensor | None = None  # [N]

    def take(self, soft: Any) -> None:
        """Compute a `targets.Target`, whose labels, if any, are the targets so far."""
        self.soft, self.label = soft, None if soft.labels is None else self.target
        self.target = torch.arange(len(self.target), device="cpu")

    def hard(self) -> LossPlan:
        """Return the plan with a class in the place of a `targets.Target`, to check a layer."""
        if self.soft is None:
            return self
        zeros = torch.zeros(len(self.target), dtype=torch.int64, device=self.features.device)
        return replace(self, soft=None, label=None, target=zeros, accuracy=True)

    def keep(self, index_n: Tensor) -> None:
        """Leave out all tokens but those of the numbers `index_n`, which keep masks and noise."""
        self.features = self.features.index_select(0, index_n)
        if self.soft is None:
            self.target = self.target[index_n]
        else:
            self.target = self.target[: len(index_n)]
            self.label = None if self.label is None else self.label[index_n]
        self.ignored = None if self.ignored is None else self.ignored[index_n]
        self.weight = None if self.weight is None else self.weight[index_n]
        self.random_state = self.random_state.of_tokens(index_n)

    @property
    def num_classes(self) -> int:
        """Return M, also where the head has a part of the classes."""
        return int((self.split or self.head).num_classes)

    @property
    def smooth(self) -> bool:
        """Whether Σ_x −log P_x is needed at all."""
        return self.label_smoothing > 0

    @property
    def smoothing_weight(self) -> float:
        """Return ε_i, the factor of Σ_x −log P_x; 1 for a `targets.Target`."""
        if self.soft is not None:
            return 1.0
        return self.label_smoothing / max(self.num_classes - 1, 1)

    @property
    def target_weight(self) -> float:
        """Return 1 − ε − ε_i, the factor of −log P_target."""
        return 1 - self.label_smoothing - self.smoothing_weight

    @property
    def class_weights(self) -> ClassWeights:
        total = self.target_weight + self.num_classes * self.smoothing_weight
        return ClassWeights(total, self.target_weight, self.smoothing_weight, self.z_loss)

    def scores_of(self, log_probs_NM: Tensor, target_N: Tensor) -> Scores:
        """Return the scores of classes, given all log P, in which nll and Σ are differentiable."""
        fixed_NM = log_probs_NM.detach()
        return Scores(
            -log_probs_NM.gather(-1, target_N.unsqueeze(-1)).squeeze(-1),
            -log_probs_NM.sum(-1) if self.smooth else None,
            fixed_NM.argmax(-1) == target_N if self.accuracy else None,
            torch.special.entr(fixed_NM.exp()).sum(-1) if self.entropy else None,
        )

    def output(self, scores: Scores, start: int, stop: int) -> LossOutput:
        """Return loss and scores [n] of the tokens start..stop−1; 0 (or False) where ignored."""
        nll, smooth_sum, correct, entropy, square_norm = scores
        loss = nll
        if smooth_sum is not None and self.soft is not None:
            loss = smooth_sum
        elif smooth_sum is not None:
            loss = self.target_weight * nll + self.smoothing_weight * smooth_sum
        if square_norm is not None:
            loss = loss + self.z_loss * square_norm
        if self.weight is not None:
            loss = loss * self.weight[start:stop].to(loss.dtype)
        found = LossOutput(loss, nll.detach(), correct, entropy)
        return found.map(lambda t: self.blank(t, start, stop))

    def blank(self, values: Tensor, start: int, stop: int) -> Tensor:
        """Return `values` [n] of the tokens start..stop−1, 0 (or False) where ignored."""
        return values if self.ignored is None else values.masked_fill(self.ignored[start:stop], 0)


class KernelFunction(NamedTuple):
    """Identify an f that compiled kernels know: a family of functions, and its parameters.

    | family | f(z) | numbers | tables |
    |---|---|---|---|
    | identity | z | | |
    | gss | z + (k − 1) log σ(z − c) | c, k | |
    | logistic | a σ((z + b) / s) + d | a, b, s, d | |
    | multimax | see `heads.pointwise.MultiMax` | | thresholds, strengths, [4] each |
    | plif | see `heads.pointwise.PLIF` | T, D | slopes, left, [Q] each |
    """

    family: str
    numbers: tuple[float, ...] = ()  # fixed before training
    tables: tuple[str, ...] = ()  # names of `Pointwise.tensors`, all of one length


# -- what kernels get of a chunk ------------------------------------------------------------------


class SoftmaxBlock(NamedTuple):
    """Hold a block of tokens with one softmax each, whose gradient is written in place."""

    logits_NM: Tensor  # becomes its gradient
    target_N: Tensor
    scale_N: Tensor | None  # factor of each token's loss; None: scores only, logits are lost
    weights: ClassWeights
    weight_NM: Tensor | None = None  # that of each class, of a `targets.Target`

    def rows(self, a: int, b: int) -> SoftmaxBlock:
        """Return the tokens a..b−1, before they have weights."""
        scale_N = None if self.scale_N is None else self.scale_N[a:b]
        return SoftmaxBlock(self.logits_NM[a:b], self.target_N[a:b], scale_N, self.weights)


class MixtureBlock(NamedTuple):
    """Hold a block of tokens of a Mixture of Softmaxes; gradients are written in place."""

    logits_NKM: Tensor  # becomes its gradient
    log_prior_NK: Tensor  # log π, normalised
    target_N: Tensor
    scale_N: Tensor | None  # factor of each token's loss; None: scores only
    factor_NK: Tensor  # becomes the factor that the gradient of the logits still lacks
    grad_prior_NK: Tensor  # becomes the gradient of log π
    weight_NM: Tensor | None = None  # that of each class, of a `targets.Target`

    def tokens(self, which: slice | Tensor) -> MixtureBlock:
        """Return some of the tokens: views for a slice, copies for indices."""
        parts: list[Any] = [None if t is None else t[which] for t in self]
        return MixtureBlock(*parts)


class GateProduct(NamedTuple):
    """Hold what a tree's gate logits are: inputs · weights, plus what is in their place."""

    inputs_JNC: Tensor
    weights_SC: Tensor
    adds: bool  # whether the gates' memory holds a summand; else it holds anything


class TreeBlock(NamedTuple):
    """Hold the leaves and gates of a block of Mixtape's tokens, which become their gradients."""

    leaves_NKS: Tensor
    gates_JNS: Tensor  # logits
    product: GateProduct | None  # the gate logits, if and only if `computes_gates`

    def rows(self, a: int, b: int) -> TreeBlock:
        product = self.product
        if product is not None:
            product = product._replace(inputs_JNC=product.inputs_JNC[:, a:b])
        return TreeBlock(self.leaves_NKS[a:b], self.gates_JNS[:, a:b], product)


def places(target_N: Tensor, values: Tensor) -> Tensor:
    """Return the index [n, ..., 1] of the targets among values [n, ..., M]."""
    return target_N.view(-1, *[1] * (values.dim() - 1)).expand(*values.shape[:-1], 1)
