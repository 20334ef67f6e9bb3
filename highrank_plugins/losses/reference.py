"""Compute the scores of any head by autograd: all at once, the reference, or in chunks.

The reference holds all log-probabilities, N × M × K numbers for a mixture.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import tokens_within
from highrank_plugins.losses.fused import FusedLoss, LossChunk
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
    if plan.soft is not None:
        scores, _ = plan.soft.scores(plan, log_probs, target)
        return scores._replace(square_norm_N=square_norms(plan, features, tensors, random_state))
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


class AutogradLoss(FusedLoss):
    """Compute the scores of a chunk by autograd, for any head; `token_inputs` are the scores."""

    reads = ()
    joins_chunks = False

    def __init__(self, plan: LossPlan, *_: Any) -> None:
        self.plan = plan
        self.weights = {"nll_N": plan.target_weight, "smooth_sum_N": plan.smoothing_weight,
                        "square_norm_N": plan.z_loss}  # fmt: skip

    def chunk_tokens(self) -> int:
        plan = self.plan
        return plan.most or tokens_within(plan.features, plan.head.floats_per_token(), plan.memory)

    def token_inputs(
        self, features: Tensor, target: Tensor, tensors: Named, random_state: Any
    ) -> Named:
        plan = self.plan
        if plan.accuracy or plan.entropy or plan.soft is not None:
            scores = scores_of_log_probs(plan, features, target, tensors, random_state)
        else:
            nll, smooth = plan.head.chunk_nll(features, target, tensors, random_state, plan.smooth)
            square_norm = square_norms(plan, features, tensors, random_state)
            scores = Scores(nll, smooth, square_norm_N=square_norm)
        return {name: s for name, s in scores._asdict().items() if s is not None}

    def chunk(self, chunk: LossChunk) -> Scores:
        given, scale_N = chunk.given, chunk.scale_N
        if scale_N is not None:
            for name in chunk.grads:
                weight = self.weights.get(name, 1.0)
                scaled_N = scale_N if weight == 1 else scale_N * weight
                chunk.grads[name] = scaled_N.to(given[name].dtype)
        return Scores(**given)

    def finish(self) -> None:
        pass
