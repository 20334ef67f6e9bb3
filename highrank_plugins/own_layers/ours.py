"""Tell layers that are not this package's, and compute them on detached copies of their tensors.

A chunked loss computes a layer on copies of its tensors, whose gradients it gathers. While it
does, each parameter of an own layer *is* its copy: `self.w`, `self.net(z)` and `tensors["w"]` learn
alike. `contract` checks the rest.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from functools import cache
from inspect import unwrap
from pathlib import Path
from typing import Any, TypeVar
from weakref import WeakSet

import torch
from torch import Tensor, nn
from torch.func import functional_call

from highrank_plugins.common.names import class_of, layer_name
from highrank_plugins.common.torch_state import autocast
from highrank_plugins.common.user_error import UserError
from highrank_plugins.own_layers.kept_state import PARAMETRISED

T = TypeVar("T")
RAW = ":parameter"  # ends the name of an input that is a parameter which `tensors` leaves out
PACKAGE = __name__.partition(".")[0]
# whose derived classes and hooks change nothing: FSDP, parametrizations
TRANSPARENT = ("torch.distributed", "torch.nn.utils")
# what losses and generation call of a class, where somebody may put another function
METHODS = ("forward", "log_probs", "nll", "top_k", "chunk_log_probs", "chunk_nll", "chunk_logits",
           "linear_logits", "contexts", "log_prior", "apply_to")  # fmt: skip
HOOKS = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks", "_backward_pre_hooks")
_checked: WeakSet[Any] = WeakSet()  # heads whose parametrised matrix was right
OUR_CODE = tuple(f"{Path(file).parent}{os.sep}" for file in (torch.__file__, Path(__file__).parent))


def is_ours(module: Any) -> bool:
    """Whether a layer and its parts are this package's classes, and nobody changed them."""
    return all(map(is_unchanged, module.modules()))


def is_unchanged(module: nn.Module) -> bool:
    """Whether a module is of this package's classes or a plain part of them, as it was made."""
    cls: Any = type(module)  # to mypy a class of modules has no hash
    methods = _our_methods(cls)
    for name, function in methods:  # of each loss, so quicker than all(…)
        if getattr(cls, name, None) is not function:
            return False
    return bool(methods) and not has_own_methods(vars(module), cls) and not has_own_hooks(module)


@cache
def _our_methods(given: type[nn.Module]) -> list[tuple[str, Any]]:
    """Return what is called of a class, with names; nothing if it is not this package's."""
    cls = next(c for c in given.__mro__ if not _comes_from(c, *TRANSPARENT))
    found = [(name, getattr(given, name)) for name in METHODS if hasattr(given, name)]
    if cls is nn.Module:
        return [] if given is nn.Module else found  # a parametrization of torch's
    ours = _comes_from(cls, PACKAGE) or cls in (nn.Linear, nn.ModuleDict, nn.ModuleList)
    return found if ours and all(is_our_function(function) for _, function in found) else []


def is_our_function(function: Any) -> bool:
    """Whether a function, and what it wraps, stands in this package's or in torch's files."""
    codes = (getattr(f, "__code__", None) for f in (function, unwrap(function)))
    return all(code is None or code.co_filename.startswith(OUR_CODE) for code in codes)


def has_own_methods(attributes: Mapping[str, Any], cls: type) -> bool:
    """Whether attributes of an instance take the place of methods of its class."""
    for name, value in attributes.items():
        if callable(value) and not isinstance(value, type) and hasattr(cls, name):
            return True
    return False


def is_distributed(module: nn.Module) -> bool:
    """Whether FSDP has made a class of its own of the module's class."""
    return any(_comes_from(cls, *TRANSPARENT[:1]) for cls in type(module).__mro__)


def has_own_hooks(module: nn.Module) -> bool:
    """Whether hooks other than those of FSDP, of fairseq and our own run around `forward`."""
    kinds = [getattr(module, kind) for kind in HOOKS]
    return any(kinds) and any(
        not _comes_from(hook, *TRANSPARENT[:1], "fairseq", PACKAGE)
        for hooks in kinds
        for hook in hooks.values()
    )


