"""Make the vocabulary matrix a function of other parameters, by name.

`torch.nn.utils.parametrize` keeps them: `head.weight` is the matrix [M, D] that losses read, and
`head.parametrizations.weight` has the parameters.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import accumulate, pairwise
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from highrank_plugins.common.names import class_of, layer_name
from highrank_plugins.common.options import Range
from highrank_plugins.heads.checks import boolean, integer, number
from highrank_plugins.heads.log_probs import widen
from highrank_plugins.heads.registry import Registry

BLOCK = 1024  # rows whose distances to the rows of a codebook exist at once


class Vocabulary(nn.Module):
    """Compute a vocabulary matrix [M, D] from one tensor or several.

    A subclass implements `forward(*tensors)`. It may implement `right_inverse(matrix)`, which
    returns the tensors of a given matrix; by default the tensor is the matrix itself.
    """

    needs: ClassVar[dict[str, tuple[str, ...]]] = {"forward": ()}
    # options that change the function but no parameter; see `Registry.constants`
    constants: tuple[str, ...] | None = None
    needs_sorted_classes: str | None = None  # why, if class ids must be sorted by falling count
    may_be_tied: ClassVar[bool] = True  # whether the tensor can be the embedding, too
    maps: ClassVar[range] = range(0)  # numbers of the tensors that map rows to others

    def right_inverse(self, matrix: Tensor) -> Any:
        """Return the tensor, or the tuple of tensors, whose matrix is the given one or near it."""
        return matrix


VOCABULARY: Registry[type[Vocabulary]] = Registry("vocabulary matrix", base=Vocabulary)
register_vocabulary = VOCABULARY.register


@register_vocabulary("plain")
class Plain(Vocabulary):
    """Keep the matrix as a parameter."""

    def forward(self, matrix: Tensor) -> Tensor:
        return matrix


UNCHANGED = Plain()


def make_matrix(head: Any, vocabulary: Vocabulary, tied: bool) -> None:
    """Make the vocabulary matrix of a head a function of parameters, from what it is now.

    Args:
        tied: whether the matrix is also an embedding, which then is the parameter.
    """
    if isinstance(vocabulary, Plain):
        return
    if tied and not vocabulary.may_be_tied:
        raise ValueError(
            f"{layer_name(vocabulary)}: its parameters have no row for each class, so they cannot "
            "be the embedding, too; do not share embedding and vocabulary matrix"
        )
    # the first loss checks the matrix
    parametrize.register_parametrization(head, "weight", vocabulary, unsafe=True)


def vocabulary_of(head: nn.Module) -> Vocabulary:
    """Return the registered function that makes the vocabulary matrix of a head."""
    return next((part for part in _parts(head) if isinstance(part, Vocabulary)), UNCHANGED)


def _parts(head: nn.Module) -> list[nn.Module]:
    parts: Any = getattr(head, "parametrizations", {})
    return list(parts["weight"]) if "weight" in parts else []


def function_of_matrix(head: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield names and constants of the parts that make the vocabulary matrix of parameters."""
    for i, part in enumerate(_parts(head)):
        known = isinstance(part, Vocabulary)
        own = VOCABULARY.function(part) if known else {"name": class_of(part).__name__}
        yield from ((f"vocabulary{i or ''}.{name}", value) for name, value in own.items())


# -- with a parameter of the matrix's shape, which may be the embedding, too -----------------


@register_vocabulary("centred")
class Centred(Vocabulary):
    """Compute V less the mean of its rows   (output embedding centring, arXiv 2601.02031)."""

    def forward(self, raw: Tensor) -> Tensor:
        return raw - raw.mean(0)


@register_vocabulary("unit")
class Unit(Vocabulary):
    """Compute s v_x / |v_x| with a learned scale s   (nGPT, arXiv 2410.01131).

    s starts as the mean norm of the rows of the matrix, or as each of them. A row of zeros, such as
    fairseq's of the padding symbol, stays.

    Args:
        by_class: a scale for each class, as in nGPT, instead of one.
    """

    constants = ()

    def __init__(self, by_class: bool = False) -> None:
        super().__init__()
        self.by_class = boolean("unit: by_class", by_class)
        self.scale = nn.Parameter(torch.empty(()))

    @torch.no_grad()
    def right_inverse(self, matrix: Tensor) -> Tensor:
        norms = _norms(matrix)
        start = (norms if self.by_class else norms.mean()).to(matrix.dtype)
        if self.scale.shape != start.shape or self.scale.device != start.device:
            self.scale = nn.Parameter(start)
        self.scale.copy_(start)
        return matrix

    def forward(self, raw: Tensor) -> Tensor:
        norms = _norms(raw)
        factors = self.scale / norms.masked_fill(norms == 0, torch.inf)
        return raw * factors.to(raw.dtype).unsqueeze(1)


def _norms(rows: Tensor) -> Tensor:
    return torch.linalg.vector_norm(rows, dim=1, dtype=widen(rows[:0]).dtype)


# -- with fewer parameters, which no embedding can be ---------------------------------------


@register_vocabulary("low_rank")
class LowRank(Vocabulary):
    """Compute A B with A [M, r] and B [r, D]; at the start it is the nearest to the matrix.

    Args:
        rank: rank r of the matrix, at most its width.
    """

    constants = ()
    may_be_tied = False
    maps = range(1, 2)  # B

    def __init__(self, rank: int = 64) -> None:
        super().__init__()
        self.rank = integer("low_rank: rank", rank)

    def forward(self, tall: Tensor, wide: Tensor) -> Tensor:
        return tall @ wide

    def right_inverse(self, matrix: Tensor) -> tuple[Tensor, Tensor]:
        if self.rank > matrix.size(1):
            raise ValueError(f"low_rank: rank {self.rank} is above {matrix.size(1)}, the width of "
                             "the matrix; use less")  # fmt: skip
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
        shares: shares of the classes in each tier, most frequent first; they add up to 1.
        factor: each tier's rows are narrower than the last one's by this factor.
    """

    constants = ()
    may_be_tied = False
    maps = range(2, 1000, 2)  # each B_t, after its A_t
    needs_sorted_classes = "the first tier of --head-vocabulary tiers is of the most frequent words"

    def __init__(self, shares: str = "0.1,0.3,0.6", factor: int = 4) -> None:
        super().__init__()
        self.shares, self.factor = str(shares), integer("tiers: factor", factor)
        try:
            found = [*map(float, self.shares.split(","))]
        except ValueError:
            found = []
        if not found or not min(found) > 0 or not abs(sum(found) - 1) <= 1e-6:
            raise ValueError(
                "tiers: shares: expected numbers above 0 that add up to 1 and cover the "
                f"vocabulary, such as 0.1,0.3,0.6, got {shares!r}"
            ) from None
        self.parts = found

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
        ratio: rows of the codebook, as a share of the classes in (0, 1].
    """

    constants = ()
    may_be_tied = False
    codes: Tensor

    def __init__(self, ratio: float = 0.1) -> None:
        super().__init__()
        self.ratio = number("codebook: ratio", ratio, Range(0, 1, above_low=True))
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
