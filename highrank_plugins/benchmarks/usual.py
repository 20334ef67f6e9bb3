"""The usual code: mixtures written down as plain autograd, the way the papers state them.

It holds every logit of every component, several times. That is what people use today, and what the
losses of this package are measured against.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


def usual_nll(head: Any, features: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Σ loss of `head` on features [N, F], with fairseq's label smoothing.

    Raises:
        KeyError: a head for which no such code is written.
    """
    if type(head).__name__ == "Softmax" and head.pointwise.is_identity and not label_smoothing:
        return F.cross_entropy(F.linear(features, head.weight, head.bias), target, reduction="sum")
    log_probs = LOG_PROBS[type(head).__name__](head, features)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).sum()
    if not label_smoothing:
        return nll
    share = label_smoothing / (head.num_classes - 1)
    return (1 - label_smoothing - share) * nll - share * log_probs.sum()


def _softmax(head: Any, features: Tensor) -> Tensor:
    return head.pointwise(F.linear(features, head.weight, head.bias)).log_softmax(-1)


def _contexts(head: Any, features: Tensor) -> Tensor:
    contexts = head.context_scale * torch.tanh(head.latent(features))
    return contexts.view(-1, head.components, head.embed_dim)


def _moc(head: Any, features: Tensor) -> Tensor:
    prior = head.prior(features).softmax(-1)
    context = (prior.unsqueeze(-1) * _contexts(head, features)).sum(1)
    return head.pointwise(F.linear(context, head.weight, head.bias)).log_softmax(-1)


def _mos(head: Any, features: Tensor) -> Tensor:
    prior = head.prior(features).softmax(-1)
    logits = F.linear(_contexts(head, features), head.weight, head.bias)
    probs = head.pointwise(logits).softmax(-1)
    return (prior.unsqueeze(-1) * probs).sum(1).add(1e-8).log()


def _mixtape(head: Any, features: Tensor) -> Tensor:
    contexts = _contexts(head, features)
    if head.components == 1:  # no gates
        return head.pointwise(F.linear(contexts[:, 0], head.weight, head.bias)).log_softmax(-1)
    shared = head.gate_shared(features)
    hidden = torch.tanh(head.gate_hidden(features)).view(len(features), -1, head.gate_dim)
    own = torch.einsum("nkg,sg->nsk", hidden, head.gate_embed) + shared.unsqueeze(1)
    gates = _tree(own + head.gate_bias)
    logits = torch.einsum("nkd,sd->nsk", contexts, head.weight[: head.frequent])
    frequent = (gates * logits).sum(-1)
    mixed = (_tree(shared).unsqueeze(-1) * contexts).sum(1)
    rare = F.linear(mixed, head.weight[head.frequent :])
    logits = torch.cat((frequent, rare), -1)
    if head.bias is not None:
        logits = logits + head.bias
    return head.pointwise(logits).log_softmax(-1)


def _tree(gate_logits: Tensor) -> Tensor:
    """Probabilities [..., K] of the sigmoid tree over K − 1 gate logits, level by level."""
    probs = torch.ones_like(gate_logits[..., :1])
    while (nodes := probs.size(-1)) <= gate_logits.size(-1):
        left = torch.sigmoid(gate_logits[..., nodes - 1 : 2 * nodes - 1])
        probs = torch.stack((probs * left, probs * (1 - left)), -1).flatten(-2)
    return probs


LOG_PROBS = {
    "Softmax": _softmax,
    "MixtureOfContexts": _moc,
    "MixtureOfSoftmaxes": _mos,
    "Mixtape": _mixtape,
}