def _comes_from(thing: Any, *packages: str) -> bool:
    return getattr(thing, "__module__", "").startswith(tuple(f"{p}." for p in packages))


def inputs_of(head: Any, is_own: bool) -> dict[str, Tensor]:
    """Return the tensors of a layer and, of an own one, all parameters that these leave out."""
    tensors, named = head.tensors(), head.named_parameters() if is_own else ()
    return tensors | {n + RAW: p for n, p in named if tensors.get(n) is not p}


def bound(module: Any, named: dict[str, Tensor], function: Callable[[dict[str, Tensor]], T]) -> T:
    """Return `function` of the tensors, called while the parameters of a module are these."""
    given = {
        name: named.get(name + RAW, named.get(name, parameter))
        for name, parameter in module.named_parameters(remove_duplicate=False)
    }
    tensors = {name: t for name, t in named.items() if not name.endswith(RAW)}
    return call_with(module, given, lambda: function(tensors))


def call_with(module: Any, given: dict[str, Tensor], function: Callable[[], T]) -> T:
    """Return `function()`, called while parameters and buffers of a module are the given ones."""
    named = {f"module.{name}": tensor for name, tensor in given.items()}
    return functional_call(_Caller(module), named, (function,), tie_weights=False)


class _Caller(nn.Module):
    """Let `functional_call` call any function of a module."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, function: Callable[..., T], *inputs: Any) -> T:
        return function(*inputs)


def same_form(module: Any, values: Tensor, logits: Tensor) -> Tensor:
    """Return the values of a pointwise function, which have the shape and dtype of its logits."""
    if values.shape == logits.shape and values.dtype == logits.dtype:
        return values
    raise UserError(
        f"{title(module)}: apply_to returned {values.dtype} {tuple(values.shape)} for logits "
        f"{logits.dtype} {tuple(logits.shape)}; return a tensor of the same shape and dtype"
    )


def stored_matrix(head: Any) -> Tensor:
    """Return the vocabulary matrix, or the first tensor from which a parametrisation makes it."""
    names = ("weight", *(f"{PARAMETRISED}weight.original{i}" for i in ("", 0)))
    parameters = dict(head.named_parameters(remove_duplicate=False))
    return next((parameters[n] for n in names if n in parameters), next(iter(parameters.values())))


def check_matrix(head: Any) -> None:
    """Refuse, at a head's first loss, a parametrisation that does not give the matrix [M, D]."""
    if head in _checked:
        return
    stored = stored_matrix(head)
    parts = head.parametrizations["weight"]
    with torch.no_grad(), autocast(stored):  # which narrows what a product returns
        matrix = head.weight
    kind = f"weight: the parametrisation {', '.join(class_of(p).__name__ for p in parts)}"
    wanted = (head.num_classes, head.embed_dim)
    if tuple(matrix.shape) != wanted or matrix.dtype != stored.dtype:
        raise UserError(
            f"{kind} returns {matrix.dtype} {tuple(matrix.shape)}, expected {stored.dtype} "
            f"{wanted}: (num_classes, embed_dim), in the dtype of its parameters"
        )
    right = matrix.is_meta or bool(matrix.isfinite().all())
    if not right and all(bool(p.isfinite().all()) for p in parts.parameters()):
        first = int((~matrix.isfinite().all(1)).nonzero()[0])
        raise UserError(
            f"{kind} returns NaN or infinite numbers for finite parameters, first for class "
            f"{first}; mend its forward, e.g. where it divides by the norm of a row of zeros"
        )
    _checked.add(head)


def title(module: Any) -> str:
    """Return the class of a layer and the name under which it is registered, for messages."""
    name, cls = layer_name(module), class_of(module).__name__
    return name if name == cls else f"{cls} ({name})"
