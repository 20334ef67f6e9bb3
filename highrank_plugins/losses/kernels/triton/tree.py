"""Evaluate Mixtape's tree of sigmoid gates in registers: mixed logits, gradients in place.

The tree is that of `heads.mixtape`, the reference: inner node i < K has gate i − 1 and the
children 2i and 2i + 1, leaf j is node K + j. Tuples of tiles hold nodes; K is compiled in.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["rows"])
def tree_forward_kernel(
    leaves, leaf_row, leaf_component, gates, gate_row, gate_component,
    out, out_stride, rows, classes, components: tl.constexpr, wide: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Write out [n, S] = Σ_j π_j leaf_j, given leaves [n, K, S] and gate logits [K − 1, n, S]."""
    row, column, inside = tile_here(rows, classes, ROWS, COLUMNS)
    leaf_start, gate_start = leaves + row * leaf_row + column, gates + row * gate_row + column
    values = load_tiles(leaf_start, inside, leaf_component, components, wide)
    logits = load_tiles(gate_start, inside, gate_component, components - 1, wide)
    nodes = evaluate_nodes(values, logits, components)
    mixed = nodes[0].to(out.dtype.element_ty)
    tl.store(out + row * out_stride + column, mixed, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def tree_backward_kernel(
    leaves, leaf_row, leaf_component, gates, gate_row, gate_component,
    grad, grad_stride, rows, classes, components: tl.constexpr, wide: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr,
):  # fmt: skip
    """Turn leaves and gates into their gradients, given the mixed logits' `grad` [n, S]."""
    row, column, inside = tile_here(rows, classes, ROWS, COLUMNS)
    leaf_place = leaves + row * leaf_row + column
    values = load_tiles(leaf_place, inside, leaf_component, components, wide)
    gate_place = gates + row * gate_row + column
    logits = load_tiles(gate_place, inside, gate_component, components - 1, wide)
    nodes = evaluate_nodes(values, logits, components)
    narrow: tl.constexpr = leaves.dtype.element_ty
    grads = (tl.load(grad + row * grad_stride + column, mask=inside, other=0.0).to(wide),)
    tl.debug_barrier()  # every thread has read its leaves and gates

    for i in tl.static_range(components - 1):  # node i + 1, from the root down
        gate = tl.sigmoid(logits[i])
        to_left = grads[i] * gate
        to_right = grads[i] - to_left
        apart = nodes[2 * i + 1] - nodes[2 * i + 2]
        tl.store(gate_place, (to_right * gate * apart).to(narrow), mask=inside)
        grads = grads + (to_left, to_right)
        gate_place = gate_place + gate_component
    for j in tl.static_range(components):
        tl.store(leaf_place, grads[components - 1 + j].to(narrow), mask=inside)
        leaf_place = leaf_place + leaf_component


@triton.jit
def tile_here(rows, classes, ROWS: tl.constexpr, COLUMNS: tl.constexpr):
    """Return rows [ROWS, 1] and columns [1, COLUMNS] of this program, and which of them exist."""
    row = (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]
    column = (tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS))[None, :]
    return row, column, (row < rows) & (column < classes)


@triton.jit
def load_tiles(place, inside, component_stride, count: tl.constexpr, wide: tl.constexpr):
    """Load the tile of each of `count` components."""
    tiles = ()
    for _ in tl.static_range(count):
        tiles = tiles + (tl.load(place, mask=inside, other=0.0).to(wide),)
        place = place + component_stride  # added in steps, because a product could overflow 32 bits
    return tiles


@triton.jit
def evaluate_nodes(leaves, gate_logits, components: tl.constexpr):
    """Return the values of the nodes 1 … 2K − 1."""
    nodes = leaves
    for i in tl.static_range(components - 1):  # node K − 1 − i goes before its descendants
        left = nodes[components - 2 - i]
        right = nodes[components - 1 - i]
        gate = tl.sigmoid(gate_logits[components - 2 - i])
        nodes = (mean_of(left, right, gate),) + nodes
    return nodes


@triton.jit
def mean_of(left, right, gate):
    """Return gate left + (1 − gate) right, exact where the gate is saturated, as torch.lerp."""
    apart = left - right
    return tl.where(gate < 0.5, right + gate * apart, left - (1.0 - gate) * apart)
