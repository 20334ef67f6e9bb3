"""Take back what a loss changes in a layer besides its parameters.

A layer may keep numbers in attributes and what these hold, in attributes of its classes, and in
variables of modules and closures that its functions name. Those of libraries are left alone.
"""

from __future__ import annotations

import copy
import sys
from argparse import Namespace
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator, MutableMapping
from functools import partial
from threading import local
from types import (
    CodeType,
    FunctionType,
    MemberDescriptorType,
    MethodType,
    ModuleType,
    SimpleNamespace,
)
from typing import Any
from weakref import WeakKeyDictionary, WeakValueDictionary

import torch
from torch import Tensor, nn

# whose objects hold no state of a layer
FOREIGN = sys.stdlib_module_names | {"torch", "numpy", "fairseq", "omegaconf", "hydra"}
HOLDERS = (SimpleNamespace, Namespace, UserDict, UserList, ChainMap, local,
           WeakKeyDictionary, WeakValueDictionary)  # fmt: skip  # but these may hold anything
CONTAINERS = (dict, list, set, deque, tuple, array, bytearray)
MOST_CONTAINERS, MOST_VALUES = 1000, 2**20  # that are followed; of one outside that is kept
PLAIN = (bool, int, float, str)  # types of an option's value, and of a layer's numbers
PARAMETRISED = "parametrizations."  # in names; spectral norm takes a step in each loss
PACKAGE = __name__.partition(".")[0]
OUTSIDE = ":"  # begins names that stand in no attribute


class _Fields(MutableMapping[str, Any]):
    """Show attributes of an object, or some variables of a module, as a dictionary."""

    def __init__(self, held: Any, names: Iterable[str] | None = None) -> None:
        self.held, self.names = held, names
        self.space: Any = vars(held) if isinstance(held, type) else held

    def __getitem__(self, name: str) -> Any:
        if hasattr(self.space, "items"):
            return self.space[name]
        try:
            return getattr(self.held, name)
        except (AttributeError, ValueError):  # of an empty slot or cell
            raise KeyError(name) from None

    def __setitem__(self, name: str, value: Any) -> None:
        if self.space is self.held and hasattr(self.space, "items"):
            self.held[name] = value
        else:
            setattr(self.held, name, value)

    def __delitem__(self, name: str) -> None:
        if self.space is self.held and hasattr(self.space, "items"):
            del self.held[name]
        else:
            delattr(self.held, name)

    def __iter__(self) -> Iterator[str]:
        names = self.names or [n for n in self.space if not n.startswith("__")]
        return (name for name in names if name in self)

    def __len__(self) -> int:
        return sum(1 for _ in self)

    def __copy__(self) -> dict[str, Any]:
        return dict(self)


def containers(head: nn.Module, outside: bool = False) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a layer and of its parts, and the containers in them, with names.

    With `outside` also those that classes and functions lead to.
    """
    parts = [*head.named_modules()]
    own = {_top(type(part)) for _, part in parts} - FOREIGN
    todo: deque[tuple[str, Any]] = deque((f"{n}.".lstrip("."), vars(part)) for n, part in parts)
    if outside:
        todo.extend((OUTSIDE, cls) for _, part in parts for cls in type(part).__mro__)
    seen: dict[int, Any] = {}
    while todo and len(seen) < MOST_CONTAINERS:
        name, value = todo.popleft()
        held = None if id(value) in seen else _container(value, own if outside else None)
        seen[id(value)] = value
        if held is None or (name.startswith(OUTSIDE) and len(held) > MOST_VALUES):
            continue
        yield name, held
        for key, inner in held.items() if hasattr(held, "items") else enumerate(held):
            if not isinstance(inner, (*PLAIN, Tensor)) and not str(key).endswith("_hooks"):
                if isinstance(inner, FunctionType | type | ModuleType):
                    todo.append((OUTSIDE, inner))
                elif not (name.startswith(OUTSIDE) and isinstance(inner, nn.Module)):
                    todo.append((f"{name}{key}.", inner))


def _container(value: Any, own: set[str] | None) -> Any:
    """Return a container with the content of a value, or None; `own` names packages with layers."""
    if isinstance(value, (*CONTAINERS, _Fields)):
        return value
    if isinstance(value, partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType | staticmethod | classmethod):
        return value.__func__, getattr(value, "__self__", None)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, FunctionType | type | ModuleType):
        return None if own is None or _is_librarys(value, own) else _of_code(value)
    if isinstance(value, nn.Module):  # in a list, say, where torch does not find it
        return None if own is None else vars(value)
    foreign = _top(type(value)) in FOREIGN and not isinstance(value, HOLDERS)
    if foreign or isinstance(value, Tensor):
        return None
    slots = [n for c in type(value).__mro__ for n, d in vars(c).items()
             if isinstance(d, MemberDescriptorType)]  # fmt: skip
    attributes = getattr(value, "__dict__", None)
    return (attributes, _Fields(value, slots)) if slots else attributes


def _of_code(value: Any) -> Any:
    if isinstance(value, type | ModuleType):
        return _Fields(value if isinstance(value, type) else vars(value))
    cells = [_Fields(cell, ("cell_contents",)) for cell in value.__closure__ or ()]
    variables = _Fields(value.__globals__, tuple(_names(value.__code__)))
    return (vars(value), value.__defaults__, value.__kwdefaults__, variables, *cells)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _top(thing: Any) -> str:
    return (getattr(thing, "__module__", None) or "").partition(".")[0]


def _is_librarys(code: Any, own: set[str]) -> bool:
    """Whether a class or a function is of this package, or of a library other than the layer's."""
    top = code.__name__.partition(".")[0] if isinstance(code, ModuleType) else _top(code)
    file = getattr(sys.modules.get(top), "__file__", None) or ""
    return top in FOREIGN or top == PACKAGE or ("site-packages" in file and top not in own)


