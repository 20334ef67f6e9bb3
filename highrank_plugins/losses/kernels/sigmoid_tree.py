"""Evaluate Mixtape's tree of sigmoid gates in place, in torch's operations, and its gradients.

The tree is that of `heads.mixtape`, the reference: inner node i < K has gate i − 1 and the
children 2i and 2i + 1, and its value is the lerp of theirs. All results overwrite the inputs. After
`tree_forward` a gate's slot holds σ, and the slot of a node's left subtree holds the difference of
its children. `tree_backward` turns these into gradients.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def tree_forward(leaves: Sequence[Tensor], gates: Sequence[Tensor], out: Tensor) -> None:
    """Write Σ_j π_j leaf_j into `out` [n, S]; K leaves and K − 1 gate logits are overwritten."""
    if len(leaves) == 1:
        out.copy_(leaves[0])
        return
    values, slots = list(leaves), list(leaves)
    while (half := len(values) // 2) > 0:
        parents = []
        for i in range(half):
            left, right = values[2 * i : 2 * i + 2]
            gate = gates[half - 1 + i].sigmoid_()
            # lerp, because right + σ (left − right) loses digits for a saturated gate
            parent = torch.lerp(right, left, gate, out=out if half == 1 else None)
            torch.sub(left, right, out=slots[2 * i])
            parents.append(parent)
        # the right slots are free now; one of each pair serves the level above
        values, slots = parents, slots[1::2]


def tree_backward(grad: Tensor, leaves: Sequence[Tensor], gates: Sequence[Tensor]) -> None:
    """Turn the results of `tree_forward` into gradients, given the gradient of its `out`.

    `grad` is not changed.

    Afterwards `gates` holds the gradients of the gate logits, and `leaves[j]` that of leaf
    `slots_of_leaves(K)[j]`.
    """
    if len(leaves) == 1:
        leaves[0].copy_(grad)
        return
    for node, here, difference, free in _downwards(len(leaves)):
        above = grad if here is None else leaves[here]
        gate, apart = gates[node - 1], leaves[difference]
        left = torch.mul(above, gate, out=None if free is None else leaves[free])
        apart.mul_(left)
        torch.addcmul(apart, apart, gate, value=-1, out=gate)  # g (left − right) σ (1 − σ)
        torch.sub(above, left, out=apart)
        if free is None and here is not None:
            leaves[here].copy_(left)


def slots_of_leaves(components: int) -> list[int]:
    """Return which leaf's gradient each slot holds after `tree_backward`."""
    order = [0] * components
    for node, here, difference, free in _downwards(components):
        if 2 * node >= components:
            slot = free if here is None else here
            assert slot is not None
            order[slot], order[difference] = 2 * node - components, 2 * node + 1 - components
    return order


def _downwards(components: int) -> list[tuple[int, int | None, int, int | None]]:
    """Return for each inner node, from the root, its number and three slots.

    They are the slot of its gradient, that of its difference, and a free one.

    The gradient of a left child takes the place of its parent's, that of a right child the place of
    the difference. The root's own comes from outside, so that a free slot takes its left child's.
    """
    slots, difference = list(range(components)), {}
    for node in range(components // 2, 0, -1):  # the first node of each level, from the leaves up
        if node & (node - 1) == 0:
            for i in range(node):
                difference[node + i] = slots[2 * i]
            slots = slots[1::2]
    steps: list[tuple[int, int | None, int, int | None]] = []
    here: dict[int, int | None] = {1: None}
    for node in range(1, components):
        free = slots[0] if node == 1 else None
        steps.append((node, here[node], difference[node], free))
        here[2 * node] = free if node == 1 else here[node]
        here[2 * node + 1] = difference[node]
    return steps
