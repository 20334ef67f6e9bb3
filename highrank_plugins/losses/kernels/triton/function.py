"""Compute pointwise functions in a kernel, from a family and its numbers, see `KernelFunction`.

Both are compiled in, as one tuple `f`: (family, number, number, …).
"""

from __future__ import annotations

import triton
import triton.language as tl
from triton.language.extra import libdevice

from highrank_plugins.losses.kernels.triton import tiles

# Triton's interpreter lacks the hardware's functions.
HARDWARE: tl.constexpr = tl.constexpr(not triton.knobs.runtime.interpret)
FAR: tl.constexpr = tl.constexpr(tiles.FAR)
REST: tl.constexpr = tl.constexpr(tiles.REST)
LOG2_E: tl.constexpr = tl.constexpr(1.4426950408889634)


@triton.jit
def load_tables(tables, f: tl.constexpr):
    """Load the learned numbers of f, in pairs; an empty tuple if it has none.

    PLIF has too many: each logit looks up its own in memory at `tables`.
    """
    numbers = ()
    if f[0] == "multimax":
        for i in tl.static_range(8):
            numbers = numbers + (tl.load(tables + i),)
    elif f[0] == "plif":
        numbers = (tables,)
    return numbers


@triton.jit
def function_of(z, f: tl.constexpr, t):
    """Return f(z), given what `load_tables` returned."""
    value = z
    if f[0] == "gss":
        x = z - f[1]
        softplus = fast_log(1.0 + tl.exp(-tl.abs(x)))
        value = z + (f[2] - 1) * (tl.minimum(x, 0.0) - softplus)  # log σ(x), without overflow
    elif f[0] == "logistic":
        value = f[1] * tl.sigmoid((z + f[2]) * (1 / f[3])) + f[4]
    elif f[0] == "multimax":
        low1, high1, low2, high2 = beyond(z, t)
        value = z + t[1] * low1 + t[3] * high1 + t[5] * low2 * low2 + t[7] * high2 * high2
    elif f[0] == "plif":
        cell, offset = cell_of(z, f)
        value = tl.load(t[0] + 2 * cell) * offset + tl.load(t[0] + 2 * cell + 1)
    return value


@triton.jit
def times_slope(grad, z, f: tl.constexpr, t):
    """Return grad f'(z)."""
    value = grad
    if f[0] == "gss":
        value = grad * (f[2] - (f[2] - 1) * tl.sigmoid(z - f[1]))
    elif f[0] == "logistic":
        gate = tl.sigmoid((z + f[2]) * (1 / f[3]))
        value = grad * (f[1] / f[3]) * (gate * (1 - gate))
    elif f[0] == "multimax":
        low1, high1, low2, high2 = beyond(z, t)
        bent = tl.where(high1 > 0, t[3], 0.0) - tl.where(low1 > 0, t[1], 0.0)
        value = grad * (1 + bent + 2 * (t[7] * high2 - t[5] * low2))
    elif f[0] == "plif":
        cell, _ = cell_of(z, f)
        value = grad * tl.load(t[0] + 2 * cell)
    return value


@triton.jit
def beyond(z, t):
    """Return the distance of z beyond each of MultiMax's thresholds, or 0."""
    low1, high1 = tl.maximum(t[0] - z, 0.0), tl.maximum(z - t[2], 0.0)
    low2, high2 = tl.maximum(t[4] - z, 0.0), tl.maximum(z - t[6], 0.0)
    return low1, high1, low2, high2


@triton.jit
def cell_of(z, f: tl.constexpr):
    """Return the cell of PLIF, f = ("plif", T, D, Q), in which z lies, and z minus its knot."""
    shifted = z + f[1]
    position = shifted * (1 / f[2])
    position = tl.where(position > 0, position, 0.0)  # NaN has no cell either
    # clamped before the cast, and after it, where float32 rounds Q − 1 up
    cell = tl.minimum(tl.minimum(position, f[3] - 1.0).to(tl.int32), f[3] - 1)
    return cell, shifted - cell.to(z.dtype) * f[2]


@triton.jit
def no_table_sums(wanted, f: tl.constexpr, COLUMNS: tl.constexpr, wide: tl.constexpr):
    """Return zeros for the sums of MultiMax's numbers; one that nobody reads if none is wanted."""
    sums = (tl.zeros((1,), wide),)  # triton 3.4 carries no empty tuple through a loop
    if wanted is not None and f[0] == "multimax":
        sums = ()
        for _ in tl.static_range(8):
            sums = sums + (tl.zeros((COLUMNS,), wide),)
    return sums


