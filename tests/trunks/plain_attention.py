"""Relative attention as the paper writes it: one query, one key, one distance after another."""

import math

import torch


def relative_attention(q, k, v, tables, clip, mask=None, dropout=None):
    """Return contexts and weights of the last T of S positions, in torch for gradients."""
    queries, keys = q.size(-2), k.size(-2)
    a_k, a_v = tables
    contexts, all_weights = [], []
    for i in range(queries):
        rows = [clip + max(-clip, min(clip, j - (keys - queries + i))) for j in range(keys)]
        logits = torch.stack(
            [(q[..., i, :] * (k[..., j, :] + a_k[rows[j]])).sum(-1) for j in range(keys)], -1
        ) / math.sqrt(q.size(-1))
        if mask is not None:
            logits = logits + mask.expand(*logits.shape[:-1], queries, keys)[..., i, :]
        weights = logits.softmax(-1)
        all_weights.append(weights)
        if dropout is not None:
            weights = weights * dropout[..., i, :]
        context = sum(weights[..., j, None] * (v[..., j, :] + a_v[rows[j]]) for j in range(keys))
        contexts.append(context)
    return torch.stack(contexts, -2), torch.stack(all_weights, -2)
