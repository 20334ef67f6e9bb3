"""Choose how much of a chunk a program of a kernel reads at a time."""

from __future__ import annotations

from typing import NamedTuple

# Numbers in one tile, a power of two like every size here: eight warps, 16 numbers per thread.
SIZE = 4096
# Largest number of columns of one tile. Narrower rows share a program.
COLUMNS = 4096
# Largest number of rows that share a program: a thread holds sums and a target for each.
ROWS = 8
# Numbers in one tile of Mixtape's tree, times K: each takes about 3 K registers of a thread.
TREE_SIZE = 2048
# Largest K, times the words of a number, with which the numbers of a whole tile fit; then half.
TREE_WORDS = 16
# Rows of a tile of Mixtape's tree whose kernel also computes the gates' product; columns of that
# tile, times K; tiles of a program.
GATED_ROWS, GATED_COLUMNS, GATED_SPAN = 64, 128, 4
# Largest K, and the divisor of S, with which that kernel fits the registers of a thread: Triton
# loads rows of another length number by number, each from an address of its own.
GATED_COMPONENTS, GATED_CLASSES = 4, 16
# Largest size of the gates' hidden units with which it fits the shared memory of every GPU.
GATED_HIDDEN = 128
# Numbers of a mixture's tile that one thread holds, at three registers each; number of threads.
MIXTURE_NUMBERS = 32
MIXTURE_THREADS = 128
# The gradients of PLIF's slopes clamp z to this multiple of T.
FAR = 2**20
# The remainder of a gradient beyond PLIF's cells is summed in units this many times smaller.
REST = 2**30
# Largest number of components for which a thread sums a learned function's gradients in registers.
LEARNED_COMPONENTS = 16
# Largest number of components of a thread, by bytes of a number: with more, many numbers would not
# fit its registers, and a kernel would take minutes to compile.
COMPONENTS = {4: 32, 8: 16}


class Tile(NamedTuple):
    """Hold rows × columns, the warps that work on them, and how many tiles a program takes."""

    rows: int
    columns: int
    warps: int
    span: int = 1


def softmax_tile(classes: int, crowded: bool = False) -> Tile:
    """Return the tile for one softmax per row; `crowded` by a learned function's sums, or not."""
    size = SIZE // 4 if crowded else SIZE
    columns = min(_power_of_two(classes), COLUMNS, size)
    rows = min(max(1, size // columns), ROWS)
    return Tile(rows, columns, _warps(rows * columns, 128 if crowded else 512))


def tree_tile(components: int, classes: int, words: int = 1) -> Tile:
    """Return the tile for a tree with K leaves per class, whose numbers have 1 or 2 words."""
    leaves = _power_of_two(components)
    size = TREE_SIZE // leaves // (2 if leaves * words > TREE_WORDS else 1)
    columns = min(_power_of_two(classes), COLUMNS, max(32, size))
    rows = max(1, size // columns)
    return Tile(rows, columns, min(_warps(rows * columns, 128), 4))


def gated_tree_tile(components: int) -> Tile:
    """Return the tile for a tree whose gate logits are products, K being a power of two."""
    return Tile(GATED_ROWS, GATED_COLUMNS // components, 4, GATED_SPAN)


def mixture_tile(components: int, classes: int, sums: int = 0) -> Tile:
    """Return the tile for all components of a token, of which a thread has whole columns.

    Each has further numbers for the `sums` of a learned function.
    """
    each = max(1, min(8, MIXTURE_NUMBERS // _power_of_two(components + sums)))
    columns = min(_power_of_two(classes), COLUMNS, each * MIXTURE_THREADS)
    return Tile(1, columns, _warps(columns, 32 * each))


def _power_of_two(number: int) -> int:
    """Return the least power of two that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def _warps(size: int, each: int) -> int:
    """Return the number of warps for a tile, from the numbers that each warp takes."""
    return min(max(size // each, 1), 8)
