"""Fit layers to random targets, whose contexts are free vectors.

Dirichlet (Ganea et al. 2019): the targets are N distributions P*_i ~ Dirichlet(α) over M words.
They share word vectors, and each has a free context vector. The cross-entropy
−1/N Σ_i Σ_x P*_i(x) log Q_i(x) is minimised. There is nothing to generalise to, so the error that
remains is what the layer cannot express.

Multimode: whether a layer can rank several dissimilar words first, where several are correct. A
softmax gives similar probabilities to words with similar vectors. A word between two correct ones
becomes probable, too (Yang et al. 2018; Chang and McCallum 2022). The correct words of each context
are drawn at random here, so they are not neighbours. All layers share one random vocabulary matrix,
which is not learnt. Otherwise a layer with few dimensions would move the words of these few
contexts together, which is impossible for all contexts of a language.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from highrank_plugins.common.formatting import Progress, silent
from highrank_plugins.heads import Head, build_head, head_names, head_options, pointwise_names

SCALE = 3.0  # length of word vectors; contexts of mixtures lie in [−1, 1]


@dataclass(frozen=True, kw_only=True)
class FitSettings:
    """Hold the sizes of a layer, M `classes` and d `dim`, and of its optimisation by Adam."""

    classes: int = 100
    dim: int = 10
    steps: int = 1000
    lr: float = 0.1
    seed: int = 0


@dataclass(frozen=True, kw_only=True)
class DirichletSettings(FitSettings):
    """Hold the settings of the experiment, which are small enough for a CPU.

    targets: N. alpha: α, .1 in the paper. batch: targets per step, drawn again each step. The paper
    has N = 1e5; M and its d are unknown.
    """

    targets: int = 1000
    alpha: float = 0.1
    steps: int = 2000
    batch: int = 1000


@dataclass(frozen=True)
class DirichletFit:
    """Hold how close a layer came: share of matching modes, and mean KL(P* ‖ Q)."""

    mode_match: float
    mean_kl: float


def dirichlet_targets(settings: DirichletSettings) -> Tensor:
    """Draw N distributions [N, M] in float32 from a seed of their own."""
    import numpy as np

    generator = np.random.default_rng(settings.seed)
    drawn = generator.dirichlet([settings.alpha] * settings.classes, settings.targets)
    return torch.from_numpy(drawn).float()


def dirichlet_experiment(
    heads: Mapping[str, Mapping[str, Any]], settings: DirichletSettings, progress: Progress
) -> dict[str, DirichletFit]:
    """Fit each head to the same targets; `heads` has options of `build_head` by label."""
    targets = dirichlet_targets(settings)
    fitted = fit_heads(heads, targets, settings, settings.batch, progress)
    return {label: measure_fit(head, contexts, targets) for label, head, contexts in fitted}


def fit_heads(
    heads: Mapping[str, Mapping[str, Any]],
    targets: Tensor,
    settings: FitSettings,
    batch: int,
    progress: Progress,
    weight: Callable[[], nn.Parameter] | None = None,
) -> Iterator[tuple[str, Head, Tensor]]:
    """Build each head from the same seed, fit it to the targets, and yield it with its contexts."""
    for label, options in heads.items():
        torch.manual_seed(settings.seed)
        drawn = None if weight is None else weight()
        sizes = {"num_classes": settings.classes, "feature_dim": settings.dim}
        head = build_head(**{**sizes, **options}, weight=drawn)
        yield label, head, fit_contexts(head, targets, settings, batch, progress, label)


def fit_contexts(
    head: Head,
    targets: Tensor,
    settings: FitSettings,
    batch: int,
    progress: Progress = silent,
    label: str = "",
) -> Tensor:
    """Train the head and one free context vector per target; change the head in place."""
    contexts = nn.Parameter(torch.randn(len(targets), head.feature_dim))
    optimizer = torch.optim.Adam([contexts, *head.parameters()], lr=settings.lr)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, settings.steps)
    head.train()
    for step in progress(range(settings.steps), label):
        chosen = torch.randperm(len(targets))[:batch]
        loss = -(targets[chosen] * head(contexts[chosen])).sum(-1).mean()
        if not loss.isfinite():
            raise ValueError(f"step {step}: the loss is {loss.item()}; lower lr ({settings.lr})")
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
    head.eval()
    return contexts.detach()


@torch.no_grad()
def measure_fit(head: Head, contexts: Tensor, targets: Tensor) -> DirichletFit:
    """Return mode match and mean KL of a head at contexts [N, F] against targets [N, M]."""
    log_probs = head(contexts).double()
    wide = targets.double()
    mode_match = (log_probs.argmax(-1) == wide.argmax(-1)).double().mean()
    kl = (torch.special.xlogy(wide, wide) - wide * log_probs).sum(-1).mean()
    return DirichletFit(float(mode_match), float(kl))


@dataclass(frozen=True, kw_only=True)
class MultimodeSettings(FitSettings):
    """Hold the sizes: `contexts` with `modes` equally probable right words each, of `classes`.

    learn_words: whether the vocabulary matrix is learnt, too, starting from the same values.
    """

    contexts: int = 500
    modes: int = 3
    learn_words: bool = False


@dataclass(frozen=True)
class MultimodeFit:
    """Hold how well a layer predicts the right words.

    recall: share of the right words among the `modes` most probable. complete: share of the
    contexts where all are. mean_kl: mean of KL(right ‖ predicted), nats.
    """

    recall: float
    complete: float
    mean_kl: float


def multimode_targets(settings: MultimodeSettings) -> Tensor:
    """Return distributions [N, M] with 1 / modes at the right words of each context."""
    if not 1 <= settings.modes < settings.classes:
        raise ValueError(
            f"--modes {settings.modes}: must lie in [1, {settings.classes}), the number of classes"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = torch.rand(settings.contexts, settings.classes, generator=generator)
    right = drawn.topk(settings.modes).indices
    return torch.zeros_like(drawn).scatter_(1, right, 1 / settings.modes)


def multimode_experiment(
    heads: dict[str, dict[str, Any]], settings: MultimodeSettings, progress: Progress
) -> dict[str, MultimodeFit]:
    """Fit each head to the same contexts, whose vectors are free."""
    targets = multimode_targets(settings)

    def words() -> nn.Parameter:
        drawn = SCALE * torch.randn(settings.classes, settings.dim)
        return nn.Parameter(drawn, requires_grad=settings.learn_words)

    fitted = fit_heads(heads, targets, settings, settings.contexts, progress, words)
    return {
        label: _measure(head, contexts, targets, settings.modes) for label, head, contexts in fitted
    }


@torch.no_grad()
def _measure(head: Any, contexts: Tensor, targets: Tensor, modes: int) -> MultimodeFit:
    best = head(contexts).topk(modes).indices
    correct = targets.gather(1, best).gt(0).double().mean(1)
    fit = measure_fit(head, contexts, targets)
    return MultimodeFit(float(correct.mean()), float(correct.eq(1).double().mean()), fit.mean_kl)


def heads_named(names: Sequence[str], components: int | None) -> dict[str, dict[str, Any]]:
    """Return options of `build_head` for "mos", "plif" (on a softmax) or "mos+plif"."""
    return {name: _options(name, components) for name in names}


def _options(name: str, components: int | None) -> dict[str, Any]:
    structure, _, pointwise = name.partition("+")
    if not pointwise and structure in pointwise_names():
        structure, pointwise = "softmax", structure
    if structure not in head_names() or (pointwise and pointwise not in pointwise_names()):
        raise ValueError(
            f"--heads {name}: expected one of {', '.join(head_names())}, one of "
            f"{', '.join(pointwise_names())}, or a pair such as mos+plif"
        )
    options: dict[str, Any] = {"name": structure}
    if pointwise:
        options["pointwise"] = pointwise
    if components is not None and "components" in head_options(structure):
        options["components"] = components
    return options
