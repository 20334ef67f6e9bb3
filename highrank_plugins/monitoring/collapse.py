"""Detect components of a mixture that have collapsed."""

from __future__ import annotations

from collections import deque

import torch
from torch import Tensor

SHARE = 0.01  # fraction of 1/K below which a component has collapsed
WINDOW = 10  # number of batches in a window


class CollapseWatch:
    """Report components whose mean weight over a window of batches is below 1 % of 1/K.

    Reports begin when the window is full. A component is reported once, until it has recovered.

    Args:
        window: number of batches.
    """

    def __init__(self, window: int = WINDOW) -> None:
        self._recent: deque[Tensor] = deque(maxlen=window)
        self._collapsed: set[int] = set()

    def see(self, use: Tensor) -> list[int]:
        """Return the components that have collapsed since the last batch, counted from 0.

        Args:
            use: mean weight of each component in a batch [K]; they add up to 1.
        """
        self._recent.append(use)
        if len(self._recent) < (self._recent.maxlen or 1):
            return []
        mean = torch.stack(list(self._recent)).mean(0)
        collapsed = set((mean < SHARE / len(mean)).nonzero().flatten().tolist())
        new = collapsed - self._collapsed
        self._collapsed = collapsed
        return sorted(new)
