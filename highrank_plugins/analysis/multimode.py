"""Test whether a layer can rank several dissimilar words first, where several are correct.

A softmax gives similar probabilities to words with similar vectors. A word between two correct
ones becomes probable, too (Yang et al. 2018; Chang and McCallum 2022). The correct words of each
context are drawn at random here, so they are not neighbours. All layers share one random vocabulary
matrix, which is not learnt. Otherwise a layer with few dimensions would move the words of these few
contexts together, which is impossible for all contexts of a language.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from highrank_plugins.analysis.dirichlet import FitSettings, fit_heads, measure_fit
from highrank_plugins.common.progress import Progress, silent
from highrank_plugins.heads import head_names, head_options, pointwise_names

SCALE = 3.0  # length of word vectors; contexts of mixtures lie in [−1, 1]


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
    """Return distributions [N, M] with 1 / modes at the right words of each context.

    Raises:
        ValueError: modes outside [1, classes).
    """
    if not 1 <= settings.modes < settings.classes:
        raise ValueError(
            f"--modes {settings.modes}: must lie in [1, {settings.classes}), the number of classes"
        )
    generator = torch.Generator().manual_seed(settings.seed)
    drawn = torch.rand(settings.contexts, settings.classes, generator=generator)
    right = drawn.topk(settings.modes).indices
    return torch.zeros_like(drawn).scatter_(1, right, 1 / settings.modes)


def multimode_experiment(
    heads: dict[str, dict[str, Any]], settings: MultimodeSettings, progress: Progress = silent
) -> dict[str, MultimodeFit]:
    """Fit each head to the same contexts, whose vectors are free.

    Args:
        heads: label → options of `build_head` with its `name`; see `heads_named`.
        progress: receives the steps of each head, by label.
    """
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
    """Return options of `build_head` for "mos", "plif" (on a softmax) or "mos+plif".

    Args:
        components: of mixtures; None: the head's own default.
    Raises:
        ValueError: an unknown name.
    """
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
