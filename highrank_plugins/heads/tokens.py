"""Name layers in architectures: `mos_plif` in `transformer_mos_plif` and the like."""

from collections.abc import Mapping
from typing import Any

from highrank_plugins.heads import head_names, pointwise_names

PAIRS = [("mos", "plif"), ("mos", "sigsoftmax")]


def tokens() -> dict[str, dict[str, str]]:
    """Return the names that may follow ``transformer_`` and the like → the head of each."""
    found = {name: {"head": name} for name in head_names()}
    for name in pointwise_names():
        if name != "identity":
            found[name] = {"head": "softmax", "head_pointwise": name}
    for head, name in PAIRS:
        found[f"{head}_{name}"] = {"head": head, "head_pointwise": name}
    return found


def with_layer_of_arch(given: Mapping[str, Any], arch: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given options, completed by those of the architecture.

    Args:
        given: options by name, ``head`` and ``head_pointwise`` among them if they are given.
        arch: the architecture's own; a ``head`` of another structure in `given` drops them all.
    """
    same = given.get("head", arch.get("head")) == arch.get("head")
    return {**arch, **given} if same else dict(given)
