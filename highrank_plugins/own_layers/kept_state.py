"""Take back what a loss changes in a layer besides its parameters.

A layer may keep numbers in attributes, and in containers and objects that these hold.
"""

from __future__ import annotations

import copy
import sys
from argparse import Namespace
from collections import UserDict, UserList, deque
from collections.abc import Iterator
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

# whose objects hold no state of a layer
FOREIGN = sys.stdlib_module_names | {"torch", "numpy", "fairseq", "omegaconf", "hydra"}
HOLDERS = (SimpleNamespace, Namespace, UserDict, UserList)  # but these may hold anything
MOST_CONTAINERS, MOST_VALUES = 1000, 2**17  # that are followed; of an array that is kept
PLAIN = (bool, int, float, str)  # types of an option's value, and of a layer's numbers
PARAMETRISED = "parametrizations."  # in names; spectral norm takes a step in each loss


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
    foreign = callable(value) or type(value).__module__.partition(".")[0] in FOREIGN
    return None if foreign and not isinstance(value, HOLDERS) else vars(value)


def moved_numbers(values: Tensor) -> Tensor:
    """Return numbers made up to a tenth smaller by rows, of the same domain, none of them 0."""
    share = 0.1 * torch.rand_like(values[(...,) + (slice(1),) * (values.dim() > 1)])
    moved = values * (1 - share)
    some_are_zero = moved.count_nonzero() < moved.numel()  # quicker than a mask of them
    return torch.where(moved == 0, share, moved, out=moved) if some_are_zero else moved


class KeptState:
    """Hold what a layer's attributes, containers and buffers are now, to restore them.

    Used as a context, it restores them at the end.
    """

    def __init__(self, head: nn.Module) -> None:
        self.held: list[tuple[str, Any, Any]] = []
        tensors: dict[int, tuple[str, Tensor]] = {}
        for name, container in containers(head):
            if name.endswith("_parameters."):
                continue
            with suppress(Exception):  # objects may refuse to be copied
                self.held.append((name, container, copy.copy(container)))
                for value in _values(container):
                    if (numbers := _numbers(value)) is not None:
                        tensors[id(value)] = name, numbers
        self.tensors = [(name, t, t.detach().clone()) for name, t in tensors.values()]

    def __enter__(self) -> KeptState:
        return self

    def __exit__(self, *error: object) -> None:
        self.restore()

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
            if PARAMETRISED in name or isinstance(container, set):
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


def _numbers(value: Any) -> Tensor | None:
    """Return a tensor, or one that shares the memory of a NumPy array; None for other values."""
    is_array = type(value).__module__ == "numpy" and type(value).__name__ == "ndarray"
    if is_array and value.flags.writeable and value.size <= MOST_VALUES:
        with suppress(TypeError, ValueError):  # other dtypes and strides
            return torch.from_numpy(value)
    is_plain = isinstance(value, Tensor) and value.layout is torch.strided and not value.is_nested
    return value if is_plain else None


def _values(container: Any) -> list[Any]:
    return list(container.values() if isinstance(container, dict) else container)


def _differs(container: Any, before: Any) -> bool:
    pairs = zip(_values(container), _values(before), strict=False)
    return len(container) != len(before) or any(a is not b for a, b in pairs)


def _put(container: Any, before: Any) -> None:
    container.clear()
    getattr(container, "update" if hasattr(container, "update") else "extend")(before)


def _equal(now: Tensor, kept: Tensor, any_shape: bool = False) -> bool:
    if now.shape != kept.shape:
        return any_shape  # the tokens of a chunk
    now = now.detach()
    return now.is_meta or torch.equal(now, kept) or bool(((now == kept) | (now != now)).all())
