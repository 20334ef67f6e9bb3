"""Check the arguments of `Head.nll`."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.losses.choice import check_choice

REDUCTIONS = ("none", "sum", "mean")


def check_options(
    leading: torch.Size,
    weight: Tensor | None,
    label_smoothing: float,
    reduction: str,
    z_loss: float,
    memory: int | None,
) -> None:
    """Check the options of a loss whose result has the shape `leading`.

    Raises:
        ValueError: an option out of range, or a weight of another shape.
    """
    check_choice("reduction", reduction, REDUCTIONS)
    if not 0 <= label_smoothing < 1:
        raise ValueError(f"label_smoothing must lie in [0, 1), got {label_smoothing}")
    if not 0 <= z_loss < math.inf:
        raise ValueError(f"z_loss must be finite and at least 0, got {z_loss}")
    if memory is not None and memory <= 0:
        raise ValueError(
            f"memory: expected a number of bytes above 0, or None for the default, got {memory}"
        )
    if weight is not None and weight.shape != leading:
        raise ValueError(
            f"weight: expected the shape of target {tuple(leading)}, got {tuple(weight.shape)}"
        )


def check_whole(parameters: Iterable[tuple[str, Tensor]]) -> None:
    """Check that no parameter of a head is a shard.

    Raises:
        ValueError: one is a `DTensor`; FSDP gathers parameters for `forward` only.
    """
    distributed: Any = sys.modules.get("torch.distributed.tensor")
    if distributed is None:  # without torch.distributed there are no DTensors
        return
    for name, tensor in parameters:
        if isinstance(tensor, distributed.DTensor):
            raise ValueError(
                f"{name} of the head is sharded (DTensor). If fully_shard wraps the head itself, "
                "call torch.distributed.fsdp.register_fsdp_forward_method(head, 'nll') after it; "
                "a vocabulary split over devices is not supported"
            )


def check_devices(features: Tensor, target: Tensor, weight: Tensor | None) -> None:
    """Check that all tensors are on the device of the features.

    Raises:
        ValueError: one is not, or is no tensor. A kernel that reads another device's memory may end
            the process.
    """
    for name, tensor in (("target", target), ("weight", weight)):
        if tensor is not None and not isinstance(tensor, Tensor):
            raise ValueError(f"{name}: expected a tensor, got {type(tensor).__name__}")
        if tensor is not None and tensor.device != features.device:
            raise ValueError(
                f"{name}: expected a tensor on {features.device}, where features are, got one on "
                f"{tensor.device}; move it (.to(features.device))"
            )


def check_target(
    target: Tensor, leading: torch.Size, num_classes: int, ignore_index: int | None
) -> tuple[Tensor, Tensor | None]:
    """Return a flat target [N] and, with `ignore_index`, the mask [N] of ignored tokens.

    Ignored tokens get the largest class of the other tokens. Class 0 would not do: a bias of −∞
    may give it probability 0.

    Raises:
        ValueError: another shape or dtype, or a class outside [0, M). On a GPU the range is
            checked by an asynchronous assertion, which does not synchronise.
    """
    if target.shape != leading:
        raise ValueError(
            f"target: expected shape {tuple(leading)}, that of features without the last "
            f"dimension, got {tuple(target.shape)}"
        )
    if target.dtype != torch.int64:
        raise ValueError(f"target: expected dtype torch.int64, got {target.dtype}")
    flat = target.reshape(-1)
    ignored = None
    if ignore_index is not None:
        ignored = flat == ignore_index
        flat = flat.masked_fill(ignored, 0)
        if flat.numel():
            flat = torch.where(ignored, flat.amax(), flat)
    wrong = (flat < 0) | (flat >= num_classes)
    if wrong.device.type != "cpu":
        torch._assert_async(~wrong.any(), f"target out of range [0, {num_classes})")
    elif wrong.any():
        raise ValueError(
            f"target: class {int(flat[wrong][0])} is out of range [0, {num_classes}); "
            "to leave tokens out, set ignore_index"
        )
    return flat, ignored
