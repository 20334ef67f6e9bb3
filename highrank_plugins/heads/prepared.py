"""Keep tensors that do not change between the steps of a beam search."""

from __future__ import annotations

from operator import attrgetter
from typing import Any

import torch
from torch import Tensor, nn

from highrank_plugins.losses.kept_state import is_plain
from highrank_plugins.losses.own_layers import is_ours


def named_tensors(module: nn.Module) -> dict[str, Tensor]:
    """Return all parameters by name; parametrised ones as their parametrisation computes them."""
    found: dict[str, Tensor] = {}
    for path, parameter in module.named_parameters(remove_duplicate=False):
        outer, parametrised, inner = path.partition("parametrizations.")
        name = outer + inner.partition(".")[0] if parametrised else path
        if name not in found:
            found[name] = attrgetter(name)(module) if parametrised else parameter
    return found


class PreparedTensors:
    """Keep `head.tensors()` for many calls without gradients in evaluation.

    They are prepared again when a parameter is moved, replaced or changed in place, when a number
    of a part is another, and after `train()` or `eval()`. Only writing through `parameter.data`
    while evaluating goes unnoticed; call `eval()` after it.
    """

    def __init__(self) -> None:
        self._tensors: dict[str, Tensor] | None = None
        self._state: tuple[tuple[object, ...], ...] = ()

    def __reduce__(self) -> tuple[type[PreparedTensors], tuple[()]]:
        return PreparedTensors, ()  # copies and pickles start empty

    def forget(self) -> None:
        """Discard the prepared tensors."""
        self._tensors = None

    def of(self, head: Any) -> dict[str, Tensor]:
        """Return the tensors of a `Head`; reuse the kept ones while they are valid."""
        changes = head.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
        if changes or not is_ours(head):  # the tensors of others may follow from anything
            return head.tensors()
        state = (
            *(_state(parameter) for parameter in head.parameters()),
            *(tuple(filter(is_plain, vars(part).values())) for part in head.modules()),
        )
        if self._tensors is None or state != self._state:
            self._tensors, self._state = head.tensors(), state
        return self._tensors


def _state(parameter: nn.Parameter) -> tuple[object, ...]:
    version = 0 if parameter.is_inference() else parameter._version
    return parameter.data_ptr(), version, parameter.dtype
