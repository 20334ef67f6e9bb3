"""Learn from any target: labels, a teacher, cached classes, samples, or the model's own entropy.

Every loss L of log P has dL = −Σ_x w_x dlog P_x for weights w [n, M]. An implementation needs no
more than L and w of a few tokens, which a `Target` returns. Targets multiply and add up:

    target = 0.5 * targets.labels(y) + 0.5 * targets.from_teacher(teacher, teacher_features)
    head.nll(features, target, reduction="mean").loss.backward()

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
from functools import partial
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.common.names import did_you_mean
from highrank_plugins.losses.chunking import chunk_memory
from highrank_plugins.losses.kernels.torch import (
    Kernels,
    RecomputeLogits,
    entropy_of,
    log_domain_pass,
    recompute_in_log_domain,
    underflowing,
)
from highrank_plugins.losses.own_layers import is_ours
from highrank_plugins.losses.plan import (
    AnyHead,
    LossPlan,
    MixtureBlock,
    Named,
    Scores,
    SoftmaxBlock,
)
from highrank_plugins.losses.runner import run

Weighted = tuple[Tensor, Tensor]  # a loss [n], differentiable in log P, and its weights w [n, M]
LEAST_TEACHER = 2**23  # bytes of a teacher's log-probabilities, at least


class Target:
    """Return a loss of each token's log-probabilities, and its weights on −log P.

    Args:
        loss: a function of log P [n, M] and the rows of `given`, which returns both.
        given: what belongs to tokens [*leading, ...], kept as [N, ...].
        leading: shape of the tokens; None fits any.
        classes: number M of classes; None fits any.
    """

    def __init__(
        self, loss: Callable[[Tensor, Named], Weighted], given: Named,
        leading: torch.Size | None = None, classes: int | None = None,
    ) -> None:  # fmt: skip
        self.loss, self.leading, self.classes = loss, leading, classes
        outer = len(leading or ())
        self.given = {n: t.detach().reshape(-1, *t.shape[outer:]) for n, t in given.items()}
        self.labels = given.get("label")  # as they were given

    def weighted(self, log_probs_NM: Tensor, rows_N: Tensor) -> Weighted:
        """Return loss and w of tokens with the numbers `rows`, which rise and are on the CPU."""
        which = indices(rows_N)
        return self.loss(log_probs_NM, {name: t[which] for name, t in self.given.items()})

    def scores(self, plan: LossPlan, log_probs_NM: Tensor, rows_N: Tensor) -> tuple[Scores, Tensor]:
        """Return every score that a plan wants, and w [n, M]."""
        loss_N, weight_NM = self.weighted(log_probs_NM, rows_N)
        fixed_NM, nll_N, correct_N = log_probs_NM.detach(), loss_N.detach(), None
        if plan.label is not None:
            label_N = plan.label[indices(rows_N)]
            nll_N = -fixed_NM.gather(-1, label_N.unsqueeze(-1)).squeeze(-1)
            correct_N = fixed_NM.argmax(-1) == label_N if plan.accuracy else None
        entropy_N = entropy_of(fixed_NM.exp()) if plan.entropy else None
        return Scores(nll_N, None, correct_N, entropy_N, None, loss_N), weight_NM

    def changed(self, change: Callable[[Named], Named]) -> Target:
        """Return the target with other rows of tokens: `change` of what was given."""
        other = copy.copy(self)
        other.given = change(self.given)
        return other

    def __add__(self, other: Target) -> Target:
        return _Total((1.0, self), (1.0, other))

    def __mul__(self, factor: float) -> Target:
        return _Total((float(factor), self))

    __rmul__ = __mul__


class _Total(Target):
    """Add up targets, each times a factor."""

    def __init__(self, *parts: tuple[float, Target]) -> None:
        self.parts, self.given = parts, {}
        found: list[Any] = [
            {getattr(part, name) for _, part in parts} - {None}
            for name in ("leading", "classes", "labels")
        ]
        for name, values in zip(("tokens", "classes", "labels"), found, strict=True):
            if len(values) > 1:
                raise ValueError(f"targets: different {name} do not add up; give all the same")
        self.leading, self.classes, self.labels = (next(iter(values), None) for values in found)

    def weighted(self, log_probs_NM: Tensor, rows_N: Tensor) -> Weighted:
        parts = ((f, *part.weighted(log_probs_NM, rows_N)) for f, part in self.parts)
        losses, weights = zip(*((f * loss, f * w) for f, loss, w in parts), strict=True)
        return sum(losses[1:], losses[0]), sum(weights[1:], weights[0])

    def changed(self, change: Callable[[Named], Named]) -> Target:
        return _Total(*((factor, part.changed(change)) for factor, part in self.parts))


class _Teacher(Target):
    """Compute log q by another head without gradients, some tokens ahead of the model's.

    Products are thus large, also where the model asks for few tokens at a time.
    """

    def __init__(
        self, head: AnyHead, features: Tensor, loss: Callable[[Tensor, Named], Weighted]
    ) -> None:  # fmt: skip
        super().__init__(loss, {"features": features}, features.shape[:-1], head.num_classes)
        self.head, self.kept, self.start = head, features[:0], 0  # log q of tokens from `start` on
        shape = (head.num_classes, head.embed_dim)
        # log q and logits, and the logits of the model, which are a chunk
        self.memory = max(chunk_memory(features, None, shape) // 3, LEAST_TEACHER)
        self.ahead = max(1, self.memory // (head.num_classes * max(4, features.element_size())))

    def changed(self, change: Callable[[Named], Named]) -> Target:
        other: Any = super().changed(change)
        other.kept = self.kept[:0]
        return other

    def weighted(self, log_probs_NM: Tensor, rows_N: Tensor) -> Weighted:
        return self.loss(log_probs_NM, {"log_q": self.log_q(rows_N)})

    def log_q(self, rows_N: Tensor) -> Tensor:
        """Return log q [n, M] of the tokens with some numbers."""
        which, features = indices(rows_N), self.given["features"]
        if not isinstance(which, slice):  # few tokens, for the second time
            return self.log_probs(features[which])
        a, b = which.start, which.stop
        if a == 0 or not self.start <= a <= b <= self.start + len(self.kept):  # 0: another pass
            self.kept = features[:0]  # frees the memory first
            size = max(1, self.ahead // max(1, b - a)) * (b - a)  # blocks of the model are equal
            self.start, self.kept = a, self.log_probs(features[a : a + size])
        kept = self.kept
        if b == len(features):
            self.kept = features[:0]
        return kept[a - self.start : b - self.start]

    @torch.no_grad()
    def log_probs(self, features_NF: Tensor) -> Tensor:
        """Return log q [n, M]; a fused loss runs as far as log P."""
        head, x = self.head, features_NF
        wide = torch.promote_types(x.dtype, torch.float32)
        out = x.new_empty((len(x), head.num_classes), dtype=wide)

        def copies(log_probs_NM: Tensor, given: Named) -> Weighted:
            out[indices(given["row"])] = log_probs_NM
            return log_probs_NM[:, 0], log_probs_NM

        rows = torch.arange(len(x))
        floats = (
            head.floats_per_token() if head.fused is None else head.fused.floats_per_token(head)
        )
        plan = LossPlan(
            head, x, rows, None, head.sample_masks(x.shape[:1], x), 0.0, None, False, False,
            own=not is_ours(head), most=max(1, self.memory // (out.element_size() * floats)),
            soft=Target(copies, {"row": rows}, rows.shape),
        )  # fmt: skip
        run(plan, None if head.fused is None else TargetKernels)
        return out


# -- losses and weights ----------------------------------------------------------------------------


def _product(probs: Tensor, values: Tensor) -> Tensor:
    """Return p v, and 0 where p is 0, whatever v is."""
    return probs * values.masked_fill(probs == 0, 0)


def _labels(log_p: Tensor, given: Named, smoothing: float) -> Weighted:
    share = smoothing / max(log_p.size(-1) - 1, 1)
    at_label, index_N1 = 1 - smoothing - share, given["label"].unsqueeze(-1)
    loss = -at_label * log_p.gather(-1, index_N1).squeeze(-1)
    if share:
        loss = loss - share * log_p.sum(-1)
    weight = torch.full_like(log_p, share)
    return loss, weight.scatter_add_(-1, index_N1, weight.new_full(index_N1.shape, at_label))


def _entropy(log_p: Tensor, given: Named) -> Weighted:
    p = log_p.exp()
    parts = _product(p, log_p)
    loss = -parts.sum(-1)
    return loss, torch.addcmul(parts, p, loss.unsqueeze(-1))


def _top_k(log_p: Tensor, given: Named) -> Weighted:
    classes, (q, rest) = given["classes"], (given[n].to(log_p.dtype) for n in ("q", "rest"))
    others = log_p.scatter(-1, classes, -torch.inf)
    log_others = others.logsumexp(-1, keepdim=True)
    loss = _product(q, q.log() - log_p.gather(-1, classes)).sum(-1)
    loss = loss + _product(rest, rest.log() - log_others).squeeze(-1)
    shift = (rest.log() - log_others.detach()).masked_fill(rest == 0, -torch.inf)
    return loss, (others.detach() + shift).exp_().scatter_(-1, classes, q)


def _samples(log_p: Tensor, given: Named) -> Weighted:
    classes, share = given["classes"], given["weights"].to(log_p.dtype)
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


def _divergence(name: str, temperature: float) -> Callable[[Tensor, Named], Weighted]:
    """Return T² times a divergence at the temperature T: gradients keep their size as T grows."""
    if name not in DIVERGENCES:
        hint = did_you_mean(name, DIVERGENCES)
        raise ValueError(f"divergence: unknown {name!r}{hint}; known: {', '.join(DIVERGENCES)}")
    if not 0 < temperature < math.inf:
        raise ValueError(f"temperature must be above 0 and finite, got {temperature}")

    def loss(log_p: Tensor, given: Named) -> Weighted:
        log_q, t = given["log_q"].to(log_p.dtype), temperature
        if t == 1:
            return DIVERGENCES[name](log_p, log_q)
        warm = (log_p / t).log_softmax(-1)
        found, weight = DIVERGENCES[name](warm, (log_q / t).log_softmax(-1))
        return t * t * found, t * (weight - warm.exp() * weight.sum(-1, keepdim=True))

    return loss


# -- what users call -------------------------------------------------------------------------------


def labels(target: Tensor, label_smoothing: float = 0.0) -> Target:
    """Return the target of `Head.nll` itself: classes int64 [...], and label smoothing."""
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    return Target(partial(_labels, smoothing=label_smoothing), {"label": target}, target.shape)


def entropy() -> Target:
    """Return the model's entropy in nats as a loss; a negative factor rewards it."""
    return Target(_entropy, {})


