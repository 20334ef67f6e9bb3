"""How much of the gradient of a head's logits gets through its vocabulary matrix."""

from __future__ import annotations

from torch import Tensor

from ..analysis.head_gradient import logit_gradient
from ..heads import Head
from .column_space import squared_norms


def kept_and_whole(
    head: Head, to_basis: Tensor, features: Tensor, target: Tensor, numbers: int
) -> tuple[float, float]:
    """(‖G P‖², ‖G‖²) of the logits' gradient G of some tokens, see `squared_norms`.

    Args:
        to_basis: see `ColumnSpace`.
        features, target: [n, F] and [n].
        numbers: of logits that exist at a time.
    Raises:
        ValueError: a layer of another kind than `logit_gradient` knows.
    """
    kept = whole = 0.0
    size = tokens_at_a_time(head, numbers)
    for some, words in zip(features.split(size), target.split(size), strict=True):
        rows = logit_gradient(head, some, words).flatten(0, 1)
        part, total = squared_norms(head.weight, to_basis, rows)
        kept, whole = kept + part, whole + total
    return kept, whole


def tokens_at_a_time(head: Head, numbers: int) -> int:
    """So few that they have no more than so many logits, K · M each; at least one."""
    return max(1, numbers // (getattr(head, "components", 1) * head.num_classes))
