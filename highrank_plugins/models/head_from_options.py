"""Build a head from a resolved configuration."""

import logging
import re
from argparse import Namespace
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise
from math import isfinite

import torch
from fairseq.data import Dictionary
from torch import nn

from highrank_plugins.common.names import flag, layer_name
from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads import (
    Head,
    build_head,
    build_pointwise,
    head_options,
    pointwise_options,
)
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE
from highrank_plugins.heads.registry import Registry
from highrank_plugins.hooks.optimizers import set_own_rate

logger = logging.getLogger(__name__)


def head_from_options(
    cfg: Namespace,
    weight: nn.Parameter,
    feature_dim: int,
    dictionary: Dictionary,
    tied: bool,
    locked_dropout: bool = False,
) -> Head:
    """Build the head.

    Args:
        cfg: with every ``head…`` option set, see ``choose_head``.
        weight: stock's initialised vocabulary matrix [V, d].
        feature_dim: size of the decoder's output.
        tied: whether ``weight`` is also the embedding.
        locked_dropout: one mask on contexts for all time steps of time-major features.
    """
    weight = _of_width(weight, cfg.head_embed_dim, tied)
    options = _own_options(cfg)
    if "locked_dropout" in HEADS.find(cfg.head).set_by:
        options["locked_dropout"] = locked_dropout
    bias = _true_or_false("--head-bias", cfg.head_bias)
    pointwise = _pointwise(cfg)
    with _errors_name_flags("--head", cfg.head, _structure_flags(cfg.head)):
        head = build_head(
            cfg.head,
            num_classes=len(weight),
            feature_dim=feature_dim,
            embed_dim=weight.size(1),
            weight=weight,
            bias=bias,
            pointwise=pointwise,
            **options,
            **_computed_arguments(cfg, num_classes=len(weight)),
        )
    if (reason := head.needs_sorted_classes()) is not None:
        require_sorted_by_count(dictionary, reason)
    _set_rate(head, cfg)
    _warn_of_hidden_options(HEADS, head)
    _warn_of_hidden_options(POINTWISE, head.pointwise)
    return head


def _warn_of_hidden_options(registry: Registry, layer: nn.Module) -> None:
    for option in registry.hidden_options(layer):
        logger.warning(
            "%s has no attribute %s, so no checkpoint can compare this option: keep it as self.%s, "
            "or list the options that change the function in `constants` of the class",
            layer_name(layer),
            option,
            option,
        )


def _set_rate(head: Head, cfg: Namespace) -> None:
    """Apply the pointwise function's ``--head-…-lr``, for any trunk and optimizer."""
    function, trained = cfg.head_pointwise, head.pointwise.own_rate
    name = f"head_{function}_lr"
    lr = getattr(cfg, name, None)
    if lr is None or trained is None:
        return
    if not (isfinite(lr) and lr > 0):
        raise UserError(f"{flag(name)} must be above 0, got {lr}")
    parameter = getattr(head.pointwise, trained, None)
    if not isinstance(parameter, nn.Parameter):
        raise UserError(
            f"{flag(name)}: `own_rate` of class {type(head.pointwise).__name__} names {trained!r}, "
            "but the layer has no such parameter; correct the name, or leave the option out"
        )
    if not parameter.requires_grad:
        frozen_by = [
            flag(f"head_{function}_{option}")
            for option, default in pointwise_options(function).items()
            if isinstance(default, bool) and getattr(head.pointwise, option, False)
        ]
        what = f"the {trained.replace('_', ' ')} of {function} do not train"
        raise UserError(f"{flag(name)}: {what}{' with ' * bool(frozen_by)}{', '.join(frozen_by)}")
    set_own_rate(parameter, lr)


def _pointwise(cfg: Namespace) -> nn.Module:
    own = {
        name: f"head_{cfg.head_pointwise}_{name}" for name in pointwise_options(cfg.head_pointwise)
    }
    options = _values(cfg, own, pointwise_options(cfg.head_pointwise))
    flags = {name: flag(full) for name, full in own.items()}
    with _errors_name_flags("--head-pointwise", cfg.head_pointwise, flags):
        return build_pointwise(cfg.head_pointwise, **options)


