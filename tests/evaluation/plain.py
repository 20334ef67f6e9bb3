"""Define a small language model with a carried state and a tied matrix, in torch.

Its gradients and dynamic evaluation follow in NumPy, from the equations.
"""

import numpy as np
import torch
from torch import Tensor

WORDS, WIDTH = 7, 4


def make_parameters(seed: int = 0) -> list[Tensor]:
    """Return embedding [M, D], which is also the output matrix, and bias [M], in float64."""
    generator = torch.Generator().manual_seed(seed)
    shapes = [(WORDS, WIDTH), (WORDS,)]
    return [
        torch.randn(shape, generator=generator, dtype=torch.float64).requires_grad_()
        for shape in shapes
    ]


def make_segments(lengths: list[int], seed: int = 1) -> list[tuple[Tensor, Tensor]]:
    """Return (words, next words), int64 [T] each, for each T of `lengths`."""
    generator = torch.Generator().manual_seed(seed)
    text = torch.randint(WORDS, (sum(lengths) + 1,), generator=generator)
    pairs = zip(text[:-1].split(lengths), text[1:].split(lengths), strict=True)
    return list(pairs)


def score_with(parameters: list[Tensor]):
    """Return the function that dynamic evaluation calls. The state is added to all features."""
    embedding, bias = parameters

    def score(segment, state):
        words, target = segment
        rows = embedding[words]
        features = rows if state is None else rows + state
        log_probs = (features @ embedding.t() + bias).log_softmax(-1)
        nll = -log_probs[torch.arange(len(words)), target].sum()
        after = 0.5 * rows.mean(0) + (0 if state is None else 0.5 * state)
        return nll, len(words), after.detach()

    return score


def plain_gradients(embedding, bias, words, target, state):
    """Compute mean nll, its gradients, and the state afterwards, all by hand."""
    features = embedding[words] + state
    logits = features @ embedding.T + bias
    probs = np.exp(logits - logits.max(1, keepdims=True))
    probs /= probs.sum(1, keepdims=True)
    rows = np.arange(len(words))
    nll = -np.log(probs[rows, target]).mean()
    delta = probs.copy()
    delta[rows, target] -= 1
    delta /= len(words)
    by_embedding = delta.T @ features
    for word, row in zip(words, delta @ embedding, strict=True):
        by_embedding[word] += row
    return nll, [by_embedding, delta.sum(0)], 0.5 * state + 0.5 * embedding[words].mean(0)


def plain_dynamic_evaluation(train, test, lr, eps, lamb, statistic, normalise):
    """Return (mean nll of each test segment, the parameters in the end)."""
    start = [p.detach().numpy().copy() for p in make_parameters()]
    squares, state = [np.zeros_like(p) for p in start], np.zeros(WIDTH)
    for words, target in train:
        _, gradients, state = plain_gradients(*start, words.numpy(), target.numpy(), state)
        squares = [s + g**2 for s, g in zip(squares, gradients, strict=True)]
    ms = [np.sqrt(s / (len(train) if statistic == "rms" else 1)) for s in squares]
    norm = sum(m.mean() for m in ms) / (len(ms) if normalise == "mean" else 1)
    rates = [np.minimum(m / norm, 1 / lamb) for m in ms]
    now, state, losses = [p.copy() for p in start], np.zeros(WIDTH), []
    for words, target in test:
        nll, gradients, state = plain_gradients(*now, words.numpy(), target.numpy(), state)
        losses.append(nll)
        for p, g, p0, m, r in zip(now, gradients, start, ms, rates, strict=True):
            p += lamb * r * (p0 - p) - lr * g / (m + eps)
    return losses, now
