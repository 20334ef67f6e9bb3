"""Trunks by the papers' equations: an LSTM in NumPy, and attention, one step after another."""

import math

import numpy as np
import torch


def sigmoid(x):
    return 1 / (1 + np.exp(-x))


def lstm(x, h, c, weights):
    """Return outputs [T, B, H] and the last h, c [B, H] of x [T, B, I]; weights: i f g o."""
    w_ih, w_hh, b_ih, b_hh = weights
    outputs = []
    for step in x:
        i, f, g, o = np.split(step @ w_ih.T + b_ih + h @ w_hh.T + b_hh, 4, axis=1)
        c = sigmoid(f) * c + sigmoid(i) * np.tanh(g)
        h = sigmoid(o) * np.tanh(c)
        outputs.append(h)
    return np.stack(outputs), h, c


def weights_of(layer, recurrent=None):
    """Return the arrays of a torch LSTM, with `recurrent` as its recurrent matrix."""
    found = [p.detach().numpy() for p in layer.parameters()]
    if recurrent is not None:
        found[1] = recurrent.detach().numpy()
    return found


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
