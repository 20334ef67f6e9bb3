"""Attend with relative position representations (Shaw et al. 2018). It needs torch only."""

# T queries · S keys · d head_dim · k clip

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

from highrank_plugins.heads.checks import integer


class RelativeAttention(nn.Module):
    r"""Attend with a learned key and a learned value for each distance between positions.

        z_i = Σ_j α_ij (v_j + a^V_{c(j−i)})
        α_i = softmax_j q_i · (k_j + a^K_{c(j−i)}) / √d        c(x) = min(max(x, −k), k)

    The queries are the last T of the S positions: T = S for a whole sentence, T = 1 for a decoding
    step on cached keys and values. Nothing of size T × S × d is made: the products with the few
    rows of a table are moved from distances to keys.

    Parameters, shared by all heads: `key_table` a^K and `value_table` a^V, [2k + 1, d], row k + x
    for distance x; Glorot uniform, as in the paper's code (Tensor2Tensor).

    Args:
        head_dim: d.
        clip: k; farther positions count as being this far away. 16 in the papers.
    """

    def __init__(self, head_dim: int, clip: int = 16) -> None:
        super().__init__()
        self.clip, head_dim = integer("clip", clip), integer("head_dim", head_dim)
        self.key_table = nn.Parameter(torch.empty(2 * clip + 1, head_dim))
        self.value_table = nn.Parameter(torch.empty(2 * clip + 1, head_dim))
        for table in self.parameters():
            nn.init.xavier_uniform_(table)

    def forward(
        self,
        q: Tensor,
        k: Tensor,
        v: Tensor,
        mask: Tensor | None = None,
        dropout: Callable[[Tensor], Tensor] | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Return contexts z [..., T, d] in v's dtype, and weights α [..., T, S], at least float32.

        Args:
            q: [..., T, d], not scaled.
            k, v: [..., S, d].
            mask: added to the logits, broadcast to [..., T, S]; −inf excludes a key. A query
                without any key becomes NaN.
            dropout: acts on the weights that make the contexts, not on those returned.
        Raises:
            ValueError: more queries than keys.
        """
        queries, keys = q.size(-2), k.size(-2)
        if queries > keys:
            raise ValueError(f"expected at most as many queries as keys, got {queries} and {keys}")
        # distances 1 − S, …, T: T does not occur, but rows of S + T columns can be skewed. The
        # first `left` are clipped to the first of the table's `rows`, the last `right` to the last
        back, ahead = min(keys - 1, self.clip), min(queries, self.clip)
        left, right = keys - 1 - back, queries - ahead
        rows = slice(self.clip - back, self.clip + ahead + 1)
        q = q * q.size(-1) ** -0.5
        by_distance = spread(q @ self.key_table[rows].mT, left, right)
        logits = q @ k.mT + to_keys(by_distance, keys)
        if mask is not None:
            logits = logits + mask
        weights = logits.softmax(-1, dtype=torch.promote_types(logits.dtype, torch.float32))
        kept = weights.to(v.dtype)
        if dropout is not None:
            kept = dropout(kept)
        of_rows = gather(to_distances(kept), left, right)
        return kept @ v + of_rows @ self.value_table[rows], weights


def spread(x: Tensor, left: int, right: int) -> Tensor:
    """Turn [..., rows] into [..., S + T]: each distance has the value of its row."""
    # not index_select, whose gradient a GPU sums in arbitrary order
    first, last = x[..., :1], x[..., -1:]
    parts = first.expand(*x.shape[:-1], left), x, last.expand(*x.shape[:-1], right)
    return torch.cat(parts, -1)


def gather(x: Tensor, left: int, right: int) -> Tensor:
    """Turn [..., S + T] into [..., rows]: each row has the sum over its distances."""
    start, end = left + 1, x.size(-1) - right - 1
    first = x[..., :start].sum(-1, keepdim=True)
    last = x[..., end:].sum(-1, keepdim=True)
    return torch.cat((first, x[..., start:end], last), -1)


def to_keys(x: Tensor, keys: int) -> Tensor:
    """Turn [..., T, S + T], a column for each distance 1 − S, …, T, into [..., T, S], one per key.

    Distances j − i − (S − T) to key j lie one column further left for each next query i. Read with
    one column less per row, they are one below the other.
    """
    queries = x.size(-2)
    return x.flatten(-2)[..., queries - 1 : -1].unflatten(-1, (queries, -1))[..., :keys]


def to_distances(x: Tensor) -> Tensor:
    """Turn [..., T, S] back into [..., T, S + T], 0 at distances without a key."""
    queries, keys = x.shape[-2:]
    rows = pad(x, (0, queries - 1)).flatten(-2)
    return pad(rows, (queries - 1, 1)).unflatten(-1, (queries, keys + queries))
