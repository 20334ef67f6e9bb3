"""Keep a subclass that replaces its base's function from inheriting what holds for that alone.

A fused loss or a kernel has the gradient of one function written out, and measures rely on methods
such as `nll_of_logits`. A subclass with another function must not keep them unless it says so.
All rules follow the method resolution order, so that mixins count, too.
"""

from __future__ import annotations

from collections.abc import Iterable, Set

from torch import nn

# attributes whose versions in `Head` follow from the log-probabilities, which suits every layer
OF_LOG_PROBS = (
    "chunk_nll", "chunk_log_norms", "logits", "logit_vectors", "nll_of_logits", "log_weights",
    "class_gates", "has_logits", "weights_by_class",
)  # fmt: skip
# attributes whose versions in `LogitHead` follow from the logits, which suits every `LogitHead`
OF_LOGITS = ("logit_vectors", "nll_of_logits", "log_weights", "class_gates", "weights_by_class")
# what a structure may replace under a fused loss: the loss calls it, or does not depend on it
OUTSIDE_FUSED = frozenset(
    (
        *OF_LOG_PROBS[2:], "fused", "linear_logits", "retain_dropout", "registered_name",
        "contexts", "log_prior", "_gate_hidden", "tensors", "sample_masks",
        "check_sizes", "make_latents", "floats_per_token", "token_floats", "products",
        "_mixing_products", "needs_sorted_classes", "arguments", "set_by", "other_options",
        "language_model_defaults", "option_help", "constants", "extra_repr", "train",
        "forward", "log_probs", "nll", "top_k",
    )
)  # fmt: skip
# what a pointwise function may replace under the kernels of its base
OUTSIDE_KERNELS = frozenset(
    ("constants", "domain", "extra_repr", "option_help", "own_rate", "registered_name", "train")
)


def follow_log_probs(cls: type, head: type) -> None:
    """Give a subclass of `head` that has another function what suits every layer."""
    reset_unless_kept(cls, ("fused", "linear_logits"), head, OUTSIDE_FUSED)
    restore(cls, OF_LOG_PROBS, head, "chunk_log_probs")


def reset_unless_kept(cls: type, names: Iterable[str], origin: type, harmless: Set[str]) -> None:
    """Give attributes their versions of `origin` where a later class replaces the function.

    Args:
        names: the attributes; each stays where the class that defines it comes before all classes
            that replace something of its own, apart from `harmless` names.
    """
    for name in names:
        owner = next(c for c in cls.__mro__ if name in vars(c))
        before = cls.__mro__[: cls.__mro__.index(owner)]
        if any(_replaces(c, owner, harmless) for c in before):
            setattr(cls, name, getattr(origin, name))


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
    order = cls.__mro__
    definers = [c for c in order if method in vars(c)]
    if origin in definers[:2]:
        return
    for name in names:
        owner = next(c for c in order if name in vars(c))
        if order.index(owner) > order.index(definers[0]) and owner not in origin.__mro__:
            setattr(cls, name, getattr(origin, name))


def _replaces(cls: type, owner: type, harmless: Set[str]) -> bool:
    """Whether a class replaces a method of the layers above it that is not harmless."""
    own = {name for c in owner.__mro__ if c not in nn.Module.__mro__ for name in vars(c)}
    names = own & vars(cls).keys() - harmless
    return any(not name.startswith("__") for name in names)