def from_teacher(
    head: AnyHead, features: Tensor, *, divergence: str = "forward", temperature: float = 1.0
) -> Target:
    """Return T² KL(q ‖ P) for the q of another head, computed without gradients, by chunks.

    Args:
        head: the teacher's head, of the same classes, in evaluation mode.
        features: what the teacher's head reads [..., F], of the student's tokens.
        divergence: "forward", "reverse" (KL(P ‖ q)) or "jensen_shannon".
        temperature: T of both distributions.
    """
    if head.training:
        raise ValueError("from_teacher: the teacher would draw dropout masks; call teacher.eval()")
    flat = head.flatten_features(features).detach().view(features.shape)
    return _Teacher(head, flat, _divergence(divergence, temperature))


def from_probabilities(
    source: Tensor | Callable[[Tensor], Tensor], *, tokens: torch.Size | None = None,
    divergence: str = "forward", temperature: float = 1.0,
) -> Target:  # fmt: skip
    """Return a divergence as `from_teacher` does, from probabilities.

    Args:
        source: probabilities [..., M]; or a function that returns those [n, M] of the tokens with
            the numbers int64 [n], on the CPU, in the flattened batch.
        tokens: shape [...] of the batch, for a function.
        divergence, temperature: as those of `from_teacher`.
    """
    diverges = _divergence(divergence, temperature)
    if isinstance(source, Tensor):
        tokens, function, given = source.shape[:-1], None, {"q": source}
    elif tokens is None:
        raise ValueError("from_probabilities: a function needs tokens=features.shape[:-1]")
    else:
        function, given = source, {"row": torch.arange(math.prod(tokens)).view(tokens)}

    def loss(log_p: Tensor, rows: Named) -> Weighted:
        q = rows["q"] if function is None else function(rows["row"]).detach()
        if q.shape != log_p.shape:
            raise ValueError(f"from_probabilities: expected {list(log_p.shape)} probabilities of a "
                             f"chunk, got {list(q.shape)}")  # fmt: skip
        _check_sums("from_probabilities", q.sum(-1))
        return diverges(log_p, {"log_q": q.log()})

    return Target(loss, given, tokens, None if function else given["q"].size(-1))


