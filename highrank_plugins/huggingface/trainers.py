"""Let no trainer bypass the output layer: answer TRL's, and refuse readers of its matrix.

TRL's trainers replace `model.forward` by one that multiplies features with the matrix of the output
layer, as if it were a softmax. The model recognises it, keeps its settings, and answers itself.
"""

from __future__ import annotations

import inspect
from typing import Any, NamedTuple

import torch
from torch import Tensor

from highrank_plugins.common.user_error import UserError
from highrank_plugins.heads.libraries import token_statistics

IGNORED = -100  # label of tokens without a loss, in transformers and TRL
Batch = tuple[Tensor, Tensor, Any]  # features [B, T, F], target [B, T], num_items_in_batch or None
METRICS = {"log_probs", "entropy", "is_top1"}  # what SFT asks for; its entropy has no gradient


class FusedCall(NamedTuple):
    """Hold what a trainer of TRL asks for of each token, under softmax(scores / temperature)."""

    temperature: float
    outputs: tuple[str, ...]


def fused_call(value: Any) -> FusedCall | None:
    """Return the settings of TRL's replacement of `forward`; None for any other function."""
    function = getattr(value, "__func__", value)
    code = getattr(function, "__code__", None)
    named = () if code is None else code.co_varnames[: code.co_argcount + code.co_kwonlyargcount]
    if "fused_lm_head" not in named:
        return None
    held = inspect.getclosurevars(function).nonlocals
    if missing := {"temperature", "outputs", "cast_lm_head_to_fp32"} - held.keys():
        raise UserError("this version of TRL is unknown: its forward has no "
                        f"{', '.join(sorted(missing))}; install trl 1.16")  # fmt: skip
    if held["cast_lm_head_to_fp32"]:
        raise UserError("cast_lm_head_to_fp32: log-probabilities are float32 already; leave it out")
    return FusedCall(held["temperature"], tuple(held["outputs"]))


def nll_per_item(head: Any, batch: Batch) -> Tensor:
    """Return the summed loss of a batch, divided by the number of its labels or of its items."""
    features, target, items = batch
    mask = target != IGNORED
    total: Tensor = head(features[mask], target[mask], reduction="sum").loss
    return total / (mask.sum() if items is None else torch.as_tensor(items, device=total.device))


def answer(call: FusedCall, head: Any, batch: Batch) -> Any:
    """Return TRL's FusedCausalLMOutput, from the head's own probabilities of each target."""
    from trl.trainer.utils import FusedCausalLMOutput

    features, target, items = batch
    mask = target != IGNORED
    flat, flat_target = features[mask], target[mask]
    if call.temperature == 1 and "is_top1" in call.outputs and METRICS.issuperset(call.outputs):
        out = head(flat, flat_target, entropy="entropy" in call.outputs, accuracy=True)
        found = {"log_probs": -out.loss, "entropy": out.entropy, "is_top1": out.correct > 0}
    else:
        found = token_statistics(head, flat, flat_target, *call)
    names = {"log_probs", *call.outputs}
    full = {n: found[n].new_zeros(mask.shape).masked_scatter(mask, found[n]) for n in names}
    count = mask.sum().clamp(min=1) if items is None else items
    return FusedCausalLMOutput(loss=-full["log_probs"].sum() / count, label_mask=mask, **full)
