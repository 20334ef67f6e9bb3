"""Keep a subclass that replaces its base's function from inheriting what holds for that alone.

A fused loss has the gradient of one function written out, and measures rely on methods such as
`nll_of_logits`. A subclass with another function must not keep them unless it says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# attributes whose versions in `Head` follow from the log-probabilities, which suits every layer
OF_LOG_PROBS = (
    "chunk_nll", "chunk_log_norms", "logits", "logit_vectors", "nll_of_logits", "log_weights",
    "class_gates", "has_logits", "weights_by_class",
)  # fmt: skip
# attributes whose versions in `LogitHead` follow from the logits, which suits every `LogitHead`
OF_LOGITS = ("logit_vectors", "nll_of_logits", "log_weights", "class_gates", "weights_by_class")


def drop_fused(cls: type) -> None:
    """Compute the loss by autograd if a class replaces a method of its bases' function.

    The class then has no fused loss, and no linear logits, unless it says so itself.
    """
    if any(
        (name.startswith("chunk_") or name in ("token_inputs", "apply_pointwise"))
        and _inherited(cls, name) is not None
        for name in vars(cls)
    ):
        _set_undefined(cls, fused=None, linear_logits=False)


def restore(cls: type, names: Iterable[str], origin: type, method: str) -> None:
    """Give attributes their versions of `origin` if a class replaces a base's implementation.

    A class that implements the method first, where `origin` only declares it, keeps all that it
    inherits.

    Args:
        names: the attributes; those that the class defines itself stay.
        origin: the class that declares the method, and has versions of the attributes that
            follow from it.
        method: name of the method.
    """
    if method in vars(cls) and _inherited(cls, method) is not getattr(origin, method):
        _set_undefined(cls, **{name: getattr(origin, name) for name in names})


def _set_undefined(cls: type, **attributes: Any) -> None:
    for name in attributes.keys() - vars(cls).keys():
        setattr(cls, name, attributes[name])


def _inherited(cls: type, name: str) -> Any:
    return getattr(super(cls, cls), name, None)