def _structure_flags(head: str) -> dict[str, str]:
    """Map constructor arguments, and options in their place, to the command line's options."""
    cls = HEADS.find(head)
    names = {name: name for name in [*head_options(head), *cls.other_options, "embed_dim"]}
    names |= cls.set_by
    return {name: flag(f"head_{public}") for name, public in names.items() if public}


@contextmanager
def _errors_name_flags(option: str, chosen: str, flags: dict[str, str]) -> Iterator[None]:
    """Replace the constructor argument in a head's error by the user's option."""
    try:
        yield
    except ValueError as error:
        message = str(error).removeprefix(f"{chosen}: ")
        if flags:
            names = "|".join(map(re.escape, flags))
            message = re.sub(rf"\b({names})\b", lambda m: flags[m[0]], message, count=1)
        raise UserError(f"{option} {chosen}: {message}") from None


def _own_options(cfg: Namespace) -> dict:
    """Return constructor arguments of the structure that are options themselves."""
    names, set_by = head_options(cfg.head), HEADS.find(cfg.head).set_by
    return _values(cfg, {name: f"head_{name}" for name in names if name not in set_by}, names)


def _computed_arguments(cfg: Namespace, num_classes: int) -> dict:
    """Return constructor arguments that the structure computes from other options."""
    cls = HEADS.find(cfg.head)
    own = {name: f"head_{name}" for name in cls.other_options}
    return cls.arguments(_values(cfg, own, cls.other_options), num_classes)


def _values(cfg: Namespace, own: dict[str, str], defaults: dict) -> dict:
    """Return constructor arguments, given the option of each and the defaults of all."""
    return {
        name: _true_or_false(flag(full), getattr(cfg, full))
        if isinstance(defaults[name], bool)
        else getattr(cfg, full)
        for name, full in own.items()
        if hasattr(cfg, full)
    }


def _true_or_false(option: str, value: str) -> bool:
    if str(value).lower() not in ("true", "false"):
        raise UserError(f"{option}: {value!r} must be true or false")
    return str(value).lower() == "true"


def _of_width(weight: nn.Parameter, embed_dim: int | None, tied: bool) -> nn.Parameter:
    if embed_dim is None or embed_dim == weight.size(1):
        return weight
    if tied:
        raise UserError(
            f"--head-embed-dim {embed_dim}: the shared embeddings have width {weight.size(1)}; "
            "leave it out, or do not share them (awd_lstm_lm: --separate-embeddings)"
        )
    return nn.Parameter(torch.randn(len(weight), embed_dim) * embed_dim**-0.5)


# fairseq-preprocess pads a dictionary at its end with these words of count 0
PADDING = re.compile(r"madeupword\d{4}")
# count of a symbol that a task adds after loading
ADDED = 1


def require_sorted_by_count(dictionary: Dictionary, reason: str) -> None:
    """Check the entries that come from a file; special and padding symbols have no count.

    Args:
        reason: why the order matters, and how to do without, for the message.
    """
    counts = _file_counts(dictionary)
    for line, (previous, count) in enumerate(pairwise(counts), start=2):
        if count > previous:
            word = dictionary[dictionary.nspecial + line - 1]
            raise UserError(
                f"dictionary: not sorted by count: line {line} ({word!r}) has {count}, the line "
                f"before {previous}, but {reason}. Sort it (sort -s -k2,2nr dict.txt) and binarise "
                "again with it"
            )
    if len(counts) > 1 and counts[0] == counts[-1]:
        raise UserError(
            f"dictionary: all {len(counts)} counts are {counts[0]}, so the most frequent classes "
            f"are unknown, but {reason}. Recount (fairseq-preprocess without --srcdict and "
            "--tgtdict does)"
        )


def _file_counts(dictionary: Dictionary) -> list[int]:
    """Return counts of the lines up to the padding; only a task's symbols may follow."""
    start, after = dictionary.nspecial, len(dictionary)
    while after > start and dictionary.count[after - 1] == ADDED:
        after -= 1
    end = after
    while end > start and _is_padding(dictionary, end - 1):
        end -= 1
    # a reversed dictionary begins with its padding
    is_reversed = end == start and after < len(dictionary)
    if end == after or is_reversed:
        return dictionary.count[start:]
    return dictionary.count[start:end]


def _is_padding(dictionary: Dictionary, index: int) -> bool:
    return dictionary.count[index] == 0 and bool(PADDING.fullmatch(dictionary[index]))
