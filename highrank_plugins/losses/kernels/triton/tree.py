"""Evaluate Mixtape's tree of sigmoid gates in registers: mixed logits, gradients in place.

The tree is that of `heads.mixtape`, the reference: inner node i < K has gate i − 1 and the
children 2i and 2i + 1, leaf j is node K + j. Tuples of tiles hold nodes; K is compiled in.

Gate logits come from memory, or are the product of `inputs` [K − 1, n, C] and `weights` [S, C], or
the sum of both. A program loads the inputs of its rows once, for SPAN tiles side by side.
"""

from __future__ import annotations

import triton
import triton.language as tl

from highrank_plugins.losses.kernels.triton.function import fast_sigmoid

STEP: tl.constexpr = tl.constexpr(16)  # columns of the products' operands that a tensor core takes


@triton.jit(do_not_specialize=["rows"])
def tree_forward_kernel(
    leaves, leaf_row, leaf_component, gates, gate_row, gate_component,
    inputs, input_component, weights,
    out, out_stride, rows, classes,
    components: tl.constexpr, wide: tl.constexpr, from_memory: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Write out [n, S] = Σ_j π_j leaf_j, given leaves [n, K, S] and gate logits [K − 1, n, S].

    With `from_memory` gate logits, or a summand of them, are in `gates`. WIDTH is C; 0 if there are
    no products.
    """
    row = rows_here(ROWS)
    known = load_inputs(inputs, input_component, row, rows, components, WIDTH)
    for i in range(SPAN):
        column = columns_here(i, SPAN, COLUMNS)
        inside = (row < rows) & (column < classes)
        leaf_place, gate_place = leaves + row * leaf_row + column, gates + row * gate_row + column
        values = load_tiles(leaf_place, inside, leaf_component, components, wide)
        sigmas = gate_tiles(
            gate_place, inside, gate_component, known, weights, column, classes,
            components, wide, from_memory, WIDTH,
        )  # fmt: skip
        nodes = evaluate_nodes(values, sigmas, components)
        mixed = nodes[0].to(out.dtype.element_ty)
        tl.store(out + row * out_stride + column, mixed, mask=inside)


@triton.jit(do_not_specialize=["rows"])
def tree_backward_kernel(
    leaves, leaf_row, leaf_component, gates, gate_row, gate_component,
    inputs, input_component, weights,
    grad, grad_stride, rows, classes,
    components: tl.constexpr, wide: tl.constexpr, from_memory: tl.constexpr, WIDTH: tl.constexpr,
    ROWS: tl.constexpr, COLUMNS: tl.constexpr, SPAN: tl.constexpr,
):  # fmt: skip
    """Turn leaves and gates into their gradients, given the mixed logits' `grad` [n, S]."""
    narrow: tl.constexpr = leaves.dtype.element_ty
    row = rows_here(ROWS)
    known = load_inputs(inputs, input_component, row, rows, components, WIDTH)
    for i in range(SPAN):
        column = columns_here(i, SPAN, COLUMNS)
        inside = (row < rows) & (column < classes)
        leaf_place, gate_place = leaves + row * leaf_row + column, gates + row * gate_row + column
        values = load_tiles(leaf_place, inside, leaf_component, components, wide)
        sigmas = gate_tiles(
            gate_place, inside, gate_component, known, weights, column, classes,
            components, wide, from_memory, WIDTH,
        )  # fmt: skip
        nodes = evaluate_nodes(values, sigmas, components)
        grads = (tl.load(grad + row * grad_stride + column, mask=inside, other=0.0).to(wide),)
        tl.debug_barrier()  # every thread has read its leaves and gates

        for j in tl.static_range(components - 1):  # node j + 1, from the root down
            to_left = grads[j] * sigmas[j]
            to_right = grads[j] - to_left
            apart = nodes[2 * j + 1] - nodes[2 * j + 2]
            tl.store(gate_place, (to_right * sigmas[j] * apart).to(narrow), mask=inside)
            grads = grads + (to_left, to_right)
            gate_place = gate_place + gate_component
        for j in tl.static_range(components):
            tl.store(leaf_place, grads[components - 1 + j].to(narrow), mask=inside)
            leaf_place = leaf_place + leaf_component


@triton.jit
def rows_here(ROWS: tl.constexpr):
    """Return the rows [ROWS, 1] of this program."""
    return (tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS))[:, None]


@triton.jit
def columns_here(i, SPAN: tl.constexpr, COLUMNS: tl.constexpr):
    """Return the columns [1, COLUMNS] of tile i of this program."""
    return ((tl.program_id(1) * SPAN + i) * COLUMNS + tl.arange(0, COLUMNS))[None, :]


@triton.jit
def load_inputs(
    place, component_stride, row, rows, components: tl.constexpr, WIDTH: tl.constexpr
):  # fmt: skip
    """Load the inputs of all gates of some rows, STEP columns in a tile."""
    found = ()
    for _ in tl.static_range(components - 1 if WIDTH > 0 else 0):
        for start in tl.static_range(0, WIDTH, STEP):
            part = start + tl.arange(0, STEP)[None, :]
            inside = (row < rows) & (part < WIDTH)
            found = found + (tl.load(place + row * WIDTH + part, mask=inside, other=0.0),)
        place = place + component_stride
    return found


@triton.jit
def load_tiles(place, inside, component_stride, count: tl.constexpr, wide: tl.constexpr):
    """Load the tile of each of `count` components."""
    tiles = ()
    for _ in tl.static_range(count):
        tiles = tiles + (tl.load(place, mask=inside, other=0.0).to(wide),)
        place = place + component_stride  # added in steps, because a product could overflow 32 bits
    return tiles


@triton.jit
def gate_tiles(
    place, inside, component_stride, inputs, weights, column, classes,
    components: tl.constexpr, wide: tl.constexpr, from_memory: tl.constexpr, WIDTH: tl.constexpr,
):  # fmt: skip
    """Return the sigmoids of the logits of all gates of a tile, given those of `load_inputs`."""
    sigmas = ()
    for j in tl.static_range(components - 1):
        logit = tl.zeros(inside.shape, wide)
        for start in tl.static_range(0, WIDTH, STEP):
            part = start + tl.arange(0, STEP)[:, None]
            real = (column < classes) & (part < WIDTH)
            weight = tl.load(weights + column * WIDTH + part, mask=real, other=0.0)
            # tl.cdiv would be a tensor before triton 3.7, which is no index of a tuple
            known = inputs[j * ((WIDTH + STEP - 1) // STEP) + start // STEP]
            logit = tl.dot(known, weight, logit, input_precision="ieee", out_dtype=wide)
        if from_memory:
            logit += tl.load(place, mask=inside, other=0.0).to(wide)
            place = place + component_stride
        sigmas = sigmas + (fast_sigmoid(logit),)
    return sigmas


@triton.jit
def evaluate_nodes(leaves, sigmas, components: tl.constexpr):
    """Return the values of the nodes 1 … 2K − 1."""
    nodes = leaves
    for i in tl.static_range(components - 1):  # node K − 1 − i goes before its descendants
        gate = sigmas[components - 2 - i]
        # exact where the gate is saturated, as torch.lerp
        mean = gate * nodes[components - 2 - i] + (1.0 - gate) * nodes[components - 1 - i]
        nodes = (mean,) + nodes
    return nodes
