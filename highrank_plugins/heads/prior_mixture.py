"""Share contexts and their prior between Mixture of Contexts and Mixture of Softmaxes."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import linear

from highrank_plugins.heads.base import Head
from highrank_plugins.heads.latents import Latents
from highrank_plugins.heads.pointwise import Pointwise
from highrank_plugins.heads.precision import widen


class PriorMixture(Latents, Head):
    """Mix with the prior π = softmax(Π g); `prior.weight` [K, F] holds Π, without bias.

    Args:
        components: K ≥ 1.
        context_scale: s, see `Latents`.
        dropout: rate on the contexts h.
        locked_dropout: one mask for all time steps of time-major features [T, B, F].
        num_classes, feature_dim, embed_dim, weight, bias, pointwise: as `Head`.
    Raises:
        ValueError: components < 1, context_scale not above 0, dropout outside [0, 1), and what
            `Head` refuses.
    """

    constants = ("context_scale",)

    def __init__(
        self, num_classes: int, feature_dim: int, embed_dim: int | None = None,
        weight: nn.Parameter | None = None, bias: bool = True,
        pointwise: str | Pointwise = "identity",
        components: int = 15, context_scale: float = 1.0,
        dropout: float = 0.0, locked_dropout: bool = False,
    ) -> None:  # fmt: skip
        super().__init__(num_classes, feature_dim, embed_dim, weight, bias, pointwise)
        self.make_latents(components, context_scale, dropout, locked_dropout)
        self.prior = nn.Linear(feature_dim, components, bias=False)

    def log_weights(self, features: Tensor, target: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        return self.log_prior(features, tensors)

    def _mixing_products(self, tokens: int) -> list[tuple[int, int, int]]:
        """Return the products that make contexts and prior, see `Head.products`."""
        contexts = (tokens, self.feature_dim, self.components * self.embed_dim)
        return [contexts, (tokens, self.feature_dim, self.components)]

    def log_prior(self, features: Tensor, tensors: dict[str, Tensor]) -> Tensor:
        """Return log π [n, K], at least float32, of features [n, F]."""
        return widen(linear(features, tensors["prior.weight"])).log_softmax(-1)
