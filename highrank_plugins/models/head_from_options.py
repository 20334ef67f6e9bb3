"""Choose a head by its options, build it, and compare it with the head of a checkpoint."""

import logging
import re
from argparse import Namespace
from itertools import pairwise
from math import isfinite
from typing import Any

import torch
from fairseq.data import Dictionary
from torch import nn

from highrank_plugins.common.names import flag, layer_name
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import Head, make_matrix, with_layer_of_arch
from highrank_plugins.hooks.optimizers import own_rate, set_own_rate
from highrank_plugins.models.head_options import (
    AXES,
    COMMON,
    Choice,
    HeadOptions,
    options_of_layers,
    true_or_false,
)

logger = logging.getLogger(__name__)


def choose_head(options: dict, arch: dict, trunk: dict, language_model: bool = False) -> dict:
    """Return the ``head…`` options: explicit ones, else the arch's, the trunk's, the layers'."""
    given = {k: v for k, v in options.items() if k.startswith("head") and v is not None}
    given = with_layer_of_arch(given, arch)
    layers = _layers_of(given)
    given = {layer.axis.option: layer.name for layer in layers} | given
    defaults = _defaults(layers, language_model)
    known = options_of_layers()
    defaults |= {k: v for k, v in trunk.items() if k in defaults or k not in known}
    own = {*defaults, *COMMON}
    for name in given:
        if name in known and name not in own:
            chosen = " with ".join(f"{flag(a.axis.option)} {a.name}" for a in layers)
            listed = ", ".join(map(flag, sorted(own)))
            raise UserError(
                f"{flag(name)}: {chosen} has no such option; it has {listed}. Remove the option, "
                f"or choose a layer that has it: {', '.join(known[name])}"
            )
    return defaults | given


def _layers_of(options: dict) -> list[Choice]:
    """Return the layer that is chosen on each axis, the structure first."""
    layers = []
    for axis in AXES:
        try:
            layers.append(Choice(axis, options.get(axis.option, axis.default)))
        except ValueError as error:
            raise UserError(
                f"{flag(axis.option)}: {error}; a layer of your own needs its --user-dir"
            ) from None
    return layers


def _defaults(layers: list[Choice], language_model: bool = False) -> dict[str, Any]:
    return {k: v for layer in layers for k, v in layer.defaults(language_model).items()}


def head_from_options(
    cfg: Namespace, weight: nn.Parameter, feature_dim: int, dictionary: Dictionary, tied: bool,
    locked_dropout: bool = False,
) -> Head:  # fmt: skip
    """Build the head that complete options describe, on stock's vocabulary matrix [V, d].

    It is also the embedding if ``tied``. Time-major features want ``locked_dropout``.
    """
    width = cfg.head_embed_dim
    if width is not None and width != weight.size(1):
        if tied:
            raise UserError(
                f"--head-embed-dim {width}: the shared embeddings have width {weight.size(1)}; "
                "leave it out, or do not share them (awd_lstm_lm: --separate-embeddings)"
            )
        weight = nn.Parameter(torch.randn(len(weight), width) * width**-0.5)
    common = {
        "num_classes": len(weight), "feature_dim": feature_dim, "embed_dim": weight.size(1),
        "weight": weight, "bias": true_or_false("head_bias", cfg.head_bias),
    }  # fmt: skip
    structure, *others = _layers_of(vars(cfg))
    if "locked_dropout" in structure.no_options:
        common["locked_dropout"] = locked_dropout
    function, matrix = (layer.build(cfg) for layer in others)
    head = structure.build(cfg, **common, pointwise=function)
    with others[1].names_options():
        make_matrix(head, matrix, tied)
    if reason := head.needs_sorted_classes or matrix.needs_sorted_classes:
        require_sorted_by_count(dictionary, reason)
    for layer, part in zip((structure, *others), (head, function, matrix), strict=True):
        _set_rate(layer, part, cfg)
        for option in layer.axis.registry.hidden_options(part):
            logger.warning(
                "%s has no attribute %s, so no checkpoint can compare this option: keep it under "
                "its name, or list options that change the function in `constants` of the class",
                *(layer_name(part), option),
            )
    if (lr := _rate(cfg, "head_adam_lr")) is not None:
        for parameter in head.parameters():
            if own_rate(parameter) is None:
                set_own_rate(parameter, lr, by_adam=True)
    return head


