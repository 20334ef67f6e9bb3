"""Serve other libraries: show them a layer, refuse to be bypassed, and answer trainers."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within

# They look for the module to tie, spare or shard it, and never multiply with its matrix.
LOOKING = {"accelerate", "peft", "torch", "transformers"}


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
        raise RuntimeError(
            "this trainer reads the output layer as a matrix, and would train "
            f"{self.kind} as a plain softmax. Use the model's own loss (labels=…), or "
            "replace_head(model, 'softmax')"
        )


def seen_by_caller(head: nn.Module, kind: str) -> nn.Module:
    """Return the head to libraries that look at it, else `NoMatrix`, by the caller's caller."""
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


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Compute without dropout and gradients; restore the mode of each module also after errors."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, mode in modes:
            module.training = mode


def token_statistics(
    head: Any, features: Tensor, target: Tensor, temperature: float, wanted: Collection[str]
) -> dict[str, Tensor]:
    """Return numbers [n] of each token under softmax(scores / T); chunks are computed twice.

    Scores are logits, or log-probabilities where there are none: what a sampler divides by T, so a
    temperature tempers the mixture. Log-probabilities and entropy have gradients.
    """

    def chunk(features: Tensor, target: Tensor) -> dict[str, Tensor]:
        scores = head(features, scores=True) / temperature
        log_p = scores.log_softmax(-1)
        found = {"log_probs": log_p.gather(-1, target[:, None]).squeeze(-1)}
        if "entropy" in wanted:
            p = log_p.exp()
            found["entropy"] = -(p * log_p.masked_fill(p == 0, 0)).sum(-1)
        with torch.no_grad():
            if "log_sum_sq_probs" in wanted:
                found["log_sum_sq_probs"] = (2 * log_p).logsumexp(-1)
            if "mean_logits" in wanted:
                found["mean_logits"] = scores.mean(-1)
            if "is_top1" in wanted:
                found["is_top1"] = scores.argmax(-1) == target
        return found

    width = max(head.floats_per_token(), 4 * head.num_classes)
    size = tokens_within(features, width, None)
    parts = [
        checkpoint(chunk, features[a:b], target[a:b], use_reentrant=False)
        for a, b in chunk_ranges(0, len(target), size)
    ]
    return {name: torch.cat([part[name] for part in parts]) for name in parts[0]}
