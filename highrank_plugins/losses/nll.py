"""Compute a loss: check the arguments, choose an implementation, and call it."""

from __future__ import annotations

import logging
import math
import sys
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils import parametrize

from highrank_plugins.common import provenance
from highrank_plugins.common.names import layer_name
from highrank_plugins.losses.kernels import triton
from highrank_plugins.losses.kernels.compiled import FAMILIES
from highrank_plugins.losses.kernels.cpp.passes import CppKernels, check_available
from highrank_plugins.losses.kernels.torch import Kernels
from highrank_plugins.losses.plan import AnyHead, LossOutput, LossPlan
from highrank_plugins.losses.runner import reference_nll, run
from highrank_plugins.losses.split import SplitKernels
from highrank_plugins.losses.weighted import Target, prepare
from highrank_plugins.own_layers.contract import checked_implementation
from highrank_plugins.own_layers.ours import check_matrix, is_ours

logger = logging.getLogger(__name__)

REDUCTIONS = ("none", "sum", "mean")
FUSED = ("fused", "cpp", "triton")  # for heads with a fused loss; they differ in their kernels
IMPLEMENTATIONS = ("reference", "chunked", *FUSED)
LEAST_SHARE = 1 / 16  # of ignored tokens; below it, to leave them out saves little
_logged: set[tuple[str, str]] = set()


def compute_nll(plan: LossPlan, leading: torch.Size) -> LossOutput:
    """Return `Head.nll` of flat features [N, F]; `leading` is the shape of target and result."""
    if torch.compiler.is_compiling():  # a loss with its own gradients must not be traced
        return torch.compiler.disable(compute_nll)(plan, leading)
    plan.own, plan.falls_back = not is_ours(plan.head), plan.impl == "auto"
    soft = prepare(plan, leading) if isinstance(plan.target, Target) else None
    check_arguments(plan, leading)
    if parametrize.is_parametrized(plan.head, "weight"):
        check_matrix(plan.head)
    chosen = implementation_for(plan)
    check_head(plan.head, own=plan.own, whole=plan.split is None)
    reduction = plan.reduction
    plan.reduction = "none" if reduction == "none" else "sum"
    plan.target, plan.ignored = flat_target(plan)
    plan.weight = None if plan.weight is None else plan.weight.detach().reshape(-1)
    if soft is not None:
        plan.take(soft)
    index = kept_rows(plan) if plan.ignored is not None and chosen != "reference" else None
    if plan.soft is not None and plan.ignored is not None and len(plan.ignored):
        rows = other_rows(plan.ignored)
        plan.soft = plan.soft.of_rows(rows if index is None else rows[index])
    if index is not None:
        plan.keep(index)
    if plan.own and plan.split is None:
        chosen = checked_implementation(plan.hard(), chosen, compute)
    if plan.head.training:
        provenance.ran[plan.head] = chosen
    out = compute(chosen, plan)
    if reduction == "none":
        return out.map(lambda t: _in_place(t, index, leading))
    return out if reduction == "sum" else _mean(plan, out)


def _in_place(values: Tensor, index: Tensor | None, leading: torch.Size) -> Tensor:
    """Return the values in the shape of the target, with 0 for tokens that were left out."""
    if index is not None:
        values = values.new_zeros(leading.numel()).index_copy(0, index, values)
    return values.view(leading)


def kept_rows(plan: LossPlan) -> Tensor | None:
    """Return the numbers of all tokens that are not ignored, or more; None keeps every token.

    Only a CPU is asked how many there are. Without its wait a GPU cannot say which blocks of tokens
    need noise.
    """
    ignored, most = plan.ignored, plan.kept_tokens
    assert ignored is not None
    kept = len(ignored) - ignored.sum()
    if ignored.device.type == "cpu":
        most = int(kept)
    elif plan.random_state.noise_sd:
        return None
    if most is None or most > (1 - LEAST_SHARE) * len(ignored):
        return None
    if ignored.device.type != "cpu":
        torch._assert_async(kept <= most, "kept_tokens: more tokens are not ignored")
    return ignored.argsort(stable=True)[:most]


