"""Let no trainer bypass the output layer: answer TRL's, and refuse readers of its matrix.

Every main trainer of TRL replaces `model.forward` by one that multiplies features with the matrix
of `get_output_embeddings()`. It would train any layer as a plain softmax. The model recognises the
replacement, keeps its settings, and answers the calls itself.
"""

from __future__ import annotations

import inspect
import sys
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within

# They look for the module to tie, spare or shard it, and never multiply with its matrix.
LOOKING = {"accelerate", "peft", "torch", "transformers"}
IGNORED = -100  # label of tokens without a loss, in transformers and TRL
Batch = tuple[Tensor, Tensor, Any]  # features [B, T, F], target [B, T], num_items_in_batch or None
METRICS = {"log_probs", "entropy", "is_top1"}  # what SFT asks for; its entropy has no gradient


class NoMatrix(nn.Module):
    """Take the place of `lm_head` for code that would multiply with its matrix."""

    def __init__(self, kind: str) -> None:
        super().__init__()
        self.kind = kind

    def __getattr__(self, name: str) -> Any:
        if name in ("weight", "bias", "in_features", "out_features"):
            self.forward()  # an AttributeError would be swallowed by getattr(…, None)
        return super().__getattr__(name)

    def forward(self, *args: Any, **kwargs: Any) -> Tensor:
        """Refuse the call."""
        raise RuntimeError(
            "this trainer reads the output layer as a matrix, and would train "
            f"{self.kind} as a plain softmax. Use the model's own loss (labels=…), or "
            "replace_head(model, 'softmax')"
        )


def seen_by_caller(head: nn.Module, kind: str) -> nn.Module:
    """Return the head to libraries that only look at it, and `NoMatrix` to all other code.

    The code in question called the caller of this function.
    """
    package = sys._getframe(2).f_globals.get("__name__", "").partition(".")[0]
    return head if package in LOOKING else NoMatrix(kind)


def check_modules(head: Any, kinds: list[type]) -> None:
    """Refuse a head whose modules were exchanged, e.g. by LoRA, since its loss reads parameters."""
    if hasattr(head, "modules_to_save"):  # PEFT's wrapper around whole copies
        for copied in head.modules_to_save.values():
            check_modules(copied, kinds)
        return
    for (name, module), kind in zip(head.named_modules(prefix="head"), kinds, strict=False):
        if not isinstance(module, kind):
            found = f"{type(module).__module__}.{type(module).__name__}"
            raise UserError(
                f"{name} is a {found} now, which the loss does not see; leave the head out "
                r'of it (exclude_modules=r"head\..*"), or train it whole: modules_to_save=["head"]'
                " without ensure_weight_tying"
            )


# -- TRL --------------------------------------------------------------------------------------


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
        raise UserError(
            f"this version of TRL is unknown: its forward has no {', '.join(sorted(missing))}; "
            "install trl 1.16"
        )
    if held["cast_lm_head_to_fp32"]:
        raise UserError("cast_lm_head_to_fp32: log-probabilities are float32 already; leave it out")
    return FusedCall(held["temperature"], tuple(held["outputs"]))


def nll_per_item(head: Any, batch: Batch) -> Tensor:
    """Return the summed loss of a batch, divided by the number of its labels or of its items.

    Features of ignored tokens are dropped before the head.
    """
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
        found = token_statistics(head, flat, flat_target, call)
    full = {n: _in_place(found[n], mask) for n in {"log_probs", *call.outputs}}
    count = mask.sum().clamp(min=1) if items is None else items
    return FusedCausalLMOutput(loss=-full["log_probs"].sum() / count, label_mask=mask, **full)


def _in_place(values: Tensor, mask: Tensor) -> Tensor:
    """Return the values [n] where the mask is True, and zeros elsewhere."""
    return values.new_zeros(mask.shape).masked_scatter(mask, values)


def token_statistics(
    head: Any, features: Tensor, target: Tensor, call: FusedCall
) -> dict[str, Tensor]:
    """Return numbers [n] of each token under softmax(scores / T); chunks are computed twice.

    Scores are logits, or log-probabilities where there are none: what a sampler divides by T, so a
    temperature tempers the mixture. Log-probabilities and entropy have gradients.
    """

    def chunk(features: Tensor, target: Tensor) -> tuple[Tensor, ...]:
        scores = head(features, scores=True) / call.temperature
        log_p = scores.log_softmax(-1)
        found = {"log_probs": log_p.gather(-1, target[:, None]).squeeze(-1)}
        if "entropy" in call.outputs:
            p = log_p.exp()
            found["entropy"] = -(p * log_p.masked_fill(p == 0, 0)).sum(-1)
        with torch.no_grad():
            if "log_sum_sq_probs" in call.outputs:
                found["log_sum_sq_probs"] = (2 * log_p).logsumexp(-1)
            if "mean_logits" in call.outputs:
                found["mean_logits"] = scores.mean(-1)
            if "is_top1" in call.outputs:
                found["is_top1"] = scores.argmax(-1) == target
        names[:] = found
        return tuple(found.values())

    names: list[str] = []
    width = max(head.floats_per_token(), 4 * head.num_classes)
    size = tokens_within(features, width, None)
    parts = [
        checkpoint(chunk, features[a:b], target[a:b], use_reentrant=False)
        for a, b in chunk_ranges(0, len(target), size)
    ]
    return dict(zip(names, map(torch.cat, zip(*parts, strict=True)), strict=True))
