"""Compute apart from the caller's graph, random numbers and autocast, and see what is used."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor, nn


@contextmanager
def inner_graph(recorded: bool = True) -> Iterator[None]:
    """Record a graph that ends within the loss, and save its tensors without the caller's hooks.

    Hooks of `torch.utils.checkpoint` would run the whole loss again for each block, and hooks of
    `save_on_cpu` would copy contexts to the host.
    """
    # a saved output with its graph would keep itself alive, unless a backward pass frees it
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda t: (t.detach(), t._version), _unchanged)
    with torch.set_grad_enabled(recorded), hooks:
        yield


def _unchanged(saved: tuple[Tensor, int]) -> Tensor:
    tensor, version = saved
    if tensor._version != version:  # torch's own check ends with the hooks
        raise RuntimeError(
            "a tensor that the gradient of the loss needs was changed in place; return a new one"
        )
    return tensor


def generators(like: Tensor) -> list[Tensor]:
    """Return the states of torch's default generators of the CPU and of the current GPU."""
    states = [torch.get_rng_state()]
    return [*states, torch.cuda.get_rng_state()] if like.is_cuda else states


def set_generators(states: list[Tensor]) -> None:
    for state in states[:1]:
        torch.set_rng_state(state)
    for state in states[1:]:
        torch.cuda.set_rng_state(state)


@contextmanager
def kept_random_numbers(like: Tensor) -> Iterator[list[str]]:
    """Restore all random numbers; the list that is yielded names those drawn, but torch's."""
    numpy: Any = sys.modules.get("numpy")
    torchs, pythons = generators(like), random.getstate()
    numpys = numpy and numpy.random.get_state()
    drawn: list[str] = []
    try:
        yield drawn
    finally:
        set_generators(torchs)
        if random.getstate() != pythons:
            random.setstate(pythons)
            drawn.append("Python's")
        if numpy and not all(map(numpy.array_equal, numpy.random.get_state(), numpys)):
            numpy.random.set_state(numpys)
            drawn.append("NumPy's")


def autocast_dtype(features: Tensor) -> torch.dtype | None:
    """Return the dtype of products under the caller's autocast; None without."""
    device = features.device.type
    # device meta, which counts a GPU's peak, has no autocast
    if not torch.amp.is_autocast_available(device) or not torch.is_autocast_enabled(device):
        return None
    return torch.get_autocast_dtype(device)


def autocast(features: Tensor, dtype: torch.dtype | None = None) -> AbstractContextManager[None]:
    """Turn autocast on with a dtype, or off; no cache, which would keep graphs across chunks."""
    if not (dtype or autocast_dtype(features)):
        return nullcontext()
    return torch.autocast(features.device.type, dtype, dtype is not None, cache_enabled=False)


def leaves(loss: Tensor) -> list[Tensor]:
    """Return the tensors at which the graph of a loss ends."""
    seen, todo, found = set(), [loss.grad_fn], []
    while todo:
        node = todo.pop()
        if node is not None and node not in seen:
            seen.add(node)
            found += [node.variable] if hasattr(node, "variable") else []
            todo += [following for following, _ in node.next_functions]
    return found


@contextmanager
def calls(layer: nn.Module) -> Iterator[set[Any]]:
    """Yield the set of parts of a layer that are called meanwhile."""
    called: set[Any] = set()
    handles = [
        part.register_forward_pre_hook(lambda module, _: called.add(module))
        for part in layer.modules()
    ]
    try:
        yield called
    finally:
        for handle in handles:
            handle.remove()
