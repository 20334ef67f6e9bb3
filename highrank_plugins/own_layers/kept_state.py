"""Take back what a loss changes in a layer besides its parameters.

A layer may keep numbers in attributes and what these hold, in attributes of its classes, and in
variables of modules and closures that its functions name. Those of libraries are left alone, and so
is what is large, or cannot be read.
"""

from __future__ import annotations

import copy
import functools
import sys
from argparse import Namespace
from array import array
from collections import ChainMap, UserDict, UserList, deque
from collections.abc import Iterable, Iterator
from contextlib import suppress
from threading import local
from types import (
    CellType,
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
HOLDERS = (SimpleNamespace, Namespace, UserDict, UserList)  # but these may hold anything
OTHER_HOLDERS = (ChainMap, WeakKeyDictionary, WeakValueDictionary, local)
MOST_CONTAINERS, MOST_VALUES = 1000, 2**17  # that are followed; that are kept outside of attributes
CONTAINERS = (dict, list, set, deque, array, bytearray)
PLAIN = (bool, int, float, str)  # types of an option's value, and of a layer's numbers
PARAMETRISED = "parametrizations."  # in names; spectral norm takes a step in each loss
PACKAGE = __name__.partition(".")[0]
OUTSIDE = ":"  # begins names that stand in no attribute or container of one
Cached = type(functools.lru_cache(lambda: 0))


def containers(head: nn.Module) -> Iterator[tuple[str, Any]]:
    """Yield the attributes of a layer and of its parts, and the containers in them, with names."""
    seen: set[int] = set()
    todo: deque[tuple[str, Any]] = deque((f"{n}.".lstrip("."), vars(m))
                                         for n, m in head.named_modules())  # fmt: skip
    while todo and len(seen) < MOST_CONTAINERS:
        name, held = todo.popleft()
        if id(held) in seen:
            continue
        seen.add(id(held))
        yield name, held
        for key, value in held.items() if isinstance(held, dict) else enumerate(held):
            inner = _container(value)
            if inner is not None and not str(key).endswith("_hooks"):
                todo.append((f"{name}{key}.", inner))


def _container(value: object) -> Any:
    """Return a container, the attributes of an object that is no module or tensor, or None."""
    if isinstance(value, dict | list | set | deque):
        return value
    if isinstance(value, nn.Module | Tensor | type) or not hasattr(value, "__dict__"):
        return None
    foreign = callable(value) or _top(type(value)) in FOREIGN
    return None if foreign and not isinstance(value, HOLDERS) else vars(value)


class _Fields:
    """Name slots of an object, variables of a module, or attributes of a class, to set them."""

    def __init__(self, held: Any, names: Iterable[str] | None = None) -> None:
        self.held, self.names = held, names

    def read(self) -> dict[str, Any]:
        held, found = self.held, {}
        space: Any = vars(held) if isinstance(held, type) else held
        own = (n for n in space if not n.startswith("__")) if self.names is None else self.names
        for name in [*own]:
            with suppress(AttributeError, KeyError, ValueError):  # an empty slot or cell, say
                is_slot = not isinstance(held, dict | type)
                found[name] = object.__getattribute__(held, name) if is_slot else space[name]
        return found

    __copy__ = read

    def __len__(self) -> int:
        return len(self.read())

    def put(self, before: dict[str, Any]) -> None:
        held, now = self.held, self.read()
        kind: Any = type if isinstance(held, type) else object
        for name in now.keys() - before.keys():
            held.pop(name) if isinstance(held, dict) else kind.__delattr__(held, name)
        for name in (n for n, value in before.items() if n not in now or now[n] is not value):
            if isinstance(held, dict):
                held[name] = before[name]
            else:
                kind.__setattr__(held, name, before[name])


def _outside(head: nn.Module, known: Iterable[Any]) -> Iterator[Any]:
    """Yield what else may hold state: containers that classes, functions and objects lead to."""
    own = {_top(type(part)) for part in head.modules()} - FOREIGN
    classes = (cls for part in head.modules() for cls in type(part).__mro__)
    todo = deque([*((one, True) for held in known for one in _children(held)),
                  *((cls, False) for cls in classes)])  # fmt: skip
    seen, left = {id(one): one for one in known}, MOST_VALUES
    while todo and len(seen) < 20 * MOST_CONTAINERS:
        value, is_near = todo.popleft()
        # modules that functions name may be a whole model
        if id(value) in seen or (isinstance(value, nn.Module) and not is_near):
            continue
        seen[id(value)] = value
        with suppress(Exception):  # objects may refuse to be read
            held = _holder(value, own)
            if held is None or len(held) > left or (held is not value and id(held) in seen):
                continue
            is_near = is_near and not isinstance(value, FunctionType | type | ModuleType)
            todo.extend((one, is_near) for one in _children(held))
            left -= len(held)
            if type(held) is not tuple:
                yield held


def _children(held: Any) -> list[Any]:
    leaves = (*PLAIN, Tensor, type(None))
    found = held.items() if isinstance(held, dict) else ((None, one) for one in _values(held))
    return [one for key, one in found
            if not isinstance(one, leaves) and not str(key).endswith("_hooks")]  # fmt: skip


def _holder(value: Any, own: set[str]) -> Any:
    """Return what a value holds as a container, or None; `own` names packages with layers."""
    if type(value) is tuple or isinstance(value, (*CONTAINERS, _Fields)):
        return value
    if isinstance(value, functools.partial):
        return value.func, value.args, value.keywords
    if isinstance(value, MethodType | staticmethod | classmethod):
        return value.__func__, getattr(value, "__self__", None)
    if isinstance(value, property):
        return value.fget, value.fset
    if isinstance(value, CellType):
        return _Fields(value, ["cell_contents"])
    if isinstance(value, FunctionType | type | ModuleType):
        return None if _is_librarys(value, own) else _of_code(value)
    if isinstance(value, nn.Module):  # in a list, say, where torch does not find it
        return vars(value)
    if _top(type(value)) in FOREIGN:
        return vars(value) if isinstance(value, HOLDERS + OTHER_HOLDERS) else None
    slots = [n for c in type(value).__mro__ if "__slots__" in vars(c)
             for n, slot in vars(c).items() if isinstance(slot, MemberDescriptorType)]  # fmt: skip
    attributes = getattr(value, "__dict__", None)
    return (attributes, _Fields(value, slots)) if slots else attributes


def _of_code(value: Any) -> Any:
    if isinstance(value, type | ModuleType):
        return _Fields(value if isinstance(value, type) else vars(value))
    variables = _Fields(value.__globals__, tuple(_names(value.__code__)))
    cells = value.__closure__ or ()
    return vars(value), value.__defaults__, value.__kwdefaults__, variables, *cells


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for inner in code.co_consts:
        if isinstance(inner, CodeType):
            yield from _names(inner)


def _top(thing: Any) -> str:
    module = getattr(thing, "__module__", None)
    return module.partition(".")[0] if isinstance(module, str) else ""


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

    Used as a context, it restores them at the end, and clears the caches of the layer's methods.
    """

    def __init__(self, head: nn.Module) -> None:
        self.head = head
        found = [*containers(head)]
        held = [(name, c) for name, c in found if not name.endswith("_parameters.")]
        held += [(OUTSIDE, c) for c in _outside(head, [c for _, c in found])]
        self.held: list[tuple[str, Any, Any]] = []
        tensors: dict[int, tuple[str, Tensor]] = {}
        for name, container in held:
            with suppress(Exception):
                self.held.append((name, container, copy.copy(container)))
                for value in _values(container):
                    if (numbers := _numbers(value, name)) is not None:
                        tensors[id(value)] = name, numbers
        self.tensors = [(name, t, t.detach().clone()) for name, t in tensors.values()]

    def __enter__(self) -> None:
        pass

    def __exit__(self, *error: object) -> None:
        self.restore()
        for cls in {c for part in self.head.modules() for c in type(part).__mro__}:
            for value in vars(cls).values() if cls not in nn.Module.__mro__ else ():
                if isinstance(value, Cached):
                    value.cache_clear()

    def restore(self, within: str = "") -> None:
        """Put back everything, or what has `within` in its name; only what differs is written."""
        for name, container, before in self.held:
            if within in name and _differs(container, before):
                _put(container, before)
        with torch.no_grad():
            for name, tensor, kept in self.tensors:
                if within in name and not _equal(tensor, kept):
                    tensor.copy_(kept)

    def changed(self) -> str | None:
        """Return the name of a number, word or tensor that is another now; None if none is."""
        copies = {id(t): kept for _, t, kept in self.tensors}
        for name, container, before in self.held:
            if PARAMETRISED in name or name == OUTSIDE or isinstance(container, set):
                continue
            keys = before if isinstance(before, dict) else range(min(map(len, (before, container))))
            for key in keys:
                value = before[key]
                now = container.get(key) if isinstance(container, dict) else container[key]
                if isinstance(value, PLAIN) and value != now and value == value:
                    return f"{name}{key}"
                kept = copies.get(id(value))
                if kept is not None and isinstance(now, Tensor) and not _equal(now, kept, True):
                    return f"{name}{key}".replace("_buffers.", "")
        return None


def _numbers(value: Any, name: str) -> Tensor | None:
    """Return a tensor, or one that shares the memory of a NumPy array; None for other values."""
    is_array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    if is_array and value.flags.writeable and value.size <= MOST_VALUES:
        with suppress(TypeError, ValueError):  # other dtypes and strides
            return torch.from_numpy(value)
    if not isinstance(value, Tensor) or (name == OUTSIDE and value.numel() > MOST_VALUES):
        return None
    return value if value.layout is torch.strided and not value.is_nested else None


def _values(container: Any) -> list[Any]:
    held = container.read() if isinstance(container, _Fields) else container
    return list(held.values() if isinstance(held, dict) else held)


def _differs(container: Any, before: Any) -> bool:
    pairs = zip(_values(container), _values(before), strict=False)
    return len(container) != len(before) or any(a is not b for a, b in pairs)


def _put(container: Any, before: Any) -> None:
    if isinstance(container, _Fields):
        container.put(before)
    elif isinstance(container, array | bytearray):
        container[:] = before
    else:
        container.clear()
        getattr(container, "update" if hasattr(container, "update") else "extend")(before)


def _equal(now: Tensor, kept: Tensor, any_shape: bool = False) -> bool:
    if now.shape != kept.shape:
        return any_shape  # the tokens of a chunk
    now = now.detach()
    return now.is_meta or torch.equal(now, kept) or bool(((now == kept) | (now != now)).all())
