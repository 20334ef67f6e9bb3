"""GSS and SigSoftmax for the fused losses: few passes, in place."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from .base import Evaluate, Pullback


def bent_line(c: float, k: float) -> Evaluate:
    """f(z) = k z − (k − 1) q with q = c + log(1 + e^(z−c)) = z − log σ(z − c), and its slope
    k − (k − 1) σ(z − c), from one exponential of each logit and one of its log σ."""

    def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
        log_gate = F.logsigmoid(z.sub(c) if c else z)
        bend = torch.sub(z, log_gate)
        values = z.mul_(k).sub_(bend, alpha=k - 1)
        gate = log_gate.exp_()

        def pullback(grad: Tensor) -> Tensor:
            slope = gate.mul_(1 - k).add_(k)
            return grad.mul_(slope)

        return values, pullback

    return evaluate