def moved_numbers(values: Tensor) -> Tensor:
    """Return numbers made up to a tenth smaller by rows, of the same domain, none of them 0."""
    share = 0.1 * torch.rand_like(values[(...,) + (slice(1),) * (values.dim() > 1)])
    moved = values * (1 - share)
    some_are_zero = moved.count_nonzero() < moved.numel()  # quicker than a mask of them
    return torch.where(moved == 0, share, moved, out=moved) if some_are_zero else moved


class KeptState:
    """Hold what a layer's attributes, containers and buffers are now, to restore them.

    Used as a context, it restores them at the end, and clears the caches of the layer's functions.
    """

    def __init__(self, head: nn.Module) -> None:
        found = (p for p in containers(head, True) if not p[0].endswith("_parameters."))
        self.held = [(name, c, copy.copy(c)) for name, c in found]
        tensors = {id(v): (name, t) for name, _, values in self.held for v in _values(values)
                   if (t := _numbers(v, name)) is not None}  # fmt: skip
        self.tensors = [(name, t, t.detach().clone()) for name, t in tensors.values()]

    def restore(self, within: str = "") -> None:
        """Put back everything, or what has `within` in its name; only what differs is written."""
        for name, container, before in self.held:
            if within in name and _differs(container, before):
                _put(container, before)
        with torch.no_grad():
            for name, tensor, kept in self.tensors:
                if within in name and not _equal(tensor, kept):
                    tensor.copy_(kept)

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.restore()
        for value in (v for _, held, _ in self.held for v in _values(held)):
            if hasattr(type(value), "cache_clear"):
                value.cache_clear()

    def changed(self) -> str | None:
        """Return the name of a number, word or tensor that is another now; None if none is."""
        copies = {id(t): kept for _, t, kept in self.tensors}
        for name, container, before in self.held:
            if PARAMETRISED in name or name.startswith(OUTSIDE) or isinstance(container, set):
                continue
            keys = before if hasattr(before, "items") else range(min(len(before), len(container)))
            for key in keys:
                value = before[key]
                now = container.get(key) if hasattr(before, "items") else container[key]
                if isinstance(value, PLAIN) and value != now and value == value:
                    return f"{name}{key}"
                kept = copies.get(id(value))
                if kept is not None and isinstance(now, Tensor) and not _equal(now, kept, True):
                    return f"{name}{key}".replace("_buffers.", "")
        return None


def _numbers(value: Any, name: str) -> Tensor | None:
    """Return a tensor, or one that shares the memory of a NumPy array; None if it is large."""
    if type(value).__module__ == "numpy" and getattr(value, "flags", None) is not None:
        known = value.dtype.kind in "biufc" and value.flags.writeable
        value = torch.from_numpy(value) if known and value.ndim else None
    large = name.startswith(OUTSIDE) and isinstance(value, Tensor) and value.numel() > MOST_VALUES
    return value if isinstance(value, Tensor) and not large else None


def _values(container: Any) -> list[Any]:
    return list(container.values() if hasattr(container, "items") else container)


def _differs(container: Any, before: Any) -> bool:
    pairs = zip(_values(container), _values(before), strict=False)
    return len(container) != len(before) or any(a is not b for a, b in pairs)


def _put(container: Any, before: Any) -> None:
    if isinstance(container, _Fields):
        for name in [*container]:
            if name not in before:
                del container[name]
        for name, value in before.items():
            if name not in container or container[name] is not value:
                container[name] = value
    elif isinstance(container, array | bytearray):
        container[:] = before
    else:
        container.clear()
        getattr(container, "update" if hasattr(container, "update") else "extend")(before)


def _equal(now: Tensor, kept: Tensor, any_shape: bool = False) -> bool:
    if now.shape != kept.shape:
        return any_shape  # the tokens of a chunk
    return torch.equal(now.detach(), kept)
