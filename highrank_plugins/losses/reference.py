"""Compute all log-probabilities at once, by plain autograd: N × M × K numbers for a mixture."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.plan import LossOutput, LossPlan, Named, Scores


def reference_nll(plan: LossPlan) -> LossOutput:
    """Return the loss, gathered from all log-probabilities; differentiable any number of times."""
    tokens = plan.features.size(0)
    random_state = plan.random_state.rows(0, tokens)
    scores = scores_of_log_probs(
        plan, plan.features, plan.target, plan.head.tensors(), random_state
    )
    out = plan.output(scores, 0, tokens)
    return out if plan.reduction == "none" else out.map(torch.sum)


def scores_of_log_probs(
    plan: LossPlan, features: Tensor, target: Tensor, tensors: Named, random_state: Any
) -> Scores:
    """Return the scores of a run of tokens from all their log-probabilities."""
    log_probs = plan.head.chunk_log_probs(features, tensors, random_state)
    fixed = log_probs.detach()
    return Scores(
        -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1),
        -log_probs.sum(-1) if plan.smooth else None,
        fixed.argmax(-1) == target if plan.accuracy else None,
        torch.special.entr(fixed.exp()).sum(-1) if plan.entropy else None,
        square_norms(plan, features, tensors, random_state),
    )


def square_norms(
    plan: LossPlan, features: Tensor, tensors: Named, random_state: Any
) -> Tensor | None:
    """Return Σ_k lse_k² [n] of a run of tokens; None without z-loss."""
    if not plan.z_loss:
        return None
    return plan.head.chunk_log_norms(features, tensors, random_state).square().sum(-1)
