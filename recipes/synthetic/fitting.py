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

from highrank_plugins.common.blocks import BlockOptions, option
from highrank_plugins.common.formatting import Progress, silent
from highrank_plugins.heads import Head, build_head, head_names, head_options, pointwise_names

Heads = Mapping[str, Mapping[str, Any]]  # options of `build_head` by label
SCALE = 3.0  # length of word vectors; contexts of mixtures lie in [−1, 1]


class FitSettings(BlockOptions):
    """Hold how layers are optimised by Adam."""

    steps: int = option(1000, "Number of Adam steps.", ge=1)
    lr: float = option(0.1, "Adam's initial learning rate, which decays to 0.")
    seed: int = option(0, "Seed of targets and weights.", ge=0)


class DirichletSettings(FitSettings):
    """Hold the settings of the experiment, which are small enough for a CPU.

    The paper has N = 1e5; M and its d are unknown.
    """

    targets: int = option(1000, "Number of distributions N to approximate.", ge=1)
    steps: int = option(2000, "Number of Adam steps.", ge=1)
    batch: int = option(1000, "Number of targets in a step.", ge=1)


@dataclass(frozen=True)
class DirichletFit:
    """Hold how close a layer came: share of matching modes, and mean KL(P* ‖ Q)."""

    mode_match: float
    mean_kl: float


def dirichlet_targets(settings: DirichletSettings, classes: int, alpha: float) -> Tensor:
    """Draw N distributions [N, M] in float32 from a seed of their own."""
    import numpy as np

    generator = np.random.default_rng(settings.seed)
    return torch.from_numpy(generator.dirichlet([alpha] * classes, settings.targets)).float()


def dirichlet_experiment(
    heads: Heads, settings: DirichletSettings, progress: Progress,
    *, classes: int, dim: int, alpha: float,
) -> dict[str, DirichletFit]:  # fmt: skip
    """Fit each head to the same targets; `alpha` is .1 in the paper."""
    targets = dirichlet_targets(settings, classes, alpha)
    fitted = fit_heads(heads, targets, dim, settings, settings.batch, progress)
    return {label: measure_fit(head, contexts, targets) for label, head, contexts in fitted}


def fit_heads(
    heads: Heads,
    targets: Tensor,
    dim: int,
    settings: FitSettings,
    batch: int,
    progress: Progress,
    weight: Callable[[], nn.Parameter] | None = None,
) -> Iterator[tuple[str, Head, Tensor]]:
    """Build each head from the same seed, fit it to the targets, and yield it with its contexts."""
    for label, options in heads.items():
        torch.manual_seed(settings.seed)
        drawn = None if weight is None else weight()
        sizes = {"num_classes": targets.size(1), "feature_dim": dim}
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


class MultimodeSettings(FitSettings):
    """Hold the sizes: `contexts` with `modes` equally probable right words each, of `classes`."""

    contexts: int = option(500, "Number of contexts, each with its own vector.", ge=1)
    classes: int = option(100, "Number of words M.", ge=2)
    dim: int = option(10, "Size d of contexts and word vectors.", ge=1)
    modes: int = option(3, "Number of correct words per context.", ge=1)
    learn_words: bool = option(False, "Learn the word vectors as well.", {"words": "--learn-words"})


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
    if settings.modes >= settings.classes:
        raise ValueError(
            f"--modes {settings.modes}: must lie in [1, {settings.classes}), the number of classes"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = torch.rand(settings.contexts, settings.classes, generator=generator)
    right = drawn.topk(settings.modes).indices
    return torch.zeros_like(drawn).scatter_(1, right, 1 / settings.modes)


def multimode_experiment(
    heads: Heads, settings: MultimodeSettings, progress: Progress
) -> dict[str, MultimodeFit]:
    """Fit each head to the same contexts, whose vectors are free."""
    targets = multimode_targets(settings)

    def words() -> nn.Parameter:
        drawn = SCALE * torch.randn(settings.classes, settings.dim)
        return nn.Parameter(drawn, requires_grad=settings.learn_words)

    found = {}
    args = (heads, targets, settings.dim, settings, settings.contexts, progress, words)
    for label, head, contexts in fit_heads(*args):
        with torch.no_grad():
            best = head(contexts).topk(settings.modes).indices
        right = targets.gather(1, best).gt(0).double().mean(1)
        mean_kl = measure_fit(head, contexts, targets).mean_kl
        complete = right.eq(1).double().mean()
        found[label] = MultimodeFit(float(right.mean()), float(complete), mean_kl)
    return found


def heads_named(names: Sequence[str], components: int | None) -> dict[str, dict[str, Any]]:
    """Return options of `build_head` for "mos", "plif" (on a softmax) or "mos+plif"."""
    found = {name: _options(name, components) for name in names}
    if components is not None and not any("components" in options for options in found.values()):
        raise ValueError(
            f"--components {components}: changes nothing; no layer of --heads has them"
        )
    return found


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
