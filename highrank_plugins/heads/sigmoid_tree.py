"""Compute Mixtape's gates by a binary tree of sigmoids.

Heap order: inner nodes 1..K−1, the children of i are 2i and 2i + 1, gate k is node k + 1, leaf j is
node K + j. Going left (to 2i) multiplies by σ(l_i), going right by σ(−l_i). K = 4 is eq. 3 of Yang
et al. 2019 (Mixtape).
"""

from __future__ import annotations

import torch
from torch import Tensor


def is_power_of_two(k: int) -> bool:
    """Whether a tree with k leaves is full."""
    return k > 0 and k & (k - 1) == 0


def sigmoid_tree(leaves_NKS: Tensor, gates_NJS: Tensor) -> Tensor:
    """Return Σ_j π_j leaf_j, where π are the tree's probabilities.

    Each inner node takes the weighted mean of its two children, so that no gate probability is
    ever stored, and saturated gates lose nothing.

    Args:
        leaves_NKS: values of the components.
        gates_NJS: gate logits, or [N, J, 1] for a gate that S values share.
    Returns:
        [n, S].
    """
    values = leaves_NKS
    while (count := values.size(1)) > 1:
        # not two slices, whose gradients would each be padded to the size of the whole
        left, right = values.unflatten(1, (-1, 2)).unbind(2)
        # nodes count/2 .. count − 1 are the parents of this level
        gate = gates_NJS[:, count // 2 - 1 : count - 1].sigmoid()
        values = right.lerp(left, gate.expand_as(left))
    return values.squeeze(1)


def probabilities(gates_NJS: Tensor) -> Tensor:
    """Return π [N, K, S] of gate logits."""
    count = gates_NJS.size(1) + 1
    # π_k is the tree's value for leaves that are 1 at k and 0 elsewhere
    leaves = torch.eye(count, dtype=gates_NJS.dtype, device=gates_NJS.device)
    shape = (len(gates_NJS), count, gates_NJS.size(-1))
    parts = [sigmoid_tree(leaf.view(1, -1, 1).expand(shape), gates_NJS) for leaf in leaves]
    return torch.stack(parts, 1)
