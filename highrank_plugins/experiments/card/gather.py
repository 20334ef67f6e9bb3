"""From a checkpoint to what its card says."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import torch

from highrank_plugins.experiments.card import predictions, weights
from highrank_plugins.experiments.card.contents import (
    Absent,
    Card,
    Identity,
    Maybe,
    SpectrumFound,
)
from highrank_plugins.experiments.card.corpus import Seen, see
from highrank_plugins.experiments.card.describe import describe
from highrank_plugins.experiments.card.parameters import parameter_parts
from highrank_plugins.experiments.card.samples import samples
from highrank_plugins.experiments.card.subject import Subject, read_subject

T = TypeVar("T")
_NUMBERED = (
    "numbers (#4 is class 4): fairseq keeps the dictionary with the data, not in the checkpoint; "
    "name the data by --data"
)


@torch.no_grad()
def make_card(path: Path, data: str | None, split: str, tokens: int, command: str) -> Card:
    """Read a checkpoint and measure all that applies to it; the rest says why it does not.

    Args:
        path: the checkpoint.
        data: directory of fairseq-preprocess; None: only the weights are looked at.
        split: the text; tokens: how many of it, at least 2. As many times M numbers are held.
        command: what was called.
    Raises:
        ValueError: the checkpoint is damaged or does not fit the data; the split is empty.
        OSError: a file is missing.
    """
    subject = read_subject(path, data)
    head, seen = subject.head, see(subject, split, tokens)
    return Card(
        identity=_identity(subject, data, split, seen, command),
        configuration=describe(subject),
        parameters=parameter_parts(subject.model, head),
        weight_spectrum=_measure(weights.weight_spectrum, head),
        log_prob_spectrum=_measure(_log_prob_spectrum, seen),
        divergence=_measure(predictions.divergence, seen),
        never_argmax=_measure(weights.never_argmax, subject, head, _contexts(seen)),
        retention=_measure(predictions.retention, head, seen),
        prior_use=_measure(predictions.components, head, seen),
        gates=_measure(predictions.gates, head, seen),
        pointwise=_measure(weights.pointwise_shape, head),
        predictions=_measure(predictions.predictions, seen),
        bands=_measure(predictions.bands, subject, seen),
        samples=_measure(samples, subject, seen),
    )


def _measure(function: Callable[..., T], *inputs: Any) -> Maybe[T]:
    """What a function finds; or the reason why it, or one of its inputs, is not there."""
    for value in inputs:
        if isinstance(value, Absent):
            return value
    try:
        return function(*inputs)
    except ValueError as error:
        return Absent(str(error))


def _log_prob_spectrum(seen: Seen) -> SpectrumFound:
    return weights.matrix_spectrum(seen.log_probs)


def _contexts(seen: Maybe[Seen]) -> torch.Tensor | None:
    return None if isinstance(seen, Absent) else seen.features


def _identity(
    subject: Subject, data: str | None, split: str, seen: Maybe[Seen], command: str
) -> Identity:
    from highrank_plugins.collect.streaming_model import digest_of_file
    from highrank_plugins.experiments.record import versions

    return Identity(
        checkpoint=subject.path.name,
        sha256=digest_of_file(subject.path),
        arch=subject.arch,
        words="of the dictionary in the data" if data else _NUMBERED,
        data=data,
        split=split if data else None,
        tokens=None if isinstance(seen, Absent) else len(seen.target),
        command=command,
        versions=versions(),
    )
