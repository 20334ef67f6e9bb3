"""Widen numbers to at least float32."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """Return x in at least float32, where log-sum-exps and mixtures are computed."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x
