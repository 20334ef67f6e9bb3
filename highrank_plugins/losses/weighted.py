"""Define targets: losses of log-probabilities, with their weights.

Every loss L of log P has dL = −Σ_x w_x dlog P_x for weights w [n, M]. An implementation needs no
more than L and w of a few tokens, which a `Target` returns. Targets multiply and add up.

| loss | w_x |
|---|---|
| labels | (1 − ε − ε_i) 1[x = y] + ε_i |
| forward KL, samples | q_x |
| reverse KL | −P_x (log P_x − log q_x − KL) |
| Jensen–Shannon | −½ P_x log(P_x / m_x), m = (P + q) / 2 |
| k classes and the rest's mass r | q_x of the k classes, r P_x / Σ_rest P elsewhere |
| entropy H | P_x (log P_x + H) |
| T² times a divergence of P' = P^(1/T) / Σ P^(1/T) | T (w_x − (Σw) P'_x) |

Suffixes of tensors are their shapes, see `heads.base`; N is a block of tokens here.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.kernels.torch import (
    Kernels,
    RecomputeLogits,
    entropy_of,
    log_domain_pass,
    recompute_in_log_domain,
    underflowing,
)
from highrank_plugins.losses.plan import LossPlan, MixtureBlock, Named, Scores, SoftmaxBlock

Weighted = tuple[Tensor, Tensor]  # a loss [n], differentiable in log P, and its weights w [n, M]
WeightedLoss = Callable[[Tensor, Named], Weighted]  # of log P [n, M], and what is given of n tokens


class Target:
    """Return a loss of each token's log-probabilities, and its weights on −log P.

    Args:
        loss: a function of log P [n, M] and the rows of `given`, which returns both.
        given: what belongs to tokens [*leading, ...], kept as [N, ...].
        leading: shape of the tokens; None fits any.
        classes: number M of classes; None fits any.
    """

    def __init__(
        self, loss: WeightedLoss, given: Named,
        leading: torch.Size | None = None, classes: int | None = None,
    ) -> None:  # fmt: skip
        self.loss, self.leading, self.classes = loss, leading, classes
        outer = len(leading or ())
        self.given = {n: t.detach().reshape(-1, *t.shape[outer:]) for n, t in given.items()}
        self.labels = given.get("label")  # as they were given

    def weighted(self, log_probs_NM: Tensor, rows_N: Tensor, label_N: Tensor | None) -> Weighted:
        """Return loss and w of tokens with the numbers `rows`, which rise and are on the CPU."""
        which = indices(rows_N)
        given = {name: t[which] for name, t in self.given.items()}
        if label_N is not None and "label" in given:
            given["label"] = label_N  # of ignored tokens any class
        return self.loss(log_probs_NM, given)

    def scores(self, plan: LossPlan, log_probs_NM: Tensor, rows_N: Tensor) -> tuple[Scores, Tensor]:
        """Return every score that a plan wants, and w [n, M]."""
        label_N = None if plan.label is None else plan.label[indices(rows_N)]
        loss_N, weight_NM = self.weighted(log_probs_NM, rows_N, label_N)
        if label_N is not None:
            scores = plan.scores_of(log_probs_NM.detach(), label_N)
            return scores._replace(smooth_sum_N=loss_N), weight_NM
        entropy_N = entropy_of(log_probs_NM.detach().exp()) if plan.entropy else None
        return Scores(loss_N.detach(), loss_N, None, entropy_N), weight_NM

    def of_rows(self, index_n: Tensor) -> Target:
        """Return the target whose tokens are given by the rows with some numbers."""
        other = copy.copy(self)
        other.given = {name: t[index_n.to(t.device)] for name, t in self.given.items()}
        return other

    def without_buffers(self, tokens: int) -> Target:
        """Return the target, or a copy if a part of a buffer is read: others may fill buffers."""
        given = [t for name, t in self.given.items() if not name.endswith("label")]
        are_parts = any(t.nbytes < t.untyped_storage().nbytes() for t in given)
        return self.of_rows(torch.arange(tokens, device="cpu")) if are_parts else self

    def read(self) -> list[Tensor]:
        """Return the tensors that each pass reads, but for labels."""
        return [t for name, t in self.given.items() if name != "label"]

    def __add__(self, other: Target) -> Target:
        return _Total((1.0, self), (1.0, other))

    def __mul__(self, factor: float) -> Target:
        if not math.isfinite(factor):
            raise ValueError(f"targets: expected a finite factor, got {factor}")
        return _Total((float(factor), self))

    __rmul__ = __mul__


class _Total(Target):
    """Add up targets, each times a factor."""

    def __init__(self, *parts: tuple[float, Target]) -> None:
        self.parts = parts
        self.given = {f"{i}.{n}": t for i, (_, p) in enumerate(parts) for n, t in p.given.items()}
        found: list[Any] = [
            {getattr(part, name) for _, part in parts} - {None}
            for name in ("leading", "classes", "labels")
        ]
        for name, values in zip(("tokens", "classes", "tensors of labels"), found, strict=True):
            if len(values) > 1:
                raise ValueError(f"targets: different {name} do not add up; give all the same")
        self.leading, self.classes, self.labels = (next(iter(values), None) for values in found)

    def weighted(self, log_probs_NM: Tensor, rows_N: Tensor, label_N: Tensor | None) -> Weighted:
        used = [pair for pair in self.parts if pair[0]] or self.parts  # not 0 × ∞
        parts = ((f, *part.weighted(log_probs_NM, rows_N, label_N)) for f, part in used)
        losses, weights = zip(*((f * loss, f * w) for f, loss, w in parts), strict=True)
        return sum(losses[1:], losses[0]), sum(weights[1:], weights[0])

    def read(self) -> list[Tensor]:
        return [t for _, part in self.parts for t in part.read()]

    def of_rows(self, index_n: Tensor) -> Target:
        return _Total(*((factor, part.of_rows(index_n)) for factor, part in self.parts))


def _product(probs: Tensor, values: Tensor) -> Tensor:
    """Return p v, and 0 where p is 0, whatever v is."""
    return probs * values.masked_fill(probs == 0, 0)


def of_labels(log_p: Tensor, given: Named, smoothing: float) -> Weighted:
    share = smoothing / max(log_p.size(-1) - 1, 1)
    at_label, index_N1 = 1 - smoothing - share, given["label"].unsqueeze(-1)
    loss = -at_label * log_p.gather(-1, index_N1).squeeze(-1)
    if share:
        loss = loss - share * log_p.sum(-1)
    weight = torch.full_like(log_p, share)
    return loss, weight.scatter_add_(-1, index_N1, weight.new_full(index_N1.shape, at_label))


def of_entropy(log_p: Tensor, given: Named) -> Weighted:
    p = log_p.exp()
    parts = _product(p, log_p)
    loss = -parts.sum(-1)
    return loss, torch.addcmul(parts, p, loss.unsqueeze(-1))


def require(kept: Tensor, message: str) -> None:
    """Raise ValueError unless a condition holds; a GPU checks it later, without a wait."""
    if kept.device.type != "cpu":
        torch._assert_async(kept, message)
    elif not kept:
        raise ValueError(message)


def _classes_within(given: Named, log_p: Tensor) -> Tensor:
    classes, size = given["classes"], log_p.size(-1)
    right = ((classes >= 0) & (classes < size)).all()
    require(right, f"target: a class is out of range [0, {size}), the head's dictionary")
    return classes


def of_top_k(log_p: Tensor, given: Named) -> Weighted:
    classes, q, rest = _classes_within(given, log_p), *(given[n].to(log_p) for n in ("q", "rest"))
    if classes.size(-1) == log_p.size(-1):  # there are no others, and 1 − Σ q is rounded
        rest = torch.zeros_like(rest)
    others = log_p.scatter(-1, classes, -torch.inf)
    if others.requires_grad:  # the gradient of a sum of −∞ alone would be NaN
        others = others.clamp_min(torch.finfo(others.dtype).min)
    log_others = others.logsumexp(-1, keepdim=True)
    loss = _product(q, q.log() - log_p.gather(-1, classes)).sum(-1)
    loss = loss + _product(rest, rest.log() - log_others).squeeze(-1)
    shift = (rest.log() - log_others.detach()).masked_fill(rest == 0, -torch.inf)
    return loss, (others.detach() + shift).exp_().scatter_(-1, classes, q)


def of_samples(log_p: Tensor, given: Named) -> Weighted:
    classes, share = _classes_within(given, log_p), given["weights"].to(log_p.dtype)
    loss = -(share * log_p.gather(-1, classes)).sum(-1)
    return loss, torch.zeros_like(log_p).scatter_add_(-1, classes, share)


def _forward(log_p: Tensor, log_q: Tensor) -> Weighted:
    q = log_q.exp()
    return _product(q, log_q - log_p).sum(-1), q


def _reverse(log_p: Tensor, log_q: Tensor) -> Weighted:
    p = log_p.exp()
    parts = _product(p, log_p - log_q)
    loss = parts.sum(-1)
    return loss, torch.addcmul(-parts, p, loss.unsqueeze(-1))


def _jensen_shannon(log_p: Tensor, log_q: Tensor) -> Weighted:
    # not −∞, whose logaddexp with −∞ has no gradient
    log_m = torch.logaddexp(log_p, log_q.clamp_min(-1e30)) - math.log(2)
    own = _product(log_p.exp(), log_p - log_m)
    return (own.sum(-1) + _product(log_q.exp(), log_q - log_m).sum(-1)) / 2, own / -2


DIVERGENCES = {"forward": _forward, "reverse": _reverse, "jensen_shannon": _jensen_shannon}


def divergence_of(name: str, temperature: float) -> WeightedLoss:
    """Return T² times a divergence at the temperature T: gradients keep their size as T grows."""
    if name not in DIVERGENCES:
        raise ValueError(f"divergence: unknown {name!r}; known: {', '.join(DIVERGENCES)}")
    if not isinstance(temperature, int | float) or not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature!r}")

    def loss(log_p: Tensor, given: Named) -> Weighted:
        log_q, t = given["log_q"].to(log_p.dtype), temperature
        if t == 1:
            return DIVERGENCES[name](log_p, log_q)
        warm = (log_p / t).log_softmax(-1)
        found, weight = DIVERGENCES[name](warm, (log_q / t).log_softmax(-1))
        return t * t * found, t * (weight - warm.exp() * weight.sum(-1, keepdim=True))

    return loss


def prepare(plan: LossPlan, leading: torch.Size) -> Target:
    """Put labels, or zeros, in the place of a plan's `Target`, which is checked and returned."""
    soft: Target = plan.target
    if plan.split is not None:
        raise ValueError("target: a split layer learns from classes int64 [...] alone")
    if soft.leading not in (None, leading):
        raise ValueError(f"target: made for tokens {tuple(soft.leading)}, but features have "
                         f"{tuple(leading)}; both must have the same tokens")  # fmt: skip
    classes = plan.head.num_classes
    if soft.classes not in (None, classes):
        raise ValueError(f"target: the teacher has {soft.classes} classes, the head {classes}; "
                         "both must have the same dictionary")  # fmt: skip
    needs = {"ignore_index": plan.ignore_index is not None, "accuracy": plan.accuracy}
    for name in (n for n, needed in needs.items() if needed and soft.labels is None):
        raise ValueError(f"{name}: this target has no labels; add 0 * targets.labels(y)")
    if plan.label_smoothing:
        raise ValueError("label_smoothing: give it to targets.labels instead")
    zeros = torch.zeros(leading, dtype=torch.int64, device=plan.features.device)
    plan.target = zeros if soft.labels is None else soft.labels
    return soft


