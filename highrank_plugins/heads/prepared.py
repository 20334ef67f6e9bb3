"""Compute log-probabilities chunk by chunk, from tensors that evaluation prepares once."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from highrank_plugins.losses.chunking import chunk_ranges, tokens_within
from highrank_plugins.losses.kept_state import PLAIN
from highrank_plugins.losses.own_layers import is_ours
from highrank_plugins.losses.plan import Named

if TYPE_CHECKING:
    from highrank_plugins.heads.base import Head


def log_probs_of_chunks(head: Head, features: Tensor) -> Iterator[Tensor]:
    """Yield log P [n, M] chunk by chunk; the whole batch if a graph is needed."""
    flat = head.flatten_features(features)
    random_state = head.sample_masks(features.shape[:-1], features)
    tensors = _prepared_tensors(head)
    tokens = size = flat.size(0)
    needs_graph = any(t.requires_grad for t in (features, *tensors.values()))
    if not (needs_graph and torch.is_grad_enabled()):
        size = tokens_within(flat, head.floats_per_token(), None, most=tokens)
    for start, stop in chunk_ranges(0, tokens, size):
        yield head.chunk_log_probs(flat[start:stop], tensors, random_state.rows(start, stop))


def _prepared_tensors(head: Head) -> Named:
    """Return `tensors()`; evaluation without gradients keeps them until a number changes.

    Only writing through `parameter.data` goes unnoticed; call `eval()` after it.
    """
    changes = head.training or torch.is_grad_enabled() or torch.compiler.is_compiling()
    if changes or not is_ours(head):  # the tensors of others may follow from anything
        return head.tensors()
    state: list[object] = [
        tuple(v for v in vars(m).values() if isinstance(v, PLAIN)) for m in head.modules()
    ]
    for p in (*head.parameters(), *head.buffers()):
        state.append((p.data_ptr(), 0 if p.is_inference() else p._version, p.dtype))
    if head._prepared is None or head._prepared[0] != state:
        head._prepared = state, head.tensors()
    return head._prepared[1]
