"""Offer Mixtape's arguments on a command line as a share of the classes and named biases."""

from __future__ import annotations

from typing import Any

from highrank_plugins.heads.mixtures import Mixture

# which of gate_hidden, gate_shared and each frequent class has a bias
GATE_BIASES = {
    "paper": (False, False, True),
    "full": (True, True, True),
    "none": (False, False, False),
}
BIASES = ("gate_hidden_bias", "gate_shared_bias", "gate_class_bias")


SET_BY: dict[str, str | None] = {
    **Mixture.set_by,
    "frequent": "frequent_ratio",
    **dict.fromkeys(BIASES, "gate_biases"),
}
OTHER_OPTIONS: dict[str, bool | int | float | str] = {
    "frequent_ratio": 0.5,
    "frequent_multiple": 64,
    "gate_biases": "paper",
}
OPTION_HELP = Mixture.option_help | {
    "frequent_ratio": "r: the r*V most frequent classes have gates of their own (0 to 1)",
    "frequent_multiple": "round the number of these classes to the nearest multiple of N, "
    "which GPUs compute faster, unless it is below N; 1: do not round. A checkpoint keeps its "
    "number",
    "gates": "tree of sigmoids, or a softmax as its control (any K; losses: reference, chunked)",
    "gate_biases": "biases of the gates: paper (of frequent classes), full (all) or none",
    "gate_dim": "width d2 of the gates' hidden layer",
    "gate_dropout": "dropout on the gates' hidden layer tanh(U g)",
    "gate_noise": "sd of Gaussian noise on the frequent gates in training (slow on CPU if not 0)",
    "gate_weight_norm": "normalise the rows of U to this constant length; 0: off",
}


def arguments(options: dict[str, Any], num_classes: int) -> dict[str, Any]:
    """Return S, computed from a ratio, and three flags, from the name of a choice."""
    choice = options["gate_biases"]
    if choice not in GATE_BIASES:
        raise ValueError(f"gate_biases: {choice!r} is not one of {', '.join(GATE_BIASES)}")
    ratio, multiple = options["frequent_ratio"], options["frequent_multiple"]
    frequent = number_of_frequent(ratio, multiple, num_classes)
    return {"frequent": frequent, **dict(zip(BIASES, GATE_BIASES[choice], strict=True))}


def number_of_frequent(ratio: float, multiple: int, num_classes: int) -> int:
    """Return S: int(ratio · M), rounded to the nearest multiple where that keeps its meaning.

    A GPU loads 16 bytes at once only where rows start at multiples of 16 bytes. A number below
    `multiple` stays, since rounding would change the share of classes too much; so does one that
    would exceed M, and M itself.
    """
    if not 0 <= ratio <= 1:
        raise ValueError(f"frequent_ratio must lie in [0, 1], got {ratio}")
    if multiple < 1:
        raise ValueError(f"frequent_multiple must be at least 1, got {multiple}")
    exact = int(ratio * num_classes)
    rounded = (exact + multiple // 2) // multiple * multiple
    keeps = exact < multiple or exact == num_classes or rounded > num_classes
    return exact if keeps else rounded
