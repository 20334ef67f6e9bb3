"""Count the peak memory of a loss on a GPU, without one."""

from __future__ import annotations

import weakref
from collections.abc import Iterable
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from highrank_plugins.benchmarks.case import LossCase
from highrank_plugins.benchmarks.implementations import loss_function


class LiveMemory(TorchDispatchMode):
    """Count the bytes of all tensors that operations make, as long as they live.

    Tensors on device `meta` have sizes and no content: the losses take such a device for a GPU.

    Args:
        before: what does not count, since it exists before.
    """

    def __init__(self, before: Iterable[torch.Tensor]) -> None:
        super().__init__()
        self.now = self.peak = 0
        self._seen = {tensor.untyped_storage()._cdata for tensor in before}

    def __torch_dispatch__(
        self, function: Any, types: Any, args: Any = (), kwargs: Any = None
    ) -> Any:
        result = function(*args, **(kwargs or {}))
        for tensor in tree_leaves(result):
            if isinstance(tensor, torch.Tensor):
                self._add(tensor.untyped_storage())
        return result

    def _add(self, storage: torch.UntypedStorage) -> None:
        if storage._cdata not in self._seen:
            self._seen.add(storage._cdata)
            self.now += storage.nbytes()
            self.peak = max(self.peak, self.now)
            weakref.finalize(storage, self._drop, storage._cdata, storage.nbytes())

    def _drop(self, key: int, size: int) -> None:
        self._seen.discard(key)
        self.now -= size


def peak_of(case: LossCase, impl: str) -> tuple[int, int]:
    """Return the peak of a step above parameters and features, and the bytes of its gradients.

    What the library of matrix products keeps for itself does not count.

    Raises:
        CaseError: sizes that do not fit.
        ValueError: an implementation that does not serve the layer.
    """
    dtype = getattr(torch, case.dtype)
    with torch.device("meta"):
        head = case.build_head().to(dtype)
        features = torch.empty(case.tokens, case.dim, dtype=dtype, requires_grad=True)
        target = torch.zeros(case.tokens, dtype=torch.int64)
    parameters = list(head.parameters())
    with LiveMemory([features, target, *parameters]) as live:
        loss_function(impl, case)(head, features, target).sum().backward()
    return live.peak, sum(t.nbytes for t in (features, *parameters))