def from_top_k(log_probs: Tensor, classes: Tensor, rest: Tensor | None) -> Target:
    """Return the KL of k classes, as `Head.top_k` returns them, and of all others as one more.

    Args:
        log_probs: the teacher's log-probabilities [..., k] of the classes.
        classes: int64 [..., k], no class twice.
        rest: the probability [...] of all other classes: 1 − log_probs.exp().sum(-1).
    """
    if rest is None:
        raise ValueError("from_top_k: the probability of the other classes is missing; pass "
                         "rest=1 - log_probs.exp().sum(-1), before any normalisation")  # fmt: skip
    q = log_probs.exp()
    _check_classes("from_top_k", classes, q)
    _check_sums("from_top_k", q.sum(-1) + rest)
    ordered = classes.sort(-1).values
    _require((ordered[..., 1:] != ordered[..., :-1]).all(), "from_top_k: a token has a class twice")
    given = {"q": q, "classes": classes, "rest": rest.clamp_min(0).unsqueeze(-1)}
    return Target(_top_k, given, classes.shape[:-1])


def from_samples(classes: Tensor, weights: Tensor | None = None) -> Target:
    """Return the cross-entropy of classes drawn from a teacher: unbiased, other than that of top-k.

    See https://arxiv.org/abs/2503.16870; `draw` draws from a head.

    Args:
        classes: int64 [..., n]; a class may come several times.
        weights: of the samples [..., n], if they come from another distribution than the teacher's;
            their sum is 1. Default: 1/n.
    """
    if weights is None:
        weights = torch.full_like(classes, 1 / max(1, classes.size(-1)), dtype=torch.float64)
    _check_classes("from_samples", classes, weights)
    _check_sums("from_samples", weights.sum(-1))
    return Target(_samples, {"classes": classes, "weights": weights}, classes.shape[:-1])


