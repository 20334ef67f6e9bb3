"""Take back what the bases of a layer claim, when the layer replaces their function.

A fused loss has the gradient of one function written out, and measures rely on methods such as
`nll_of_logits`. A subclass that changes the function must not keep them unless it says so.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

# what `Head` defines by the log-probabilities alone, which is right for any layer
OF_LOG_PROBS = (
    "chunk_nll", "chunk_log_norms", "logits", "logit_vectors", "nll_of_logits", "log_weights",
    "class_gates", "has_logits", "weights_by_class",
)  # fmt: skip
# what `LogitHead` and `Head` define by the logits alone
OF_LOGITS = ("logit_vectors", "nll_of_logits", "log_weights", "class_gates", "weights_by_class")


def drop_fused(cls: type) -> None:
    """Let a class that replaces a method of its bases' function be computed by autograd.

    It has no fused loss then, and its logits are not taken for linear, unless it says so itself.
    """
    if any(
        (name.startswith("chunk_") or name in ("token_inputs", "apply_pointwise"))
        and _inherited(cls, name) is not None
        for name in vars(cls)
    ):
        _set(cls, fused=None, linear_logits=False)


def restore(cls: type, names: Iterable[str], origin: type, replaced: str) -> None:
    """Give names the meaning that they have in `origin`, which declares the method `replaced`.

    Nothing changes if the class does not replace an implementation of that method. What the class
    defines itself stays.
    """
    if replaced in vars(cls) and _inherited(cls, replaced) is not getattr(origin, replaced):
        _set(cls, **{name: getattr(origin, name) for name in names})


def _set(cls: type, **attributes: Any) -> None:
    for name in attributes.keys() - vars(cls).keys():
        setattr(cls, name, attributes[name])


def _inherited(cls: type, name: str) -> Any:
    return getattr(super(cls, cls), name, None)
