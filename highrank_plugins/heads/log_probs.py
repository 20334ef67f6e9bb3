"""Compute log-probabilities chunk by chunk, from tensors that evaluation prepares once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from highrank_plugins.common.torch_state import autocast_dtype
from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.plan import Named, places
from highrank_plugins.own_layers.kept_state import PLAIN
from highrank_plugins.own_layers.ours import is_ours

FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)
_steps = [0]  # of all optimizers; fused ones count no changes of parameters


def _count_step(*_: Any) -> None:
    _steps[0] += 1


register_optimizer_step_post_hook(_count_step)


def flat_features(head: Any, features: Tensor) -> Tensor:
    """Return features [N, F]; refuse those of another size, not floating, or of another dtype.

    Autocast allows any. Parameters of pointwise functions may have another dtype.
    """
    if features.shape[-1:] != (head.feature_dim,):
        raise ValueError(
            f"features: expected size {head.feature_dim} (feature_dim) in the last dimension, got "
            f"shape {tuple(features.shape)}"
        )
    if features.dtype not in FLOATS:
        known = ", ".join(str(dtype) for dtype in FLOATS)
        found = f"{type(features).__name__} of {features.dtype}"
        raise ValueError(f"features: expected a tensor of one of {known}, got {found}")
    for name, parameter in () if autocast_dtype(features) else head.named_parameters():
        if parameter.dtype != features.dtype and not name.startswith("pointwise."):
            raise ValueError(
                f"features are {features.dtype}, the parameter {name} is {parameter.dtype}: "
                "convert one of them, or run under torch.autocast"
            )
    return features.reshape(-1, head.feature_dim)


def log_probs_of_chunks(head: Any, features: Tensor) -> Iterator[Tensor]:
    """Yield log P [n, M] chunk by chunk; the whole batch if a graph is needed."""
    flat = flat_features(head, features)
    random_state = head.sample_masks(features.shape[:-1], features)
    tensors = _prepared_tensors(head)
    tokens = size = flat.size(0)
    needs_graph = any(t.requires_grad for t in (features, *tensors.values()))
    if not (needs_graph and torch.is_grad_enabled()):
        size = tokens_within(flat, head.floats_per_token(), None, most=tokens)
    for start, stop in chunk_ranges(0, tokens, size):
        yield head.chunk_log_probs(flat[start:stop], tensors, random_state.rows(start, stop))


def _prepared_tensors(head: Any) -> Named:
    """Return `tensors()`; evaluation without gradients keeps them until a number changes.

    Only writing through `parameter.data` goes unnoticed; call `eval()` after it.
    """
    if torch.compiler.is_compiling():
        return head.tensors()
    read = [*head.parameters(), *head.buffers()]
    # nor does a captured graph with a fused optimizer, nor inference mode
    uncounted = any(t.is_inference() or (t.is_leaf and t.grad is not None) for t in read)
    # the tensors of others may follow from anything
    if head.training or torch.is_grad_enabled() or uncounted or not is_ours(head):
        head._prepared = None
        return head.tensors()
    state: list[object] = [
        tuple(v for v in vars(m).values() if isinstance(v, PLAIN)) for m in head.modules()
    ]
    state += [*_steps, *((t.data_ptr(), t._version, t.dtype) for t in read)]
    if head._prepared is None or head._prepared[0] != state:
        # holds the memory that was read, so that no other tensor gets its address
        head._prepared = state, head.tensors(), [t.detach() for t in read]
    return head._prepared[1]


def widen(x: Tensor) -> Tensor:
    """Return x in at least float32, where log-sum-exps and mixtures are computed."""
    return x.float() if x.dtype in (torch.float16, torch.bfloat16) else x


def below_largest(values: Tensor) -> Tensor:
    """Return values [..., M] less the largest of each row, which changes no softmax.

    A log-sum-exp of 2e6 is rounded to 1/4 in float32. The probabilities exp(value − lse) in its
    gradient would then be wrong by up to 13 %, and no longer cancel where they should.
    """
    largest = values.detach().amax(-1, keepdim=True)
    # −∞, where all biases are −∞, must not be subtracted
    return values - largest.masked_fill(largest == -torch.inf, 0)


def at_target(target_N: Tensor, values: Tensor) -> Tensor:
    """Return the values of the targets [n, ...] of values [n, ..., M]."""
    return values.gather(-1, places(target_N, values)).squeeze(-1)


def mix(log_joint: Tensor) -> Tensor:
    """Return the log-sum-exp over components, dimension 1.

    Where a bias of −∞ rules a class out in every component, it is −∞ and has gradients of 0. Those
    of `torch.logsumexp` are NaN there.
    """
    least = torch.finfo(log_joint.dtype).min
    mixed = log_joint.clamp_min(least).logsumexp(1)
    return mixed.masked_fill(mixed == least, -torch.inf)
