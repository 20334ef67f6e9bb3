"""Provide output layers in pure torch: structure × pointwise function × vocabulary matrix.

>>> head = build_head("mixtape", num_classes=10_000, feature_dim=512, pointwise="gss")
>>> head(features)                                    # [..., 512] → log-probabilities [..., 10000]
>>> head.nll(features, target, reduction="sum").loss  # exact, memory-saving
"""

from __future__ import annotations

import warnings
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import HEADS, Head, register_head
from highrank_plugins.heads.mixtape import Mixtape
from highrank_plugins.heads.mixtures import Mixture, MixtureOfContexts, MixtureOfSoftmaxes
from highrank_plugins.heads.pointwise import (
    POINTWISE,
    Pointwise,
    build_pointwise,
    register_pointwise,
)
from highrank_plugins.heads.registry import check_options, unknown_name_message
from highrank_plugins.heads.softmax import Softmax
from highrank_plugins.heads.vocabulary import (
    VOCABULARY,
    Vocabulary,
    make_matrix,
    register_vocabulary,
)

__all__ = ["Head", "Mixtape", "Mixture", "MixtureOfContexts", "MixtureOfSoftmaxes", "Pointwise",
           "Softmax", "Vocabulary", "build_head", "build_pointwise", "build_vocabulary",
           "head_names", "head_options", "make_matrix", "pointwise_names", "pointwise_options",
           "register_head", "register_pointwise", "register_vocabulary", "tokens",
           "vocabulary_names", "vocabulary_options", "with_layer_of_arch"]  # fmt: skip

# pairs of structure and pointwise function with a name of their own in architectures
PAIRS = [("mos", "plif"), ("mos", "sigsoftmax")]

head_names, head_options = HEADS.names, HEADS.options
pointwise_names, pointwise_options = POINTWISE.names, POINTWISE.options
vocabulary_names, vocabulary_options = VOCABULARY.names, VOCABULARY.options
build_vocabulary = VOCABULARY.build


def _refuse_shared(options: Iterable[str], *parts: Collection[str]) -> None:
    for option in options:
        if sum(option in part for part in parts) > 1:
            raise ValueError(
                f"{option}: structure, function and matrix of this head have two options of this "
                "name; build the function or the matrix first, by build_pointwise or "
                "build_vocabulary, and pass it"
            )


def build_head(name: str, **options: Any) -> Head:
    """Build the output layer called `name`.

    Args:
        name: a structure, see `head_names()`, or a layer of an architecture: "mos_sigsoftmax".
        options: `num_classes`, `feature_dim`, `embed_dim`, `weight`, `bias`, `pointwise` (see
            `Head`), `vocabulary` (see `Vocabulary`), the structure's own, see `head_options`, and
            those of function and matrix, see `pointwise_options` and `vocabulary_options`.
    Raises:
        ValueError: unknown name or option (with the nearest match), or a value out of range.
    """
    if name not in (layers := tokens()):
        raise ValueError(unknown_name_message("head", name, layers))
    structure = layers[name]["head"]
    for part in ("pointwise", "vocabulary"):
        fixed = layers[name].get(f"head_{part}")
        if fixed and options.setdefault(part, fixed) != fixed:
            raise ValueError(
                f"{part}: the head {name!r} has {fixed}; choose {structure!r} for another one"
            )
    own, function = head_options(structure), options.get("pointwise")
    matrix = options.get("vocabulary", "plain")
    of_function = pointwise_options(function) if isinstance(function, str) else {}
    of_matrix = vocabulary_options(matrix) if isinstance(matrix, str) else {}
    known = {*HEADS.common, "vocabulary", *own, *of_function, *of_matrix}
    check_options(f"head {name!r}", options, known)
    _refuse_shared(options, own, of_function, of_matrix)
    options.pop("vocabulary", None)
    given = {n: options.pop(n) for n in of_function if n in options}
    if function and given:
        options["pointwise"] = build_pointwise(function, **given)
    made = build_vocabulary(matrix, **{n: options.pop(n) for n in of_matrix if n in options})
    head: Head = HEADS.build(structure, **options)
    make_matrix(head, made, tied=options.get("weight") is not None)
    chosen = options.keys() & {"frequent", "frequent_ratio"}
    if isinstance(head, Mixtape) and head.needs_sorted_classes and not chosen:
        warnings.warn(
            f"mixtape: classes 0 to {head.frequent - 1} have gates of their own and must be the "
            "most frequent ones; frequent= chooses how many (0: none), class_counts= others",
            stacklevel=2,
        )
    return head


def tokens() -> dict[str, dict[str, str]]:
    """Return the names that may follow ``transformer_`` and the like → the head of each."""
    named = [(name, {"head": name}) for name in HEADS.names()]
    functions = [("softmax", name, name) for name in POINTWISE.names() if name != "identity"]
    for head, name, token in [*functions, *((h, n, f"{h}_{n}") for h, n in PAIRS)]:
        named.append((token, {"head": head, "head_pointwise": name}))
    for name in VOCABULARY.names():
        if name != "plain":
            named.append((name, {"head": "softmax", "head_vocabulary": name}))
    found: dict[str, dict[str, str]] = {}
    for token, layer in named:
        if found.setdefault(token, layer) != layer:
            raise UserError(
                f"{token!r} would name two layers, {' + '.join(found[token].values())} and "
                f"{' + '.join(layer.values())}; choose another name for yours"
            )
    return found


def with_layer_of_arch(given: Mapping[str, Any], arch: Mapping[str, Any]) -> dict[str, Any]:
    """Return options by name, completed by an architecture's unless they name another head."""
    same = given.get("head", arch.get("head")) == arch.get("head")
    return {**arch, **given} if same else dict(given)


for each in (HEADS, POINTWISE, VOCABULARY):
    each.listen(tokens)
