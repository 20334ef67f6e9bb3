"""GSS and SigSoftmax for the fused losses: few passes, in place."""

from __future__ import annotations

from torch import Tensor
from torch.nn import functional as F

from highrank_plugins.heads.pointwise.base import Evaluate, Pullback


def bent_line(c: float, k: float) -> Evaluate:
    """f(z) = z + (k − 1) log σ(z − c), which is GSS, and its slope k − (k − 1) σ(z − c): one log σ
    of each logit and one exponential of that."""

    def evaluate(z: Tensor) -> tuple[Tensor, Pullback]:
        log_gate = F.logsigmoid(z.sub(c) if c else z)
        values = z.add_(log_gate, alpha=k - 1)
        gate = log_gate.exp_()

        def pullback(grad: Tensor) -> Tensor:
            slope = gate.mul_(1 - k).add_(k)
            return grad.mul_(slope)

        return values, pullback

    return evaluate
