"""Define what every output layer has in common.

The name of a tensor may end in its shape, as in `logits_NKM`, here and in `losses/`:

    N tokens (n in texts: of a chunk)     M classes
    F feature size (the papers' d1)       S frequent classes, with gates of their own
    D embedding size (d)                  R = M − S rare classes
    K components                          G hidden units of a gate (d2)
    J = K − 1 gates                       C columns of the gates' product, G + 2 or G + 1
"""

from __future__ import annotations

from typing import Any, ClassVar, Self, Unpack

import torch
from torch import Tensor, nn

from highrank_plugins.common.names import layer_name
from highrank_plugins.heads import checks
from highrank_plugins.heads.checks import integer
from highrank_plugins.heads.log_probs import (
    at_target,
    below_largest,
    flat_features,
    log_probs_of_chunks,
    mix,
    widen,
)
from highrank_plugins.heads.pointwise import POINTWISE, Pointwise, build_pointwise
from highrank_plugins.heads.random_state import RandomState
from highrank_plugins.heads.registry import Registry, keep_what_holds, named_tensors
from highrank_plugins.heads.vocabulary import function_of_matrix
from highrank_plugins.losses import LossOptions, LossOutput, LossPlan, Target, compute_nll
from highrank_plugins.losses.chunking import join_chunks
from highrank_plugins.losses.fused import FusedLoss
from highrank_plugins.losses.plan import Named, check_names
from highrank_plugins.own_layers.ours import same_form

# attributes that follow from the logits, or from the log-probabilities, in a way for every layer
OF_LOGITS = ("fused", "linear_logits", "logit_vectors", "nll_of_logits", "log_weights",
             "class_gates", "weights_by_class")  # fmt: skip
OF_LOG_PROBS = ("chunk_nll", "chunk_log_norms", "logits", "has_logits", *OF_LOGITS)