@triton.jit
def add_table_sums(sums, wanted, grad, z, inside, f: tl.constexpr, t):
    """Add gradients of f's numbers, given that of f(z): to `sums`, or where `wanted` points to."""
    if wanted is not None and f[0] == "plif":
        add_to_cells(wanted, grad, z, inside, f, t)
    elif wanted is not None:
        grad = tl.where(inside, grad, 0.0)
        low1, high1, low2, high2 = beyond(z, t)
        by_low2, by_high2 = grad * low2, grad * high2
        sums = (
            sums[0] + over_rows(tl.where(low1 > 0, grad, 0.0)),
            sums[1] + over_rows(grad * low1),
            sums[2] + over_rows(tl.where(high1 > 0, grad, 0.0)),
            sums[3] + over_rows(grad * high1),
            sums[4] + over_rows(by_low2),
            sums[5] + over_rows(by_low2 * low2),
            sums[6] + over_rows(by_high2),
            sums[7] + over_rows(by_high2 * high2),
        )
    return sums


@triton.jit
def add_to_cells(place, grad, z, inside, f: tl.constexpr, t):
    """Add gradients of the slope and the left value of each logit's cell to `place`.

    The sums are integers, so that their order makes no difference; see `tiles.CellSums`.
    """
    cell, offset = cell_of(z, f)
    scales = t[0] + 2 * f[3]
    scale, far_scale = tl.load(scales), tl.load(scales + 1)
    limit = FAR * f[1]
    far = tl.minimum(tl.maximum(offset, -limit), limit)
    is_near = tl.abs(offset) < 2 * f[2]
    by_offset = grad * tl.where(is_near, offset * (scale / f[2]), far * far_scale)
    row = tl.where(is_near, cell, f[3] + (z > 0).to(tl.int32))
    of_slope, of_left = by_offset.to(tl.int64), (grad * scale).to(tl.int64)
    tl.atomic_add(place + 2 * row, of_slope, mask=inside & (of_slope != 0), sem="relaxed")
    tl.atomic_add(place + 2 * cell + 1, of_left, mask=inside & (of_left != 0), sem="relaxed")
    rest = ((by_offset - of_slope.to(z.dtype)) * REST).to(tl.int64)
    has_rest = inside & (rest != 0) & (is_near == 0)
    tl.atomic_add(place + 2 * row + 1, rest, mask=has_rest, sem="relaxed")


@triton.jit
def over_rows(x):
    """Return the sum over rows of a tile [ROWS, COLUMNS]; a single row [COLUMNS] as it is."""
    return tl.sum(x, 0) if len(x.shape) == 2 else x


@triton.jit
def store_table_sums(place, sums, f: tl.constexpr, t):
    """Store the gradients of MultiMax's numbers, unless `place` is None."""
    if place is not None and f[0] == "multimax":
        place += tl.program_id(0) * 8
        for i in tl.static_range(4):
            # gradients of thresholds: low and high ones differ in sign, and power 2 brings a factor
            slope = (1 - 2 * (i % 2)) * (1 + i // 2)
            tl.store(place + 2 * i, slope * t[2 * i + 1] * tl.sum(sums[2 * i], 0))
            tl.store(place + 2 * i + 1, tl.sum(sums[2 * i + 1], 0))


@triton.jit
def exp_below(x, top, log_sum):
    """Return e^(x − top − log_sum), exact to the last bits where x and top are large and near.

    The product and the second difference are one instruction; x − (top + log_sum) would lose
    log_sum to rounding.
    """
    return tl.exp2((x - top) * LOG2_E - log_sum * LOG2_E)


@triton.jit
def fast_exp(x):
    """Return e^x; in float32 results below 2^-126 are 0, which `tl.exp` takes instructions for."""
    return tl.exp2(x * LOG2_E)


@triton.jit
def fast_log(x):
    """Return log x for x ≥ 1 or x = 0; in float32 by one instruction, with an error of 2^-22."""
    return libdevice.fast_logf(x) if HARDWARE and x.dtype == tl.float32 else tl.log(x)


@triton.jit
def fast_sigmoid(x):
    """Return σ(x); in float32 by two instructions of the hardware, with an error of 2^-21."""
    if HARDWARE and x.dtype == tl.float32:
        return libdevice.fast_dividef(1.0, 1.0 + fast_exp(-x))
    else:
        return tl.sigmoid(x)