def draw(head: AnyHead, features: Tensor, samples: int) -> Tensor:
    """Return classes int64 [..., samples] drawn from log P of features, a chunk at a time."""
    teacher: Any = from_teacher(head, features)
    drawn = [
        teacher.log_probs(part).exp().multinomial(samples, replacement=True)
        for part in teacher.given["features"].split(teacher.ahead)
    ]
    return torch.cat(drawn).view(*features.shape[:-1], samples)


# -- checks ----------------------------------------------------------------------------------------


def prepare(plan: LossPlan, leading: torch.Size, ignore_index: int | None) -> Target | None:
    """Put labels, or zeros, in the place of a plan's target; return this if it is a `Target`."""
    soft: Any = plan.target
    if not isinstance(soft, Target):
        return None
    if soft.leading not in (None, leading):
        raise ValueError(f"target: expected shape {tuple(leading)}, that of features without the "
                         f"last dimension, got {tuple(soft.leading)}")  # fmt: skip
    classes = plan.head.num_classes
    if soft.classes not in (None, classes):
        raise ValueError(f"target: the teacher has {soft.classes} classes, the head {classes}; "
                         "both must have the same dictionary")  # fmt: skip
    needs = {"ignore_index": ignore_index is not None, "accuracy": plan.accuracy}
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


def _require(kept: Tensor, message: str) -> None:
    if kept.device.type != "cpu":
        torch._assert_async(kept, message)
    elif not kept:
        raise ValueError(message)


def _check_classes(name: str, classes: Tensor, like: Tensor) -> None:
    if classes.dtype != torch.int64 or classes.shape != like.shape:
        raise ValueError(f"{name}: expected classes int64 {list(like.shape)}, got {classes.dtype} "
                         f"{list(classes.shape)}")  # fmt: skip


def _check_sums(name: str, total: Tensor) -> None:
    right = (total - 1).abs() <= (1e-3 if total.element_size() > 2 else 2e-2)
    shown = ""
    if total.device.type == "cpu" and total.numel():
        shown = f" ({total.flatten()[right.flatten().int().argmin()]:.4g})"
    _require(right.all(), f"{name}: the probabilities of a token do not sum to 1{shown}")


# -- the passes ------------------------------------------------------------------------------------


class TargetKernels(Kernels):
    """Make the passes over logits for any target, in torch's operations.

    A softmax's logits get (Σw) P_x − w_x. With u = w / P and c_k = Σ_x P_kx u_x, component k's
    logits get π_k P_kx (c_k − u_x), and log π_k −π_k c_k. Blocks have row numbers, no classes.
    """

    def __init__(self, plan: LossPlan, tensors: Named, sums: Named, compute: torch.dtype) -> None:
        super().__init__(plan, tensors, sums, compute)
        self.place = tensors.get("place")  # of each class among the logits

    def weighed(self, log_probs: Tensor, target_N: Tensor, wanted: bool) -> tuple[Scores, Any]:
        """Return the scores of log P [n, M], and w [n, M]."""
        if self.place is None:
            return self.plan.soft.scores(self.plan, log_probs, target_N)
        scores, weight = self.plan.soft.scores(self.plan, log_probs[:, self.place], target_N)
        return scores, weight[:, self.place.argsort()]

    def softmax_pass(self, block: SoftmaxBlock, bias_M: Tensor | None) -> Scores:
        """Return the scores, and write gradients, see `Kernels.softmax_pass`."""
        logits_NM, rows_N, factor_N, weights = block
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
        """Return the scores, and write gradients, see `Kernels.mixture_pass`."""
        if self.plan.z_loss or block.logits_NKM.device.type != "cpu":
            return log_domain_pass(self, block)
        logits_NKM, log_prior_NK, rows_N, scale_N, factor_NK, grad_prior_NK = block
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
