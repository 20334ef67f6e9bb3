"""Choose the dtypes and scales of a loss in half precision."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor

from highrank_plugins.losses.plan import LossPlan

# A power of two on the logits' gradients in float16. They exist before a trainer scales the loss,
# and 2e-8 would become 0. It is fairseq's initial --fp16 loss scale, and gives the range of a stock
# model.
HALF_SCALE = 128.0


class Autocast:
    """Keep the autocast state of the call, and restore it around each chunk."""

    def __init__(self, features: Tensor) -> None:
        self.device = features.device.type
        # device meta, which counts a GPU's peak, has no autocast
        self.exists = torch.amp.is_autocast_available(self.device)
        self.enabled = self.exists and torch.is_autocast_enabled(self.device)
        self.dtype = torch.get_autocast_dtype(self.device) if self.exists else features.dtype

    def compute_dtype(self, features: Tensor) -> torch.dtype:
        """Return the dtype of matrix products."""
        # autocast does not touch float64
        return self.dtype if self.enabled and features.dtype != torch.float64 else features.dtype

    def context(self) -> AbstractContextManager[None]:
        """Restore the state, without a cache, which would keep graphs across chunks."""
        return self._state(self.enabled)

    def disabled(self) -> AbstractContextManager[None]:
        """Turn autocast off, for code that chooses its dtypes itself."""
        return self._state(False)

    def _state(self, enabled: bool) -> AbstractContextManager[None]:
        if not self.exists:
            return nullcontext()
        return torch.autocast(self.device, dtype=self.dtype, enabled=enabled, cache_enabled=False)


def half_scale(plan: LossPlan, compute: torch.dtype) -> float:
    """Return the factor of the gradients of logits; a backward pass brings its own scale."""
    return HALF_SCALE if compute == torch.float16 and plan.reduction == "sum" else 1.0
