"""Widen numbers to at least float32."""

from __future__ import annotations

import torch
from torch import Tensor


def widen(x: Tensor) -> Tensor:
    """Return x in at least float32, where log-sum-exps and mixtures are computed."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def below_largest(values: Tensor) -> Tensor:
    """Return values [..., M] less the largest of each row, which changes no softmax.

    A log-sum-exp of 2e6 is rounded to 1/4 in float32. The probabilities exp(value − lse) in its
    gradient would then be wrong by up to 13 %, and no longer cancel where they should.
    """
    largest = values.detach().amax(-1, keepdim=True)
    # −∞, where all biases are −∞, must not be subtracted
    return values - largest.masked_fill(largest == -torch.inf, 0)
