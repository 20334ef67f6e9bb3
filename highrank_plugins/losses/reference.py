"""Compute all log-probabilities at once, by plain autograd: N × M × K numbers for a mixture."""

from __future__ import annotations

from highrank_plugins.losses.plan import LossOutput, LossPlan


def reference_nll(plan: LossPlan) -> LossOutput:
    """Return the loss, gathered from all log-probabilities; differentiable any number of times."""
    tokens = plan.features.size(0)
    log_probs = plan.head.chunk_log_probs(
        plan.features, plan.head.tensors(), plan.random_state.rows(0, tokens)
    )
    nll = -log_probs.gather(-1, plan.target.unsqueeze(-1)).squeeze(-1)
    smooth_sum = -log_probs.sum(-1) if plan.smooth else None
    loss = plan.combine(nll, smooth_sum, 0, tokens)
    nll = plan.blank(nll.detach(), 0, tokens)
    correct = plan.correct(log_probs, 0, tokens) if plan.accuracy else None
    if plan.reduction == "none":
        return LossOutput(loss, nll, correct)
    return LossOutput(loss.sum(), nll.sum(), None if correct is None else correct.sum())
