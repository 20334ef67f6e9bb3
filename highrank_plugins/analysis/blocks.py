"""Check matrices that arrive in blocks of rows."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import torch
from torch import Tensor

SUM_TOLERANCE = 0.05  # rows stored in bfloat16 sum to 1 within 0.02


def checked_blocks(blocks: Iterable[Tensor], finite: bool = True) -> Iterator[Tensor]:
    """Yield the blocks with at least one row, and check each when its turn comes.

    Args:
        blocks: [n_i, M], any floating dtype; the whole matrix may be larger than the memory.
        finite: refuse infinities, too. −∞ is a valid log-probability, but a spectrum cannot use it.
    Raises:
        ValueError: a block is not a matrix or has another width than the first, NaN (names block
            and row), or there are no rows.
    """
    width = None
    for index, block in enumerate(blocks):
        if not _is_matrix(block):
            raise ValueError(f"block {index}: expected floats [n, M], got {_described(block)}")
        width = block.size(1) if width is None else width
        if block.size(1) != width:
            raise ValueError(
                f"block {index} has {block.size(1)} columns, but earlier blocks have {width}"
            )
        refuse_rows(block.isfinite() if finite else ~block.isnan(), f"block {index}", block)
        if len(block):
            yield block
    if width is None:
        raise ValueError("no blocks: the iterable is empty; an iterator can be used only once")


def refuse_rows(good: Tensor, name: str, values: Tensor) -> None:
    """Refuse values [n, M] unless all of `good` [n, M] is true.

    Raises:
        ValueError: names the first bad row, and its first bad entry.
    """
    if good.all():
        return
    row = int((~good.all(1)).nonzero()[0])
    column = int((~good[row]).nonzero()[0])
    raise ValueError(
        f"{name}, row {row}: entry {column} is {float(values[row, column])}; find its cause "
        "(a diverged checkpoint, half precision) and collect again"
    )


def check_log_probs(log_probs: Tensor, name: str) -> None:
    """Check log-probabilities [n, M]: floats, two dimensions, no NaN, rows that sum to 1.

    Raises:
        ValueError: otherwise; names the row.
    """
    if not _is_matrix(log_probs) or not len(log_probs):
        raise ValueError(
            f"{name}: expected log-probabilities [n, M] with n ≥ 1, got {_described(log_probs)}"
        )
    refuse_rows(~log_probs.isnan(), name, log_probs)
    log_sums = torch.cat([part.float().logsumexp(-1) for part in chunks(log_probs)])
    wrong = log_sums.abs() > SUM_TOLERANCE
    if wrong.any():
        row = int(wrong.nonzero()[0])
        raise ValueError(
            f"{name}, row {row}: the probabilities sum to {float(log_sums[row].exp()):.6g}; "
            "pass log-probabilities, e.g. logits.log_softmax(-1)"
        )


def chunks(x: Tensor, budget: int = 2**22) -> Iterator[Tensor]:
    """Yield runs of rows of x [n, M] with at most `budget` numbers each, or one row."""
    return iter(x.split(max(1, budget // max(1, x[0].numel()))))


def _is_matrix(x: object) -> bool:
    return isinstance(x, Tensor) and x.dim() == 2 and x.is_floating_point()


def _described(x: object) -> str:
    if not isinstance(x, Tensor):
        return type(x).__name__
    return f"{x.dtype} of shape {tuple(x.shape)}"