def other_rows(ignored: Tensor) -> Tensor:
    """Return the numbers of rows, with another one in the place of each that is ignored."""
    numbers = torch.arange(len(ignored), device=ignored.device)
    return torch.where(ignored, ignored.int().argmin(), numbers)


def compute(impl: str, plan: LossPlan) -> LossOutput:
    if impl == "reference":
        return reference_nll(plan)
    if plan.split is not None:
        return run(plan, SplitKernels)
    return run(plan, kernels_of(impl, plan.features.device, plan.head))


def _mean(plan: LossPlan, total: LossOutput) -> LossOutput:
    """Return means over the tokens that are not ignored."""
    ones = total.nll.new_ones(len(plan.target))
    count = plan.blank(ones, 0, len(ones)).sum()
    weights = count
    if plan.weight is not None:
        weights = plan.blank(plan.weight.to(ones.dtype), 0, len(ones)).sum()
    means = total.map(lambda t: _ratio(t, count))
    return means._replace(loss=_ratio(total.loss, weights))


def _ratio(total: Tensor, count: Tensor) -> Tensor:
    """Return total / count; where count is 0, NaN without gradients, as torch's cross_entropy."""
    # a division by 0 would send an infinite gradient back, and infinity times 0 is NaN
    some = count != 0
    return torch.where(some, total / torch.where(some, count, 1), torch.nan)


# -- the arguments ---------------------------------------------------------------------------


def check_arguments(plan: LossPlan, leading: torch.Size) -> None:
    """Check the arguments of a loss whose result has the shape `leading`."""
    check_choice("reduction", plan.reduction, REDUCTIONS)
    if not 0 <= plan.label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {plan.label_smoothing}")
    plan.z_loss = float(plan.z_loss)
    if not 0 <= plan.z_loss < math.inf:
        raise ValueError(f"z_loss must be finite and at least 0, got {plan.z_loss}")
    if plan.memory is not None and not plan.memory > 0:
        raise ValueError(f"memory: expected bytes above 0, or None to choose, got {plan.memory}")
    weights = {} if plan.weight is None else {"weight": plan.weight}
    for name, tensor in {"target": plan.target, **weights}.items():
        if not isinstance(tensor, Tensor):
            raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if (tensor.shape, tensor.device) != (leading, plan.features.device):
            per_class = name == "weight" and tensor.shape == (plan.num_classes,)
            raise ValueError(
                f"{name}: expected shape {tuple(leading)} on {plan.features.device}, as features "
                f"without the last dimension, got {tuple(tensor.shape)} on {tensor.device}"
                + ("; a weight per class is weight[target]" if per_class else "")
            )
    if torch.is_grad_enabled() and plan.weight is not None and plan.weight.requires_grad:
        raise ValueError("weight: a constant of the loss, without a gradient; pass weight.detach()")
    if plan.target.dtype != torch.int64:
        raise ValueError(f"target: expected dtype torch.int64, got {plan.target.dtype}")


def check_head(head: AnyHead, own: bool, whole: bool) -> None:
    """Refuse shards, sizes that kernels would trust, and constants that no loss would train."""
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    sizes = {"weight": [head.num_classes, head.embed_dim], "bias": [head.num_classes]}
    for name, tensor in head.named_parameters() if whole and distributed else ():
        if isinstance(tensor, distributed.DTensor):
            raise ValueError(
                f"{name} of the head is sharded (DTensor). If fully_shard wraps the head itself, "
                "call head(features, target) instead of head.nll, which FSDP does not see; to "
                "split a vocabulary over devices, use VocabularyParallel"
            )
    for name, shape in sizes.items() if whole and not own else ():
        if (t := head._parameters.get(name)) is not None and [*t.shape] != shape:
            raise ValueError(f"{name}: expected shape {shape}, got {[*t.shape]}; build a new head")
    for part in () if own or not torch.is_grad_enabled() else (head, head.pointwise):
        for name in part.constants or ():
            if getattr(getattr(part, name), "requires_grad", False):
                constant = f"{name} of {layer_name(part)} is a constant, which no loss trains"
                raise ValueError(f"{constant}; set a number, or train a parameter of a subclass")