class Head(nn.Module):
    """Map features [..., F] to log-probabilities [..., M]: an output layer.

    A subclass implements `chunk_logits`, or else `chunk_log_probs`. Both take a run of n tokens and
    the result of `tensors()`. The losses can thus cut a batch into chunks and gather the gradient
    of each tensor. A subclass may also name a fused loss.

    Args:
        num_classes: M ≥ 1.
        feature_dim: F, size of the trunk's features.
        embed_dim: D, size of a row of the vocabulary matrix; default F.
        weight: vocabulary matrix [M, D] to share (a tied embedding); None makes one, U(±0.1).
        bias: whether there is an output bias [M], initially 0.
        pointwise: a pointwise function, or its name.
    """

    needs: ClassVar = {"chunk_logits": OF_LOGITS, "chunk_log_probs": OF_LOG_PROBS}
    constants: tuple[str, ...] | None = None  # see `Registry.constants`
    no_options: tuple[str, ...] = ()  # arguments that models and programs set, not users
    needs_sorted_classes: str | None = None  # why, if class ids must be sorted by falling count
    states_function = True  # False: a model's configuration has the options, and is compared
    fused: type[FusedLoss] | None = None  # loss with its gradient written out, of `token_inputs`
    mixes: ClassVar[bool] = False  # whether K softmaxes are mixed, by the weights of `log_prior`
    linear_logits: ClassVar[bool] = False  # whether logits are W g + b, which ranks the classes
    weights_by_class: ClassVar[bool] = False  # whether weights of components depend on the class
    weight: nn.Parameter
    bias: nn.Parameter | None
    parameter_roles = checks.parameter_roles
    get_extra_state, set_extra_state = checks.function_as_bytes, checks.check_function

    def __init__(
        self, num_classes: int, feature_dim: int, embed_dim: int | None = None,
        weight: nn.Parameter | None = None, bias: bool = True,
        pointwise: str | Pointwise = "identity",
    ) -> None:  # fmt: skip
        super().__init__()
        self.num_classes = integer("num_classes", num_classes)
        self.feature_dim = integer("feature_dim", feature_dim)
        self.embed_dim = integer("embed_dim", feature_dim if embed_dim is None else embed_dim)
        self.check_sizes()
        checks.boolean("bias", bias)
        self.pointwise = build_pointwise(pointwise)
        self.shares_weight = weight is not None
        self.weight = checks.vocabulary_matrix(weight, (num_classes, self.embed_dim))
        self.register_parameter("bias", nn.Parameter(torch.empty(num_classes)) if bias else None)
        Head.reset_parameters(self, submodules=False)
        self._prepared: tuple[list[object], Named, list[Tensor]] | None = None  # see `log_probs`

    def __init_subclass__(cls, **options: Any) -> None:
        super().__init_subclass__(**options)
        keep_what_holds(cls)

    # -- what a structure defines ------------------------------------------------------------

    def reset_parameters(self, submodules: bool = True) -> None:
        """Give the parameters initial values, as the constructor does from the same seed.

        A shared matrix keeps its values. A subclass with further parameters extends this.

        Args:
            submodules: also reset the modules within; False serves loaders that visit each module.
        """
        if submodules:
            self.pointwise.reset_parameters()
        if not self.shares_weight:
            checks.fill_matrix(self, lambda matrix: nn.init.uniform_(matrix, -0.1, 0.1))
        if self.bias is not None:
            nn.init.zeros_(self.bias)

    def check_sizes(self) -> None:
        """Raise ValueError if the structure cannot have these sizes; the constructor calls it."""

    def chunk_logits(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        """Return logits z [n, M] of features [n, F], before the pointwise function.

        A head that `mixes` returns those of its K softmaxes [n, K, M].
        """
        raise NotImplementedError

    def log_prior(self, features: Tensor, tensors: Named) -> Tensor:
        """Return log π [n, K], at least float32, of features [n, F]."""
        raise NotImplementedError

    def chunk_log_probs(
        self, features: Tensor, tensors: Named, random_state: RandomState
    ) -> Tensor:
        """Return log-probabilities [n, M], at least float32, of features [n, F]."""
        log_prior_NK = self.log_prior(features, tensors) if self.mixes else None
        log_probs = self._values(features, tensors, random_state).log_softmax(-1)
        return log_probs if log_prior_NK is None else mix(log_prior_NK.unsqueeze(-1) + log_probs)

    def chunk_nll(
        self, features: Tensor, target: Tensor, tensors: Named,
        random_state: RandomState, smooth: bool,
    ) -> tuple[Tensor, Tensor | None]:  # fmt: skip
        """Return −log P(target) [n] and, if `smooth`, Σ_x −log P(x) [n] of features [n, F]."""
        # Σ_x log P_x does not decompose over components
        if self._has_own_log_probs or (self.mixes and smooth):
            log_probs_NM = self.chunk_log_probs(features, tensors, random_state)
            return -at_target(target, log_probs_NM), -log_probs_NM.sum(-1) if smooth else None
        # nll = lse(f) − f_y and Σ_x −log P_x = M lse − Σ f: autograd keeps one [n, M]
        values = below_largest(self._values(features, tensors, random_state))
        log_norm = values.logsumexp(-1)
        nll = log_norm - at_target(target, values)
        if self.mixes:
            return -mix(self.log_prior(features, tensors) - nll), None
        return nll, self.num_classes * (log_norm - values.mean(-1)) if smooth else None

    def chunk_log_norms(
        self, features: Tensor, tensors: Named, random_state: RandomState
    ) -> Tensor:
        """Return the log-sum-exp of the values of each softmax [n, K], which `z_loss` squares."""
        if not self.has_log_norms:
            title = f"z_loss: {layer_name(self)}"
            raise ValueError(f"{title} has no chunk_log_norms; leave it out (--head-z-loss)")
        return self._values(features, tensors, random_state).logsumexp(-1, keepdim=not self.mixes)

    def _values(self, features: Tensor, tensors: Named, random_state: RandomState) -> Tensor:
        return self.apply_pointwise(self.chunk_logits(features, tensors, random_state), tensors)

    def floats_per_token(self) -> int:
        """Return how many numbers a chunk holds per token at its widest; it sizes the chunks."""
        return 4 * self.num_classes

    def token_inputs(self, features: Tensor, tensors: Named, random_state: RandomState) -> Named:
        """Return the inputs of `fused` per token, e.g. contexts [n, ...], of features [n, F]."""
        raise NotImplementedError

    def token_floats(self) -> int:
        """Count numbers per token in `token_inputs`, their gradients and intermediate results."""
        return 2 * self.feature_dim

    def sample_masks(self, leading: torch.Size, like: Tensor) -> RandomState:
        """Return dropout masks and a noise seed for features [*leading, F]."""
        return RandomState()

    def tensors(self) -> Named:
        """Return the tensors of `chunk_logits`: parameters, or tensors prepared from them."""
        own = {n: t for n, t in named_tensors(self).items() if not n.startswith("pointwise.")}
        if self.bias is not None and not self.pointwise.takes_infinity():
            own["bias"] = own["bias"].clamp_min(-(torch.finfo(own["bias"].dtype).max ** 0.5))
        return own | {f"pointwise.{name}": t for name, t in self.pointwise.tensors().items()}

    def function(self) -> dict[str, Any]:
        """Return the names of the function's parts, and options that no parameter shows."""
        own = {f"pointwise.{n}": v for n, v in POINTWISE.function(self.pointwise).items()}
        return HEADS.function(self) | own | dict(function_of_matrix(self))

    def _save_to_state_dict(self, destination: Named, prefix: str, keep_vars: bool) -> None:
        super()._save_to_state_dict(destination, prefix, keep_vars)
        if checks.omits_function(self):
            del destination[f"{prefix}_extra_state"]

    def _load_from_state_dict(self, state: Named, prefix: str, *others: Any) -> None:
        super()._load_from_state_dict(state, prefix, *others)
        checks.forgive_function(self, prefix, *others)

    def __getstate__(self) -> dict[str, Any]:
        return vars(self) | {"_prepared": None}  # copies and pickles prepare their own

    # -- for measures --------------------------------------------------------------------------

    @property
    def _has_own_log_probs(self) -> bool:
        """Whether everything follows from log P, because logits do not say it."""
        return type(self).chunk_log_probs is not Head.chunk_log_probs

    @property
    def has_log_norms(self) -> bool:
        """Whether `chunk_log_norms` is known: from logits, or written out."""
        return type(self).chunk_log_norms != Head.chunk_log_norms or not self._has_own_log_probs

    @property
    def has_logits(self) -> bool:
        """Whether log P = log_softmax(f(z)) for one logit vector z, which `logits` returns."""
        return not self.mixes and not self._has_own_log_probs

    def logits(self, features: Tensor) -> Tensor:
        """Return f(z) [..., M] of features [..., F]; raise ValueError without `has_logits`."""
        if not self.has_logits:
            raise ValueError(f"{layer_name(self)} has no logits; head(features) has log P")
        values = self._values(self.flatten_features(features), self.tensors(), RandomState())
        return values.view(*features.shape[:-1], self.num_classes)

    def logit_vectors(self, features: Tensor, tensors: Named) -> Tensor:
        """Return z [n, K, M], at least float32, before f: log P, K = 1, without `chunk_logits`."""
        own = self._has_own_log_probs
        compute = self.chunk_log_probs if own else self.chunk_logits
        z = widen(compute(features, tensors, RandomState()))
        return z if self.mixes and not own else z.unsqueeze(1)

    def nll_of_logits(self, z: Tensor, target: Tensor, features: Tensor, tensors: Named) -> Tensor:
        """Return −log P(target) [n], differentiable in z [n, K, M] of `logit_vectors`."""
        own = self._has_own_log_probs
        values = z if own else self.apply_pointwise(z, tensors)
        found_NK = at_target(target, values.log_softmax(-1))
        if own or not self.mixes:
            return -found_NK.squeeze(1)
        return -mix(self.log_prior(features, tensors) + found_NK)

    def log_weights(self, features: Tensor, target: Tensor, tensors: Named) -> Tensor | None:
        """Return log π [n, K], weights of components for the targets; None without components."""
        return None

    def class_gates(self, features: Tensor, tensors: Named) -> Tensor | None:
        """Return π [n, K, S + 1] in float64: of each frequent class, then of all others, if any."""
        return None

    # -- what users call ---------------------------------------------------------------------

    def forward(
        self, features: Tensor, target: Tensor | Target | None = None, *, scores: bool = False,
        **options: Any,
    ) -> Tensor | LossOutput:  # fmt: skip
        """Return `log_probs`, or with a target `nll`, which takes the options.

        With `scores` it is `logits` for heads that have them: what a sampler divides by T.
        FSDP2 units, DDP, hooks and wrappers act on calls of the module, not of its methods.
        """
        if target is not None:
            return self.nll(features, target, **options)
        if options:
            names = ", ".join(options)
            raise TypeError(f"head(features) is log P; {names}: only with target=, for the loss")
        return self.logits(features) if scores and self.has_logits else self.log_probs(features)

    def log_probs(self, features: Tensor) -> Tensor:
        """Return log P [..., M] of features [..., F]: float64 for float64 features, else float32.

        Without gradients it runs in chunks: a mixture's K softmaxes exist for one at a time.
        """
        parts = list(log_probs_of_chunks(self, features))
        out = torch.cat(parts) if len(parts) != 1 else parts[0]
        return out.view(*features.shape[:-1], self.num_classes)

    @torch.no_grad()
    def top_k(self, features: Tensor, k: int = 1) -> tuple[Tensor, Tensor]:
        """Return the k largest log P [..., k], descending, and their int64 classes, by chunks."""
        parts = (log_probs.topk(k) for log_probs in log_probs_of_chunks(self, features))
        values, classes = join_chunks(len(self.flatten_features(features)), parts)
        return values.view(*features.shape[:-1], k), classes.view(*features.shape[:-1], k)

    def nll(
        self, features: Tensor, target: Tensor | Target, **options: Unpack[LossOptions]
    ) -> LossOutput:
        """Return the negative log-likelihood of `target` without N × M log-probabilities.

        loss = w [(1 − ε − ε_i) nll + ε_i Σ_x −log P_x + ζ Σ_k lse_k²] with ε_i = ε/(M − 1).

        Args:
            features: [..., F].
            target: int64 [...], in [0, M) or `ignore_index`; or a target of `losses.targets`.
            weight: constant w per token [...]; it multiplies `loss`, not `nll`.
            label_smoothing: ε in [0, 1); default 0.
            ignore_index: tokens with this target give 0, no gradient, and cost nothing. torch's
                default is −100; ours ignores none, and a target outside [0, M) is then an error.
            reduction: "none" (per token, shape of target; default), or scalars: "sum", and "mean"
                over the tokens that are not ignored. As in torch's `cross_entropy`, a weighted mean
                divides the loss by the sum of these tokens' weights; nll and correct are plain
                means. Without tokens all are NaN, and gradients zero.
            impl: one of `highrank_plugins.losses.IMPLEMENTATIONS`, or "auto", the default.
            memory: bytes that a chunk may take; None chooses.
            accuracy: also return `correct`, where the most probable class is the target.
            filter_gradients: skip, in the backward products of a chunk, the classes whose gradient
                is below the resolution of the dtype; `losses.fused.kept_columns` states the bound.
                Not exact; synchronises with a GPU.
            entropy: also return `entropy`, −Σ_x P_x log P_x in nats.
            z_loss: ζ ≥ 0, the factor of the squared log-sum-exp of f(z), which keeps logits small
                (PaLM: 1e-4). A Mixture of Softmaxes adds up the squares of its K softmaxes.
            kept_tokens: number of tokens that are not ignored, or more; a GPU must be told.
        Returns:
            `LossOutput`; only its `loss` carries gradients. float32, or float64 for float64.
        """
        self._prepared = None if torch.is_grad_enabled() else self._prepared
        flat, masks = self.flatten_features(features), self.sample_masks
        check_names(options)
        plan = LossPlan(self, flat, target, masks(features.shape[:-1], features), **options)
        return compute_nll(plan, features.shape[:-1])

    def train(self, mode: bool = True) -> Self:
        """Set the mode as `nn.Module.train` does, and discard what was prepared for inference."""
        self._prepared = None
        return super().train(mode)

    flatten_features = flat_features

    def apply_pointwise(self, logits: Tensor, tensors: Named) -> Tensor:
        """Return f of widened logits."""
        own = {n[10:]: t for n, t in tensors.items() if n.startswith("pointwise.")}
        return same_form(self.pointwise, self.pointwise.apply_to(wide := widen(logits), own), wide)

    def extra_repr(self) -> str:
        names = "num_classes", "feature_dim", "embed_dim"
        return ", ".join(f"{name}={getattr(self, name)}" for name in names)


HEADS: Registry[type[Head]] = Registry(
    "head", ("num_classes", "feature_dim", "embed_dim", "weight", "bias", "pointwise"), Head
)
register_head = HEADS.register
