"""Check at its first loss that an own layer keeps the contract of the losses, on a few tokens.

Values must be log-probabilities, each token must stand alone, and generation must have the function
of the loss. The implementation must agree with plain autograd of `log_probs`, in values and in the
gradients of all parameters.

The check computes in float32 or float64, on copies of parameters and buffers. The copies differ a
little from the parameters, since zeros and ones at the start hide what a layer reads.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar, copy_context
from dataclasses import replace
from types import FunctionType
from typing import Any
from weakref import WeakKeyDictionary

import torch
from torch import Tensor, nn

from highrank_plugins.common.torch_state import autocast, inner_graph, kept_random_numbers
from highrank_plugins.common.user_error import UserError
from highrank_plugins.own_layers.kept_state import PLAIN, KeptState, containers, moved_numbers
from highrank_plugins.own_layers.ours import HOOKS, call_with, has_own_methods, title
from highrank_plugins.own_layers.trial import (
    FEWEST,
    OF_LAYER,
    REMEDY,
    Compute,
    NoLogProbs,
    Trial,
    said,
)

MOST_VERDICTS = 16  # of a layer, after which changes of its plain attributes are not followed

logger = logging.getLogger(__name__)
_trying: ContextVar[bool] = ContextVar("trying", default=False)
_verdicts: WeakKeyDictionary[Any, dict[Any, tuple[str, list[object]]]] = WeakKeyDictionary()


def checked_implementation(plan: Any, chosen: str, compute: Compute) -> str:
    """Return what computes an own layer's loss, checked once for each way and state of it."""
    # a single class has no gradient to compare
    if not plan.features.numel() or plan.head.num_classes == 1 or _trying.get():
        return chosen
    asked = (chosen, plan.falls_back, plan.reduction, plan.smooth, plan.z_loss > 0,
             plan.accuracy or plan.entropy, plan.filter_gradients,
             torch.is_grad_enabled(), plan.features.dtype)  # fmt: skip
    verdicts = _verdicts.setdefault(plan.head, {})
    functions: list[object] = []  # kept with the verdict, so that no other takes the place of one
    key = (asked, *_state(plan.head, functions, numbers=len(verdicts) < MOST_VERDICTS))
    if key not in verdicts:
        verdicts[key] = copy_context().run(_verdict, plan, chosen, compute), functions
    return verdicts[key][0]


def _state(head: Any, functions: list[object], numbers: bool) -> Iterator[Any]:
    """Yield what says that a layer has another function than before; list its functions."""
    plain = PLAIN if numbers else (bool, str)
    for _, held in containers(head):
        items = held.items() if isinstance(held, dict) else enumerate(held)
        yield tuple((key, value) for key, value in items if isinstance(value, plain))
    for part in head.modules():
        cls = type(part)
        functions.append(cls)
        functions += [v for n, v in vars(part).items() if has_own_methods({n: v}, cls)]
        classes = [c for c in cls.__mro__ if c not in nn.Module.__mro__]
        functions += [f for c in classes for f in vars(c).values() if isinstance(f, FunctionType)]
        functions += [h for kind in HOOKS for h in getattr(part, kind).values()]
    yield tuple(map(id, functions))
    yield tuple((p.shape, p.requires_grad) for p in head.parameters())
    yield tuple(0 if b.is_inference() else b._version for b in head.buffers())


def _verdict(plan: Any, chosen: str, compute: Compute) -> str:
    def found() -> tuple[str, str]:
        trial = Trial(plan, compute)
        trial.check_layer()
        difference = ""
        for impl in (chosen, "chunked") if plan.falls_back else (chosen,):
            difference = trial.difference(impl, plan.reduction) or ""
            if not difference:
                return impl, ""
            if plan.falls_back:
                logger.warning("%s: %s under --head-loss %s", title(plan.head), difference, impl)
            if plan.filter_gradients:
                break  # no other implementation filters
        return impl, difference

    recorded = inner_graph(torch.is_grad_enabled())
    with _kept(plan) as state, recorded, autocast(plan.features):
        try:
            # what a first call keeps outside of attributes comes from parameters, not from copies
            x, y = plan.features.detach()[:FEWEST], plan.target[:FEWEST]
            compute("reference", replace(plan, features=x, target=y, weight=None, ignored=None))
            state.restore()
            try:
                impl, difference = call_with(plan.head, _copies(plan.head, moved=True), found)
            except NoLogProbs:  # the copies may lie outside of the domain
                impl, difference = call_with(plan.head, _copies(plan.head, moved=False), found)
        except UserError:
            raise
        except OF_LAYER as error:
            raise UserError(f"{title(plan.head)}: {said(error)}") from error
    if not difference:
        return impl
    if difference.startswith("the norm of the gradient"):
        difference += " (a parameter counts if each call reads it as self.NAME or tensors['NAME'])"
    other = "reference" if impl == "chunked" else "chunked"
    raise UserError(
        f"{title(plan.head)}: {difference} with impl={impl!r}; mend the layer, or use "
        f"impl={other!r} (--head-loss {other})"
    )


@contextmanager
def _kept(plan: Any) -> Iterator[KeptState]:
    """Restore random numbers and what the layer holds; refuse other random numbers than torch's."""
    head: Any = plan.head
    trying = _trying.set(True)
    try:
        with KeptState(head) as state, kept_random_numbers(plan.features) as drawn:
            yield state
    finally:
        _trying.reset(trying)
    if drawn:
        raise UserError(f"{title(head)}: a loss draws {drawn[-1]} random numbers; {REMEDY}")


def _copies(head: Any, moved: bool) -> dict[str, Tensor]:
    """Return wide copies of parameters and buffers; those of parameters moved from 0 and 1."""
    copies: dict[int, Tensor] = {}
    for tensor in (*head.parameters(), *head.buffers()):
        copy = tensor.detach()
        if copy.is_floating_point():
            copy = copy.to(torch.promote_types(copy.dtype, torch.float32))
        changes = moved and copy.is_floating_point() and isinstance(tensor, nn.Parameter)
        copy = moved_numbers(copy) if changes else copy.clone()
        copy.requires_grad_(tensor.requires_grad)
        copies[id(tensor)] = copy
    named = [*head.named_parameters(remove_duplicate=False),
             *head.named_buffers(remove_duplicate=False)]  # fmt: skip
    return {name: copies[id(tensor)] for name, tensor in named}
