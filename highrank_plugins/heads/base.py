"""Define what every output layer has in common.

The name of a tensor may end in its shape, a letter for each dimension, as in `logits_NKM`:

    N tokens (n in texts: of a chunk)     M classes
    F feature size (the papers' d1)       S frequent classes, with gates of their own
    D embedding size (d)                  R = M − S rare classes
    K components                          G hidden units of a gate (d2)
    J = K − 1 gates                       C columns of the gates' product, G + 2 or G + 1

`losses/` follows the same legend.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterator
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import inheritance
from highrank_plugins.heads.checks import check_dtype, check_shared_weight, integer, widen
from highrank_plugins.heads.command_line import CommandLine
from highrank_plugins.heads.pointwise import Pointwise, build_pointwise
from highrank_plugins.heads.prepared import PreparedTensors, named_tensors
from highrank_plugins.heads.random_state import ChunkRandomState, RandomState
from highrank_plugins.heads.registry import Registry
from highrank_plugins.losses import ChunkResults, LossOutput, LossPlan, compute_nll
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.own_layers import same_form

HEADS: Registry[type[Head]] = Registry(
    "head",
    ("num_classes", "feature_dim", "embed_dim", "weight", "bias", "pointwise"),
    base=lambda: Head,
)
register_head = HEADS.register


class Head(CommandLine, nn.Module):
    """Map features [..., F] to log-probabilities [..., M]: an output layer.

    A subclass implements `chunk_log_probs`, and may implement a cheaper loss in `chunk_nll`. Both
    take a run of n tokens and the result of `tensors()`. The losses can thus cut a batch into
    chunks and gather the gradient of each tensor.

    Args:
        num_classes: M ≥ 1.
        feature_dim: F, size of the trunk's features.
        embed_dim: D, size of a row of the vocabulary matrix; default F.
        weight: vocabulary matrix [M, D] to share (a tied embedding); None makes one, U(±0.1).
        bias: whether there is an output bias [M], initially 0.
        pointwise: a pointwise function, or its name.
    Raises:
        ValueError: sizes that do not fit, unknown pointwise function.
    """

    # the loss with its gradient written out, if any; needs `token_inputs`; see `inheritance`
    fused: type[FusedLoss] | None = None
    # options that change the function but no parameter; see `Registry.constants`
    constants: ClassVar[tuple[str, ...] | None] = None
    # whether log P = log_softmax(f(z)) for one logit vector z, which `logits` returns
    has_logits: ClassVar[bool] = False
    # whether the logits are W g + b, so that a linear function ranks the classes
    linear_logits: ClassVar[bool] = False
    # whether the weights of components depend on the class, as Mixtape's gates do
    weights_by_class: ClassVar[bool] = False
    retain_dropout = False  # apply dropout in evaluation, too, to sample from all masks

    weight: nn.Parameter
    bias: nn.Parameter | None

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        inheritance.follow_log_probs(cls, Head)

    def __init__(
        self,
        num_classes: int,
        feature_dim: int,
        embed_dim: int | None = None,
        weight: nn.Parameter | None = None,
        bias: bool = True,
        pointwise: str | Pointwise = "identity",
    ) -> None:
        super().__init__()
        self.num_classes = integer("num_classes", num_classes)
        self.feature_dim = integer("feature_dim", feature_dim)
        self.embed_dim = integer("embed_dim", feature_dim if embed_dim is None else embed_dim)
        self.check_sizes()
        self.pointwise = build_pointwise(pointwise)
        if weight is None:
            weight = nn.Parameter(torch.empty(num_classes, self.embed_dim).uniform_(-0.1, 0.1))
        check_shared_weight(weight, (num_classes, self.embed_dim))
        self.weight = weight
        self.register_parameter("bias", nn.Parameter(torch.zeros(num_classes)) if bias else None)
        self._prepared = PreparedTensors()

    # -- what a structure defines ------------------------------------------------------------

    def check_sizes(self) -> None:
        """Raise ValueError if the structure cannot have these sizes; the constructor calls it."""

    @abstractmethod
    def chunk_log_probs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return log-probabilities [n, M], at least float32, of features [n, F]."""
        raise NotImplementedError

    def chunk_nll(
        self,
        features: Tensor,
        target: Tensor,
        tensors: dict[str, Tensor],
        random_state: ChunkRandomState,
        smooth: bool,
    ) -> tuple[Tensor, Tensor | None]:
        """Return −log P(target) [n] and, if `smooth`, Σ_x −log P(x) [n] of features [n, F]."""
        log_probs_NM = self.chunk_log_probs(features, tensors, random_state)
        return _nll_of(log_probs_NM, target), -log_probs_NM.sum(-1) if smooth else None

    def chunk_log_norms(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> Tensor:
        """Return the log-sum-exp of the values of each softmax [n, K], which `z_loss` squares.

        Raises:
            ValueError: the layer does not define them.
        """
        raise ValueError(
            f"z_loss: {layer_name(self)} has no chunk_log_norms; leave it out (--head-z-loss)"
        )

    def floats_per_token(self) -> int:
        """Return how many numbers a chunk holds per token at its widest; it sizes the chunks."""
        return 4 * self.num_classes

    def token_inputs(
        self, features: Tensor, tensors: dict[str, Tensor], random_state: ChunkRandomState
    ) -> dict[str, Tensor]:
        """Return the inputs of `fused` per token, e.g. contexts [n, ...], of features [n, F]."""
        raise NotImplementedError

    def token_floats(self) -> int:
        """Count numbers per token in `token_inputs`, their gradients and intermediate results."""
        return 2 * self.feature_dim

    def sample_masks(self, leading: torch.Size, like: Tensor) -> RandomState:
        """Return dropout masks and a noise seed for features [*leading, F].

        Evaluation has none, unless `retain_dropout` asks for the masks.
        """
        return RandomState()

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors of `chunk_log_probs`: parameters, or tensors prepared from them."""
        own = {n: t for n, t in named_tensors(self).items() if not n.startswith("pointwise.")}
        prepared = {f"pointwise.{name}": t for name, t in self.pointwise.tensors().items()}
        return own | prepared

    # -- for measures; the defaults are right for one softmax ----------------------------------

    def logits(self, features: Tensor) -> Tensor | None:
        """Return f(z) [n, M] of features [n, F], whose log_softmax `log_probs` is.

        None where K logit vectors are mixed as probabilities.
        """
        return None

    def logit_vectors(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """Return the K logit vectors of each token [n, K, M], at least float32.

        They are the products with the vocabulary matrix, before f and before components are mixed.
        By default they are the log-probabilities, as one vector.
        """
        return self.chunk_log_probs(features, tensors, ChunkRandomState()).unsqueeze(1)

    def nll_of_logits(
        self, z: Tensor, target: Tensor, features: Tensor, tensors: dict[str, Tensor]
    ) -> Tensor:
        """Return −log P(target) [n], differentiable in the logit vectors z [n, K, M]."""
        return _nll_of(z.squeeze(1).log_softmax(-1), target)

    def log_weights(
        self, features: Tensor, target: Tensor, tensors: dict[str, Tensor]
    ) -> Tensor | None:
        """Return log π [n, K], the weights of the components for the targets.

        None without components.
        """
        return None

    def class_gates(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor | None:
        """Return π [n, K, S + 1] in float64: of each class below S, then of all others.

        None where weights do not depend on the class.
        """
        return None

    def products(self, tokens: int) -> list[tuple[int, int, int]]:
        """Return (rows, inner, columns) of the matrix products of a forward pass.

        Each has two more of its size in the backward pass.
        """
        return [(tokens, self.embed_dim, self.num_classes)]

    # -- what users call ---------------------------------------------------------------------

    def forward(self, features: Tensor) -> Tensor:
        """Return `log_probs`."""
        return self.log_probs(features)

    def log_probs(self, features: Tensor) -> Tensor:
        """Return log P [..., M] of features [..., F]: float64 for float64 features, else float32.

        Without gradients the batch runs in chunks, so that a mixture's K softmaxes exist for one
        chunk at a time.

        Raises:
            ValueError: features of another size.
        """
        parts = list(self._log_probs_of_chunks(features))
        out = torch.cat(parts) if len(parts) != 1 else parts[0]
        return out.view(*features.shape[:-1], self.num_classes)

    @torch.no_grad()
    def top_k(self, features: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
        """Return the k largest log P [..., k], descending, and their int64 classes, by chunks.

        Raises:
            ValueError: features of another size, or k outside [1, M].
        """
        if not 1 <= k <= self.num_classes:
            raise ValueError(f"k: expected 1 to {self.num_classes} classes, got {k}")
        parts = (log_probs.topk(k) for log_probs in self._log_probs_of_chunks(features))
        values, classes = ChunkResults(features.shape[:-1].numel(), parts).columns
        return values.view(*features.shape[:-1], k), classes.view(*features.shape[:-1], k)

    def _log_probs_of_chunks(self, features: Tensor) -> Iterator[Tensor]:
        """Yield log P [n, M] chunk by chunk; the whole batch if a graph is needed."""
        flat = self.flatten_features(features)
        random_state = self.sample_masks(features.shape[:-1], features)
        tensors = self._prepared.of(self)
        needs_graph = torch.is_grad_enabled() and (
            features.requires_grad or any(t.requires_grad for t in tensors.values())
        )
        tokens = size = flat.size(0)
        if not needs_graph:
            size = tokens_within(flat, self.floats_per_token(), None, most=tokens)
        for start, stop in chunk_ranges(0, tokens, size):
            yield self.chunk_log_probs(flat[start:stop], tensors, random_state.rows(start, stop))

    def nll(
        self,
        features: Tensor,
        target: Tensor,
        *,
        weight: Tensor | None = None,
        label_smoothing: float = 0.0,
        ignore_index: int | None = None,
        reduction: str = "none",
        impl: str = "auto",
        memory: int | None = None,
        accuracy: bool = False,
        filter_gradients: bool = False,
        entropy: bool = False,
        z_loss: float = 0.0,
    ) -> LossOutput:
        """Return the negative log-likelihood of `target`, without holding N × M log-probabilities.

        loss = w [(1 − ε − ε_i) nll + ε_i Σ_x −log P_x + ζ Σ_k lse_k²] with ε_i = ε/(M − 1).

        Args:
            features: [..., F].
            target: int64 [...], in [0, M) or `ignore_index`.
            weight: constant w per token [...]; it multiplies `loss`, not `nll`.
            label_smoothing: ε in [0, 1).
            ignore_index: tokens with this target give 0 and no gradient. torch's default is −100;
                here None ignores no token, and a target outside [0, M) is then an error.
            reduction: "none" (per token, shape of target), or scalars: "sum", and "mean" over the
                tokens that are not ignored. As in torch's `cross_entropy`, a weighted mean divides
                the loss by the sum of these tokens' weights; nll and correct are plain means. All
                are NaN where every token is ignored, and gradients zero.
            impl: one of `highrank_plugins.losses.IMPLEMENTATIONS`, or "auto".
            memory: bytes that a chunk may take; None chooses.
            accuracy: also return `correct`, where the most probable class is the target.
            filter_gradients: skip, in the backward products of a chunk, the classes whose gradient
                is below the resolution of the dtype; `losses.fused.filtering` states the bound.
                Not exact; synchronises with a GPU.
            entropy: also return `entropy`, −Σ_x P_x log P_x in nats.
            z_loss: ζ ≥ 0, the factor of the squared log-sum-exp of f(z), which keeps logits small
                (PaLM: 1e-4). A Mixture of Softmaxes adds up the squares of its K softmaxes.
        Returns:
            `LossOutput`; only its `loss` carries gradients. float32, or float64 for float64.
        Raises:
            ValueError: sizes, targets or options out of range.
        """
        plan = LossPlan(
            self, self.flatten_features(features), target, weight,
            self.sample_masks(features.shape[:-1], features), label_smoothing, memory, accuracy,
            filter_gradients, entropy, z_loss,
        )  # fmt: skip
        return compute_nll(plan, features.shape[:-1], reduction, impl, ignore_index)

    def train(self, mode: bool = True) -> Self:
        """Set the mode as `nn.Module.train` does, and discard what was prepared for inference."""
        self._prepared.forget()
        return super().train(mode)

    # -- helpers of structures ---------------------------------------------------------------

    def flatten_features(self, features: Tensor) -> Tensor:
        """Reshape [..., F] to [N, F]; an error names both sizes, or both dtypes."""
        if features.dim() == 0 or features.size(-1) != self.feature_dim:
            raise ValueError(
                f"features: expected size {self.feature_dim} (feature_dim) in the last dimension, "
                f"got shape {tuple(features.shape)}"
            )
        check_dtype(features, self.named_parameters())
        return features.reshape(-1, self.feature_dim)

    def apply_pointwise(self, logits: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """Return f of widened logits."""
        prefix = "pointwise."
        own = {n.removeprefix(prefix): t for n, t in tensors.items() if n.startswith(prefix)}
        wide = widen(logits)
        return same_form(self.pointwise, self.pointwise.apply_to(wide, own), wide)

    def extra_repr(self) -> str:
        names = ("num_classes", "feature_dim", "embed_dim")
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


def _nll_of(log_probs_NM: Tensor, target_N: Tensor) -> Tensor:
    """Return −log P(target) [N]."""
    return -log_probs_NM.gather(-1, target_N.unsqueeze(-1)).squeeze(-1)
