"""What the weights of a head alone tell, for a card."""

from __future__ import annotations

import torch
from torch import Tensor

from highrank_plugins.analysis import (
    effective_rank,
    pointwise_curve,
    press_tolerance,
    slope_statistics,
    spectral_decay,
    spectral_entropy,
    spectrum,
    unargmaxable_classes,
)
from highrank_plugins.experiments.card.contents import (
    NeverArgmax,
    PointwiseShape,
    SpectrumFound,
)
from highrank_plugins.experiments.card.subject import Subject
from highrank_plugins.heads import Head, Softmax
from highrank_plugins.heads.pointwise import PLIF
from highrank_plugins.heads.pointwise.base import POINTWISE

EPSILONS = (1e-2, 1e-3, 1e-4, 1e-5)
LARGEST = 10**11  # M² d up to which the linear programs and what comes before take minutes
BINS, STEEPEST = 24, 4.0  # of the histogram of slopes, and where its last bin begins at most


def matrix_spectrum(matrix: Tensor) -> SpectrumFound:
    """Singular values and ranks of a matrix [N, M] in float32, as the papers count them.

    Raises:
        ValueError: see `spectrum`.
    """
    # a wide matrix has the singular values of its transpose, whose Gram matrix is smaller
    wide = matrix.size(0) < matrix.size(1)
    found = spectrum([matrix.float().t() if wide else matrix.float()], torch.float32)
    rank = found.press_rank()
    return SpectrumFound(
        shape=(matrix.size(0), matrix.size(1)),
        dtype="float32",
        method=found.method,
        tolerance=press_tolerance(float(found.values[0]), found.shape, torch.float32),
        smallest_reliable=found.smallest_reliable,
        press_rank=rank,
        effective_rank={f"{eps:g}": effective_rank(found.values, eps) for eps in EPSILONS},
        entropy_rank=float(torch.tensor(spectral_entropy(found.values)).exp()),
        decay=spectral_decay(found.values, last=rank) if rank > 1 else None,
        values=found.values.tolist(),
    )


def weight_spectrum(head: Head) -> SpectrumFound:
    """Of the vocabulary matrix W [M, d]."""
    return matrix_spectrum(head.weight.detach())


def never_argmax(subject: Subject, head: Head, contexts: Tensor | None) -> NeverArgmax:
    """Words that are never on top, whatever the context.

    Args:
        contexts: features [n, F] that are tried first.
    Raises:
        ValueError: not applicable to this head; too large; HiGHS gives up.
    """
    if type(head) is Softmax and head.num_classes**2 * head.embed_dim > LARGEST:
        raise ValueError(
            f"{head.num_classes:,} words of {head.embed_dim} dimensions would take hours; "
            "`highrank analyse unargmaxable` takes them"
        )
    try:
        classes = unargmaxable_classes(head, contexts).tolist()
    except FloatingPointError as error:
        raise ValueError(str(error)) from None
    return NeverArgmax(classes, [subject.word(c) for c in classes], head.num_classes)


def pointwise_shape(head: Head) -> PointwiseShape:
    """The curve of the pointwise function, and the slopes of a PLIF.

    Raises:
        ValueError: the function is the identity, or has parameters that are not finite.
    """
    function = head.pointwise
    if function.is_identity:
        raise ValueError("not applicable: the logits go into the softmax as they are")
    if not all(parameter.isfinite().all() for parameter in function.parameters()):
        raise ValueError("the pointwise function has parameters that are not finite")
    bound = function.bound if isinstance(function, PLIF) else 20.0
    z, f = pointwise_curve(function, -bound, bound, 201)
    curve = POINTWISE.name_of(function), z.tolist(), f.tolist()
    if not isinstance(function, PLIF):
        return PointwiseShape(*curve, None, [], [])
    slopes = function.tensors()["slopes"].detach()
    top = min(STEEPEST, float(slopes.max()))
    edges = torch.linspace(0, top, BINS + 1, dtype=torch.float64)
    counts = torch.histogram(slopes.clamp(max=top).cpu(), edges).hist.long().tolist()
    return PointwiseShape(*curve, slope_statistics(function), edges.tolist(), counts)
