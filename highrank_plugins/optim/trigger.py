"""Decide when averaging begins: the non-monotone criterion of Merity et al. 2018."""

import math
from collections.abc import Sequence


def non_monotone_trigger(losses: Sequence[float], n: int = 5) -> int | None:
    """Return the epoch at whose end averaging is switched on, or None if that has not come.

    It is the first e with e − 1 > n and loss_e > min(loss_1, …, loss_{e−1−n}): the loss is worse
    than the best of all epochs but the last n. It is never before epoch n + 2.

    Args:
        losses: validation losses of epochs 1, 2, …, of the raw weights.
        n: the interval, at least 0; 5 in the paper.
    Returns:
        e, counted from 1.
    Raises:
        ValueError: n below 0, or a loss that is NaN.
    """
    if n < 0:
        raise ValueError(f"n must be at least 0, got {n}")
    best = math.inf  # of all epochs but the last n before `epoch`
    for epoch, loss in enumerate(losses, start=1):
        if math.isnan(loss):
            raise ValueError(f"the validation loss of epoch {epoch} is NaN")
        if epoch - 1 > n:
            best = min(best, losses[epoch - 2 - n])
            if loss > best:
                return epoch
    return None