def flat_target(plan: LossPlan) -> tuple[Tensor, Tensor | None]:
    """Return a flat target [N] and, with `ignore_index`, the mask [N] of ignored tokens.

    Ignored tokens get the largest class of the other tokens. Class 0 would not do: a bias of −∞
    may give it probability 0.
    """
    flat, ignored, num_classes = plan.target.reshape(-1), None, plan.num_classes
    if plan.ignore_index is not None:
        ignored = flat == plan.ignore_index
        flat = flat.masked_fill(ignored, 0)
        if flat.numel():
            flat = torch.where(ignored, flat.amax(), flat)
    wrong = (flat < 0) | (flat >= num_classes)
    if wrong.device.type != "cpu":
        torch._assert_async(~wrong.any(), f"target out of range [0, {num_classes})")
    elif wrong.any():
        raise ValueError(
            f"target: class {int(flat[wrong][0])} is out of range [0, {num_classes}); "
            "to leave tokens out, set ignore_index (labels of Hugging Face: −100)"
        )
    return flat, ignored


# -- the implementation ----------------------------------------------------------------------


def implementation_for(plan: LossPlan) -> str:
    """Return the implementation that computes the loss of a head; the log names the choice once."""
    check_choice("impl", plan.impl, ("auto", *IMPLEMENTATIONS))
    chosen = plan.impl
    if chosen == "auto":
        chosen = _auto(plan.head, plan.features)
        message = "The loss of %s is computed by %r (--head-loss auto)."
        _log_once(logging.INFO, layer_name(plan.head), chosen, message)
    _check_fused(chosen, plan.head, plan.filter_gradients)
    return chosen


def check_implementation(
    impl: str, head: AnyHead, device: torch.device, filtered: bool = False
) -> None:
    """Check that an implementation can compute a head's loss, filtered or not, on a device."""
    _check_fused("chunked" if impl == "auto" and head.fused is None else impl, head, filtered)
    kernels_of(impl, device, head)


def implementation_here(impl: str, device: torch.device) -> str:
    """Return `impl`, or "auto" where it cannot run on this device; the log says why."""
    try:
        kernels_of(impl, device)
    except ValueError as error:
        message = f"loss: implementation 'auto' instead of %r on %s: {error}"
        _log_once(logging.WARNING, impl, device.type, message)
        return "auto"
    return "auto" if (impl, device.type) == ("triton", "cuda") else impl  # may fall back


def kernels_of(impl: str, device: torch.device, head: AnyHead = None) -> type[Kernels] | None:
    """Return the kernels of an implementation, or None; refuse a device, or a head if given."""
    if impl == "cpp":
        check_available(device)
        return CppKernels
    if impl == "triton":
        triton.check_available(device)
        return triton.kernels(head)
    return Kernels if impl == "fused" else None


def check_choice(name: str, value: str, known: tuple[str, ...]) -> None:
    if value not in known:
        raise ValueError(f"{name}: unknown {value!r}; known: {', '.join(known)}")


def _check_fused(impl: str, head: AnyHead, filtered: bool) -> None:
    if impl in FUSED and head.fused is None:
        raise ValueError(
            f"impl: {layer_name(head)} has no fused loss; use impl='chunked' (--head-loss chunked)"
        )
    if filtered and impl not in ("auto", *FUSED):
        raise ValueError(
            f"filter_gradients (--head-loss-filter): implementation {impl!r} computes every "
            f"gradient; use impl= (--head-loss) {' or '.join(FUSED)}"
        )


def _auto(head: AnyHead, features: Tensor) -> str:
    """Return compiled kernels where they are faster and run; float64's are slow on a CPU."""
    if head.fused is None:
        return "chunked"
    device, function = features.device, head.pointwise.kernel_function
    known = function is not None and function.family in FAMILIES
    for_cpu = "cpp" if known and features.dtype != torch.float64 else "fused"
    impl = {"cpu": for_cpu, "cuda": "triton"}.get(device.type, "fused")
    try:
        kernels_of(impl, device, head)
    except ValueError as error:
        message = "no compiled loss kernels on %s; losses take longer: %s"
        _log_once(logging.WARNING, device.type, str(error), message)
        return "fused"
    return impl


def _log_once(level: int, subject: str, detail: str, message: str) -> None:
    if (subject, detail) not in _logged:
        _logged.add((subject, detail))
        logger.log(level, message, subject, detail)