def indices(rows_N: Tensor) -> slice | Tensor:
    """Return rising row numbers as a slice if none is left out: a view, without a copy to a GPU."""
    first, last = (int(rows_N[0]), int(rows_N[-1])) if len(rows_N) else (0, -1)
    return slice(first, last + 1) if last + 1 - first == len(rows_N) else rows_N


class TargetKernels(Kernels):
    """Make the passes over logits for any target, in torch's operations.

    A softmax's logits get (Σw) P_x − w_x. With u = w / P and c_k = Σ_x P_kx u_x, component k's
    logits get π_k P_kx (c_k − u_x), and log π_k −π_k c_k. Blocks have row numbers, no classes.
    """

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        logits_NM, rows_N, factor_N, weights, _ = block
        if bias_M is not None:
            logits_NM.add_(bias_M)
        values_NM, pullback = self.vjp(logits_NM)
        log_norm_N = values_NM.logsumexp(-1) if weights.z else None
        torch.log_softmax(values_NM, -1, out=values_NM)
        scores, weight_NM = self.weighed(values_NM, rows_N, True)
        if factor_N is not None:
            total_N = weight_NM.sum(-1)
            if log_norm_N is not None:
                total_N = total_N + 2 * weights.z * log_norm_N
            values_NM.exp_().mul_(total_N.unsqueeze(-1)).sub_(weight_NM)
            self.write_gradient(values_NM, pullback, factor_N, logits_NM)
        return scores._replace(square_norm_N=None if log_norm_N is None else log_norm_N.square())

    def mixture_pass(
        self, block: MixtureBlock, bias_M: Tensor | None, recompute_logits: RecomputeLogits
    ) -> Scores:
        if self.plan.z_loss or block.logits_NKM.device.type != "cpu":
            return log_domain_pass(self, block)
        logits_NKM, log_prior_NK, rows_N, scale_N, factor_NK, grad_prior_NK, _ = block
        values_NKM, pullback = self.vjp(logits_NKM)
        torch.softmax(values_NKM, -1, out=values_NKM)
        prior_NK = log_prior_NK.exp()
        mixture_NM = torch.bmm(prior_NK.unsqueeze(1), values_NKM).squeeze(1)
        lost = underflowing(mixture_NM)
        mixture_NM[lost] = 1.0
        scores, weight_NM = self.weighed(mixture_NM.log(), rows_N, True)
        if scale_N is not None:
            ratio_NM = weight_NM / mixture_NM
            share_NK1 = torch.bmm(values_NKM, ratio_NM.unsqueeze(-1))
            torch.mul(prior_NK, scale_N.unsqueeze(-1), out=factor_NK)
            torch.mul(factor_NK, share_NK1.squeeze(-1), out=grad_prior_NK).neg_()
            values_NKM.mul_(share_NK1 - ratio_NM.unsqueeze(1))
            values_NKM[lost] = 0.0
            self.write_gradient(values_NKM, pullback, factor_NK, logits_NKM)
        recompute_in_log_domain(self, lost, scores, block, recompute_logits)
        return scores
