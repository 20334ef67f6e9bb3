"""Name layers in architectures: `mos_plif` in `transformer_mos_plif` and the like."""

from collections.abc import Mapping
from typing import Any

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.base import HEADS
from highrank_plugins.heads.pointwise import POINTWISE

PAIRS = [("mos", "plif"), ("mos", "sigsoftmax")]


def tokens() -> dict[str, dict[str, str]]:
    """Return the names that may follow ``transformer_`` and the like → the head of each."""
    named = [(name, {"head": name}) for name in HEADS.names()]
    functions = [("softmax", name, name) for name in POINTWISE.names() if name != "identity"]
    for head, name, token in [*functions, *((h, n, f"{h}_{n}") for h, n in PAIRS)]:
        named.append((token, {"head": head, "head_pointwise": name}))
    found: dict[str, dict[str, str]] = {}
    for token, layer in named:
        if found.setdefault(token, layer) != layer:
            raise UserError(
                f"{token!r} would name two layers, {' + '.join(found[token].values())} and "
                f"{' + '.join(layer.values())}; choose another name for yours"
            )
    return found


def with_layer_of_arch(given: Mapping[str, Any], arch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options, completed by those of the architecture.

    Args:
        given: options by name, ``head`` and ``head_pointwise`` among them if they are given.
        arch: the architecture's own; a ``head`` of another structure in `given` drops them all.
    """
    same = given.get("head", arch.get("head")) == arch.get("head")
    return {**arch, **given} if same else dict(given)


HEADS.listen(tokens)
POINTWISE.listen(tokens)
