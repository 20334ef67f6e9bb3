"""Train layers on SpamLang, where each text repeats one symbol (Godey and Artzi 2026).

A text s s s … of a symbol drawn uniformly from M symbols needs nothing but a copy of the input,
which every layer can express. The gradient decides how many steps it takes to learn this. A
softmax of d dimensions passes on what lies in the d columns of W, and 1/M of the texts show a
symbol.

The control separates the two: a softmax whose forward pass has all d dimensions, and whose gradient
reaches the features through the r largest singular directions of W only. If r dimensions of the
gradient are what slows a softmax with d = r down, the control is as slow.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from highrank_plugins.analysis.retention import (
    RELIABLE,
    column_space,
    logit_gradient,
    retained_by_head,
)
from highrank_plugins.heads import Head, build_head

GOAL = 0.99  # share of correct predictions
MEASURED = 16  # number of tokens in a retention measurement
EVALUATED = 512  # number of texts in an evaluation
NUMBERS = 2**24  # logits held in memory at a time


@dataclass(frozen=True, kw_only=True)
class SpamLangSettings:
    """Hold the sizes of a language and its model, and how long it may train.

    Attributes:
        classes: M symbols. dim: d of embeddings, trunk and layer.
        backward_rank: r of the control; None for all of the gradient.
        length: tokens that are predicted in a text. batch: texts of a step.
        steps: largest number of Adam's steps. every: steps between two evaluations.
    """

    classes: int = 1000
    dim: int = 16
    backward_rank: int | None = None
    length: int = 4
    batch: int = 64
    steps: int = 4000
    every: int = 10
    lr: float = 3e-3
    seed: int = 1


@dataclass(frozen=True)
class SpamLangRun:
    """Hold how a layer learnt the language.

    Attributes:
        steps: of the first evaluation with 99 % right; None if `settings.steps` do not suffice.
        accuracy, loss: of the last evaluation; loss in nats.
        contexts: share of the logits' gradient that W lets through to the contexts, before the
            first step.
        features: the same share at the features, of which the contexts are functions; for a
            softmax both are one.
    """

    steps: int | None
    accuracy: float
    loss: float
    contexts: float
    features: float


class SymbolTrunk(nn.Module):
    """Map symbols to features: embeddings, positions and one layer of a causal Transformer."""

    def __init__(self, classes: int, dim: int, length: int) -> None:
        super().__init__()
        self.symbols = nn.Embedding(classes, dim)
        self.positions = nn.Parameter(0.02 * torch.randn(length, dim))
        heads = math.gcd(dim, max(1, dim // 16))
        self.layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, dropout=0.0, batch_first=True, norm_first=True
        )
        self.norm = nn.LayerNorm(dim)
        mask = nn.Transformer.generate_square_subsequent_mask(length)
        self.register_buffer("mask", mask, persistent=False)

    def forward(self, text: Tensor) -> Tensor:
        """Return features [texts, length, d]."""
        hidden = self.symbols(text) + self.positions
        features: Tensor = self.norm(self.layer(hidden, src_mask=self.mask, is_causal=True))
        return features


class _LowRankGradient(torch.autograd.Function):
    """Return features as they are; project their gradient onto columns of `basis` [F, r]."""

    @staticmethod
    def forward(ctx: Any, features: Tensor, basis: Tensor) -> Tensor:
        ctx.save_for_backward(basis)
        return features.view_as(features)

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, None]:
        (basis,) = ctx.saved_tensors
        return gradient @ basis @ basis.T, None


def with_low_rank_gradient(features: Tensor, weight: Tensor, rank: int) -> Tensor:
    """Return `features`, whose gradient passes the `rank` largest singular directions of W alone.

    A gradient G of the logits reaches features as G W. With the projector P onto the r largest left
    singular vectors of W it is (G P) W, which is (G W) V Vᵀ for the right ones, V.
    """
    with torch.no_grad():
        _, vectors = torch.linalg.eigh(weight.T @ weight)  # eigenvalues ascend
    return _LowRankGradient.apply(features, vectors[:, -rank:])


def retention_at_features(head: Head, features: Tensor, target: Tensor) -> float:
    """Return ‖G Q‖ / ‖G‖: the share of the logits' gradient that can move the features.

    G holds the gradients of a token's K logit vectors z in one row, and Q projects it onto the
    column space of ∂z/∂features, which has F dimensions. Contexts have K d ones, so that this is
    at most the retention at the contexts. It is exact in float64 and holds K M F numbers a token.
    """
    tensors = {name: tensor.detach() for name, tensor in head.tensors().items()}
    kept = whole = 0.0
    slopes_of = torch.func.jacfwd(lambda one: head.logit_vectors(one, tensors).flatten())
    for one, word in zip(features.detach().split(1), target.split(1), strict=True):
        rows = logit_gradient(head, one, word).double().reshape(-1)
        slopes = slopes_of(one).squeeze(1).double()
        squares, vectors = torch.linalg.eigh(slopes.T @ slopes)
        reliable = squares > RELIABLE**2 * squares[-1]
        along = (rows @ slopes) @ vectors[:, reliable]
        kept += float((along.square() / squares[reliable]).sum())
        whole += float(rows.square().sum())
    return math.sqrt(kept / whole)


def spamlang(options: dict[str, Any], settings: SpamLangSettings) -> SpamLangRun:
    """Train a layer on a small trunk until 99 % of its predictions are right."""
    torch.manual_seed(settings.seed)
    trunk = SymbolTrunk(settings.classes, settings.dim, settings.length)
    head = build_head(**options, num_classes=settings.classes, feature_dim=settings.dim)
    parameters = [*trunk.parameters(), *head.parameters()]
    optimizer = torch.optim.Adam(parameters, settings.lr)
    draw = torch.Generator().manual_seed(settings.seed)
    unseen = _texts(settings, EVALUATED, torch.Generator().manual_seed(settings.seed + 10**6))
    first = retentions(trunk, head, unseen, settings.backward_rank)
    steps, accuracy, loss = None, 0.0, math.nan
    for step in range(1, settings.steps + 1):
        text = _texts(settings, settings.batch, draw)
        features = trunk(text)
        if settings.backward_rank is not None:
            features = with_low_rank_gradient(features, head.weight, settings.backward_rank)
        optimizer.zero_grad()
        head.nll(features, text, reduction="mean").loss.backward()
        optimizer.step()
        if step % settings.every and step < settings.steps:
            continue
        accuracy, loss = _evaluate(trunk, head, unseen, GOAL if step < settings.steps else 0)
        if not math.isfinite(loss):
            raise ValueError(f"step {step}: the loss is {loss}; lower --lr ({settings.lr:g})")
        if accuracy >= GOAL:
            steps = step
            break
    return SpamLangRun(steps, accuracy, loss, *first)


def _texts(settings: SpamLangSettings, count: int, draw: torch.Generator) -> Tensor:
    """Draw texts [count, length]; each token is both input and target."""
    symbols = torch.randint(settings.classes, (count, 1), generator=draw)
    return symbols.expand(count, settings.length)


@torch.no_grad()
def _evaluate(trunk: SymbolTrunk, head: Head, text: Tensor, sought: float) -> tuple[float, float]:
    """Return accuracy and loss, over fewer texts where the accuracy cannot be `sought` any more."""
    seen, right, loss = 0, 0.0, 0.0
    for some in text.split(EVALUATED // 8):
        found = head.nll(trunk(some), some, reduction="sum", accuracy=True)
        assert found.correct is not None
        seen += some.numel()
        right += float(found.correct)
        loss += float(found.loss)
        if seen - right > (1 - sought) * text.numel():
            break
    return right / seen, loss / seen


def retentions(
    trunk: SymbolTrunk, head: Head, text: Tensor, rank: int | None = None
) -> tuple[float, float]:
    """Return the retention at the contexts and at the features, over `MEASURED` tokens."""
    with torch.no_grad():
        features = trunk(text[:MEASURED])[:, -1]
    target = text[:MEASURED, -1]
    basis = column_space(head.weight).to_basis[:, -(rank or 0) :]
    kept, whole = retained_by_head(head, basis, features, target, NUMBERS)
    at_contexts = math.sqrt(float(kept.sum() / whole.sum()))
    if head.linear_logits:  # contexts are the features
        return at_contexts, at_contexts
    return at_contexts, retention_at_features(head, features, target)
