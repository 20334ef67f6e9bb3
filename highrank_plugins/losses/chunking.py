"""Cut a batch into chunks of tokens, and join their results."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.common.user_error import UserError

# Smallest and largest bytes of a chunk. On a CPU its working set should stay near the cache while
# its products stay large. Above 32 MiB the C library also returns memory after every batch and
# faults it in again; only a large vocabulary is worth that. On a GPU the products of some 2,000
# rows of 32,768 logits run at full speed; `BYTES_PER_CLASS` serves larger vocabularies.
DEFAULT_MEMORY = {"cpu": (31 * 2**20, 64 * 2**20), "cuda": (128 * 2**20, 128 * 2**20)}
# Between the two, a chunk grows with the vocabulary matrix: the products of every chunk pack the
# matrix again, and read and write its gradient.
CHUNK_PER_MATRIX = 4.5
# Bytes of a chunk per class, at least: 1,024 rows of logits in half precision. With fewer rows the
# product that adds to the float32 sum of the matrix waits for memory.
BYTES_PER_CLASS = {"cpu": 0, "cuda": 2 * 1024}
# Bytes of the rows that one elementwise pass works on. On a CPU it is what the second-level caches
# of a few cores hold; matrix products want more rows. On a GPU it bounds the temporary memory.
BLOCK_MEMORY = {"cpu": 2**22, "cuda": 2**25}


def chunk_ranges(start: int, stop: int, size: int) -> Iterator[tuple[int, int]]:
    """Cut start..stop−1 into nearly equal ranges of at most `size`, the first the longest.

    There is at least one range, even if it is empty.
    """
    tokens = stop - start
    chunks = max(1, -(-tokens // max(size, 1)))
    size = max(1, -(-tokens // chunks))
    return ((a, min(a + size, stop)) for a in range(start, max(stop, start + 1), size))


def tokens_within(
    features: Tensor, floats_per_token: int, memory: int | None, matrix: tuple[int, int] = (0, 0),
    most: int = 0, width: int | None = None,
) -> int:  # fmt: skip
    """Return how many tokens a chunk may have within `memory` bytes, or the device's default.

    `matrix` is the shape (M, D), `width` the bytes per number. Without a limit a chunk has at most
    `most` tokens or half of the batch. A plain softmax, which holds its logits two or three times,
    takes more memory.
    """
    per_token = max(1, floats_per_token) * (width or max(features.element_size(), 4))
    if memory is None:
        fitting = chunk_memory(features, None, matrix) // per_token
        return max(16, min(fitting, max(most, -(-features.size(0) // 2))))
    if memory < per_token:
        raise UserError(
            f"memory= (--head-loss-memory): {memory} bytes cannot hold one token, which takes "
            f"{per_token}; raise it to {math.ceil(per_token / 2**20)} MiB"
        )
    return memory // per_token


def chunk_memory(features: Tensor, memory: int | None, matrix: tuple[int, int]) -> int:
    """Return the bytes that a chunk may take: `memory`, or the device's default for (M, D)."""
    if memory is not None:
        return memory
    classes, size = matrix
    device = features.device.type
    low, high = DEFAULT_MEMORY.get(device, DEFAULT_MEMORY["cuda"])
    of_matrix = classes * size * max(features.element_size(), 4)
    fitting = min(max(low, int(CHUNK_PER_MATRIX * of_matrix)), high)
    return max(fitting, classes * BYTES_PER_CLASS.get(device, BYTES_PER_CLASS["cuda"]))


def cache_sized_blocks(
    rows: int, floats_per_row: int, device: torch.device
) -> Iterator[tuple[int, int]]:
    """Yield ranges of rows for passes of torch's operations, of `BLOCK_MEMORY` each."""
    memory = BLOCK_MEMORY.get(device.type, BLOCK_MEMORY["cuda"])
    return chunk_ranges(0, rows, max(1, memory // (4 * max(1, floats_per_row))))


def join_chunks(tokens: int, parts: Iterable[Iterable[Tensor | None]]) -> list[Any]:
    """Return the results [n, …] of chunks, None or a tensor, as tensors of all N tokens.

    Small tensors that outlive the large ones of their chunk would fragment the heap: on a CPU, a
    list of them kept up to N × M numbers resident.
    """
    columns: list[Any] = []
    start = 0
    for part in parts:
        given: list[Any] = [None if t is None else t.detach() for t in part]
        stop = start + len(given[0])
        if stop - start == tokens:
            return given
        columns = columns or [t if t is None else t.new_empty(tokens, *t.shape[1:]) for t in given]
        for column, t in zip(columns, given, strict=True):
            if t is not None:
                column[start:stop] = t
        start = stop
    return columns
