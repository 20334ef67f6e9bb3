"""Define vocabulary matrices with fewer parameters than M D, which no embedding can be tied to."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import ClassVar

import torch
from torch import Tensor

from highrank_plugins.heads.checks import integer, positive
from highrank_plugins.heads.log_probs import widen
from highrank_plugins.heads.vocabulary.base import Vocabulary, register_vocabulary

BLOCK = 1024  # rows whose distances to the rows of a codebook exist at once


@register_vocabulary("low_rank")
class LowRank(Vocabulary):
    """Compute A B with A [M, r] and B [r, D]; at the start it is the nearest to the matrix.

    Args:
        rank: r, at most D.
    """

    option_help: ClassVar = {"rank": "rank r of the matrix, at most its width"}
    constants = ()
    may_be_tied = False

    def __init__(self, rank: int = 64) -> None:
        super().__init__()
        self.rank = integer("low_rank: rank", rank)

    def forward(self, tall: Tensor, wide: Tensor) -> Tensor:
        return tall @ wide

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        if self.rank > matrix.size(1):
            raise ValueError(
                f"low_rank: rank {self.rank} is above {matrix.size(1)}, the width of the matrix; "
                "use less"
            )
        return nearest(matrix, self.rank)


@torch.no_grad()
def nearest(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Return A [M, r] and B [r, D] of equal column and row norms, A B the nearest to a matrix."""
    rows = widen(matrix)
    _, vectors = torch.linalg.eigh((rows.t() @ rows).double())  # by rising eigenvalue
    wide = vectors[:, -rank:].t().to(rows.dtype)
    tall = rows @ wide.t()
    roots = tall.norm(dim=0).sqrt().clamp_min(torch.finfo(rows.dtype).tiny)
    return (tall / roots).to(matrix.dtype), (roots.unsqueeze(1) * wide).to(matrix.dtype)


@register_vocabulary("tiers")
class Tiers(Vocabulary):
    """Give classes rows of a width that falls with their frequency   (Baevski and Auli 2019).

    Tier t has rows A_t of width D / factor^t, which B_t maps to D; the first tier is as it is.
    Classes must be sorted by falling count.

    Args:
        shares: share of the classes in each tier, the most frequent first, separated by commas.
        factor: from the width of a tier to that of the next one.
    """

    option_help: ClassVar = {
        "shares": "shares of the classes in each tier, most frequent first; they add up to 1",
        "factor": "each tier's rows are narrower than the last one's by this factor",
    }
    constants = ()
    may_be_tied = False
    needs_sorted_classes = "the first tier of --head-vocabulary tiers is of the most frequent words"

    def __init__(self, shares: str = "0.1,0.3,0.6", factor: int = 4) -> None:
        super().__init__()
        self.shares, self.factor = str(shares), integer("tiers: factor", factor)
        try:
            self.parts = [positive("tiers: shares", float(word)) for word in shares.split(",")]
        except (AttributeError, ValueError):
            raise ValueError(
                f"tiers: shares: expected numbers above 0 such as 0.1,0.3,0.6, got {shares!r}"
            ) from None
        if abs(sum(self.parts) - 1) > 1e-6:
            raise ValueError(
                f"tiers: shares {shares} add up to {sum(self.parts):g}; they must cover the "
                "vocabulary: add up to 1"
            )

    def forward(self, first: Tensor, *factors: Tensor) -> Tensor:
        pairs = zip(factors[::2], factors[1::2], strict=True)
        return torch.cat([first, *(tall @ wide for tall, wide in pairs)])

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, ...]:
        classes, width = matrix.shape
        borders = [round(classes * share) for share in accumulate(self.parts, initial=0.0)]
        found: list[Tensor] = []
        for t, (a, b) in enumerate(pairwise(borders)):
            narrow = width // self.factor**t
            if a == b or not narrow:
                raise ValueError(
                    f"tiers: shares {self.shares}, factor {self.factor}: tier {t + 1} would have "
                    f"{b - a} of {classes} classes and rows of width {narrow}; use fewer tiers or "
                    "a smaller factor"
                )
            found += nearest(matrix[a:b], narrow) if t else [matrix[a:b].clone()]
        return (*found,)


@register_vocabulary("codebook")
class Codebook(Vocabulary):
    """Share K rows among all classes: w_x is row c_x of C [K, D]   (VQ-Logits, arXiv 2505.10202).

    C starts with rows that are drawn from the matrix, and the code c_x of a class is the nearest of
    them, once and for all. Classes of one code differ by their biases alone.

    Args:
        ratio: K / M, in (0, 1].
    """

    option_help: ClassVar = {"ratio": "rows of the codebook, as a share of the classes"}
    constants = ()
    may_be_tied = False
    codes: Tensor

    def __init__(self, ratio: float = 0.1) -> None:
        super().__init__()
        self.ratio = positive("codebook: ratio", ratio)
        if self.ratio > 1:
            raise ValueError(f"codebook: ratio must be at most 1, got {ratio}")
        self.register_buffer("codes", torch.empty(0, dtype=torch.int64))

    def forward(self, rows: Tensor) -> Tensor:
        return rows[self.codes]

    @torch.no_grad()
    def right_inverse(self, matrix: Tensor) -> Tensor:
        count = max(1, int(self.ratio * len(matrix)))
        drawn = torch.randperm(len(matrix), device="cpu")[:count].to(matrix.device)
        rows = widen(matrix[drawn])
        lengths = rows.square().sum(1) / 2
        near = (widen(part) @ rows.t() - lengths for part in matrix.split(BLOCK))
        self.codes = torch.cat([score.argmax(1) for score in near])
        return rows.to(matrix.dtype)