def _rate(cfg: Namespace, option: str | None) -> float | None:
    lr = getattr(cfg, option, None) if option else None
    if lr is not None and not (isfinite(lr) and lr > 0):
        raise UserError(f"{flag(option)} must be above 0, got {lr}")
    return lr


def _set_rate(layer: Choice, part: nn.Module, cfg: Namespace) -> None:
    """Apply the ``--head-…-lr`` of a layer, for any trunk and optimizer."""
    if (lr := _rate(cfg, layer.rate)) is None:
        return
    option, trained = flag(layer.rate), layer.trained
    parameter = getattr(part, trained, None)
    if not isinstance(parameter, nn.Parameter) or not parameter.requires_grad:
        raise UserError(
            f"{option}: {layer.name} here has no parameter {trained} that trains; leave the "
            f"option out, or what freezes it, or correct `own_rate` of {type(part).__name__}"
        )
    set_own_rate(parameter, lr)


def function_options(head: Head) -> dict:
    """Return the options by which two heads with the same parameters may differ."""
    parts = [axis.of(head) for axis in AXES]
    names = {a.option: layer_name(part) for a, part in zip(AXES, parts, strict=True)}
    return names | {
        layer.prefix + name: value
        for layer, part in zip(_layers_of(names), parts, strict=True)
        for name, value in layer.axis.registry.constants(part).items()
    }


def require_same_function(options: dict, head: Head) -> None:
    """Refuse a checkpoint whose head has the parameters of ``head``, but is another function."""
    plain = {axis.option: axis.default for axis in AXES}
    there = plain | {name: value for name, value in options.items() if value is not None}
    if plain.items() <= there.items():
        return
    here = function_options(head)
    known = {*here, *HeadOptions.__dataclass_fields__}
    for name in there:
        if name.startswith("head_") and name not in known:
            raise UserError(other_head(f"{flag(name)} {there[name]}", "no such option"))
    there = _defaults(_layers_of(here)) | there
    for name, value in here.items():
        before = there.get(name, value)
        if before != value:
            raise UserError(other_head(f"{flag(name)} {before}", str(value)))


def other_head(there: str, here: str) -> str:
    return (
        f"the checkpoint has another output layer: {there} there, {here} in the model; use "
        "the --head… options of that training run and its code of the layer, or start from "
        "the checkpoint of a softmax"
    )


PADDING = re.compile(r"madeupword\d{4}")  # fairseq-preprocess ends a dictionary with them; count 0


def require_sorted_by_count(dictionary: Dictionary, reason: str) -> None:
    """Check the entries that come from a file; special and padding symbols have no count."""
    start = dictionary.nspecial
    entries = enumerate(zip(dictionary.symbols[start:], dictionary.count[start:], strict=True), 1)
    counted = [(n, w, c) for n, (w, c) in entries if c or not PADDING.fullmatch(w)]
    for (_, _, previous), (line, word, count) in pairwise(counted):
        if count > previous:
            raise UserError(
                f"dictionary: not sorted by count: line {line} ({word!r}) has {count}, the word "
                f"before {previous}, but {reason}. Sort it (sort -s -k2,2nr dict.txt) and binarise "
                "again with it"
            )
    counts = [count for _, _, count in counted]
    if len(counts) > 1 and counts[0] == counts[-1]:
        raise UserError(
            f"dictionary: all {len(counts)} counts are {counts[0]}, so the most frequent classes "
            f"are unknown, but {reason}. Recount (fairseq-preprocess without --srcdict and "
            "--tgtdict does)"
        )
