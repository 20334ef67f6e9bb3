"""How much of a chunk a program of a kernel reads at a time."""

from __future__ import annotations

from typing import NamedTuple

# Numbers of one tile, a power of two as every size here: eight warps with 16 numbers a thread.
SIZE = 4096
# Most columns of one tile. Rows that are narrower share a program.
COLUMNS = 4096
# Numbers of one tile of Mixtape's tree, times K: about 6 K registers for each.
TREE_SIZE = 2048


class Tile(NamedTuple):
    """Rows × columns, and the warps that work on them."""

    rows: int
    columns: int
    warps: int


class MixtureTile(NamedTuple):
    """Tokens × components × columns, and the warps that work on them."""

    tokens: int
    components: int
    columns: int
    warps: int


def softmax_tile(classes: int) -> Tile:
    """For one softmax per row of so many classes."""
    return _tile(SIZE, classes)


def tree_tile(components: int, classes: int) -> Tile:
    """For a tree with so many leaves per class."""
    return _tile(max(32, TREE_SIZE // components), classes)._replace(warps=4)


def mixture_tile(components: int, classes: int) -> MixtureTile:
    """For all components of a token at once."""
    depth = _power_of_two(components)
    size = max(16, SIZE // depth)
    tile = _tile(size, classes)
    return MixtureTile(tile.rows, depth, tile.columns, _warps(size * depth))


def _tile(size: int, classes: int) -> Tile:
    columns = min(_power_of_two(classes), COLUMNS, size)
    rows = max(1, size // columns)
    return Tile(rows, columns, _warps(rows * columns))


def _power_of_two(number: int) -> int:
    """The least one that is not smaller."""
    return 1 << max(number - 1, 0).bit_length()


def _warps(size: int) -> int:
    return min(max(size // 512, 1), 8)
