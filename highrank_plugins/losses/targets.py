"""Make targets to learn from: labels, a teacher, cached classes, samples, the model's entropy.

    target = 0.5 * targets.labels(y) + 0.5 * targets.from_teacher(teacher, teacher_features)
    head.nll(features, target, reduction="mean").loss.backward()

Suffixes of tensors are their shapes, see `heads.base`; N is a block of tokens here.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.common.torch_state import autocast_dtype
from highrank_plugins.losses.chunking import chunk_memory
from highrank_plugins.losses.nll import compute, implementation_for
from highrank_plugins.losses.plan import AnyHead, LossPlan, Named
from highrank_plugins.losses.weighted import (
    Target,
    Weighted,
    WeightedLoss,
    divergence_of,
    indices,
    of_entropy,
    of_labels,
    of_samples,
    of_top_k,
    require,
)
from highrank_plugins.own_layers.ours import is_ours

LEAST_TEACHER = 2**22  # bytes of a teacher's log-probabilities, at least


def labels(target: Tensor, label_smoothing: float = 0.0) -> Target:
    """Return the target of `Head.nll` itself: classes int64 [...], and label smoothing."""
    _check_tensors("labels", target=target)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    return Target(partial(of_labels, smoothing=label_smoothing), {"label": target}, target.shape)


def entropy() -> Target:
    """Return the model's entropy in nats as a loss; a negative factor rewards it."""
    return Target(of_entropy, {})


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
    if not hasattr(head, "flatten_features"):
        raise ValueError(f"from_teacher: expected a head, got {type(head).__name__}")
    if head.training:
        raise ValueError("from_teacher: the teacher would draw dropout masks; call teacher.eval()")
    flat = head.flatten_features(features).detach().view(features.shape)
    return _Teacher(head, flat, divergence_of(divergence, temperature))


def from_probabilities(
    q: Tensor, *, divergence: str = "forward", temperature: float = 1.0
) -> Target:
    """Return a divergence as `from_teacher` does, from probabilities [..., M].

    Rows of ignored tokens are not read.
    """
    diverges = divergence_of(divergence, temperature)
    _check_tensors("from_probabilities", probabilities=q)

    def loss(log_p: Tensor, given: Named) -> Weighted:
        q = given["q"]
        require((q >= 0).all(), "from_probabilities: a probability is below 0 or NaN")
        _check_sums("from_probabilities", q.sum(-1))
        return diverges(log_p, {"log_q": q.to(log_p.dtype).log()})

    return Target(loss, {"q": q}, q.shape[:-1], q.size(-1))


def from_top_k(log_probs: Tensor, classes: Tensor, rest: Tensor) -> Target:
    """Return the KL of k classes, as `Head.top_k` returns them, and of all others as one more.

    Args:
        log_probs: the teacher's log-probabilities [..., k] of the classes.
        classes: int64 [..., k], no class twice.
        rest: the probability [...] of all other classes: 1 − log_probs.exp().sum(-1), before any
            normalisation.
    """
    _check_tensors("from_top_k", log_probs=log_probs, classes=classes, rest=rest)
    q = log_probs.exp()
    _check_classes("from_top_k", classes, q)
    if rest.shape != classes.shape[:-1]:
        raise ValueError(f"from_top_k: rest: expected shape {list(classes.shape[:-1])}, got "
                         f"{list(rest.shape)}")  # fmt: skip
    _check_sums("from_top_k", q.sum(-1) + rest.clamp_min(0))  # raw logits have a rest below 0
    ordered = classes.sort(-1).values
    require((ordered[..., 1:] != ordered[..., :-1]).all(), "from_top_k: a token has a class twice")
    given = {"q": q, "classes": classes, "rest": rest.clamp_min(0).unsqueeze(-1)}
    return Target(of_top_k, given, classes.shape[:-1])


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
    return Target(of_samples, {"classes": classes, "weights": weights}, classes.shape[:-1])


def draw(head: AnyHead, features: Tensor, samples: int) -> Tensor:
    """Return classes int64 [..., samples] drawn from log P of features, a chunk at a time."""
    teacher: Any = from_teacher(head, features)
    drawn = [
        teacher.log_probs(part).exp().multinomial(samples, replacement=True)
        for part in teacher.given["features"].split(teacher.ahead)
    ]
    return torch.cat(drawn).view(*features.shape[:-1], samples)


class _Teacher(Target):
    """Compute log q by another head without gradients, some tokens ahead of the model's.

    Products are thus large, also where the model asks for few tokens at a time.
    """

    def __init__(self, head: AnyHead, features: Tensor, loss: WeightedLoss) -> None:
        super().__init__(loss, {"features": features}, features.shape[:-1], head.num_classes)
        features = self.given["features"]
        self.head, self.kept, self.start = head, features[:0], 0  # log q of tokens from `start` on
        self.autocast = autocast_dtype(features)
        shape = (head.num_classes, head.embed_dim)
        # log q and logits, and the logits of the model, which are a chunk
        self.memory = max(chunk_memory(features, None, shape) // 5, LEAST_TEACHER)
        self.ahead = max(1, self.memory // (head.num_classes * max(4, features.element_size())))

    def read(self) -> list[Tensor]:
        return [*super().read(), *self.head.parameters(), *self.head.buffers()]

    def weighted(self, log_probs_NM: Tensor, rows_N: Tensor, label_N: Tensor | None) -> Weighted:
        return self.loss(log_probs_NM, {"log_q": self.log_q(rows_N)})

    def log_q(self, rows_N: Tensor) -> Tensor:
        """Return log q [n, M] of the tokens with some numbers."""
        which, features = indices(rows_N), self.given["features"]
        if not isinstance(which, slice):  # few tokens, for the second time
            return self.log_probs(features[which])
        a, b = which.start, which.stop
        if a == 0 or not self.start <= a <= b <= self.start + len(self.kept):  # 0: other tokens
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

        rows = torch.arange(len(x), device="cpu")
        ours = is_ours(head)
        fused = head.fused if ours else None  # of an own layer nobody has checked it
        floats = fused.floats_per_token(head) if fused else head.floats_per_token()
        plan = LossPlan(
            head, x, rows, head.sample_masks(x.shape[:1], x), reduction="sum",
            own=not ours, most=max(1, self.memory // (out.element_size() * floats)),
            falls_back=True, soft=Target(copies, {"row": rows}, rows.shape),
        )  # fmt: skip
        device, by = x.device.type, self.autocast  # that of the caller of `from_teacher`
        with torch.autocast(device, by, by is not None, cache_enabled=False):
            compute(implementation_for(plan) if fused else "chunked", plan)
        return out


def _check_classes(name: str, classes: Tensor, like: Tensor) -> None:
    if classes.dtype != torch.int64 or classes.shape != like.shape:
        raise ValueError(f"{name}: expected classes int64 {list(like.shape)}, got {classes.dtype} "
                         f"{list(classes.shape)}")  # fmt: skip


def _check_tensors(name: str, **given: object) -> None:
    for argument, value in given.items():
        if not isinstance(value, Tensor):
            kind = type(value).__name__
            raise ValueError(f"{name}: {argument}: expected a tensor, got {kind}")


def _check_sums(name: str, total: Tensor) -> None:
    right = (total - 1).abs() <= (1e-3 if total.element_size() > 2 else 2e-2)
    require(right.all(), f"{name}: the probabilities of a token do not sum to 1")
