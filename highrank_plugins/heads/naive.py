"""Compute mixtures by plain autograd, as the papers state them: the naive code.

It holds every logit of every component, several times: the baseline of the benchmarks. A structure
without naive code here, such as a layer of your own, has its own log-probabilities.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional as F

from highrank_plugins.heads.base import Head
from highrank_plugins.heads.mixtape import Mixtape, by_class
from highrank_plugins.heads.mixtures import Mixture, MixtureOfContexts, MixtureOfSoftmaxes
from highrank_plugins.heads.softmax import Softmax


def naive_nll(head: Head, features: Tensor, target: Tensor, label_smoothing: float) -> Tensor:
    """Return Σ loss of `head` on features [N, F], with fairseq's label smoothing."""
    if is_plain_softmax(head) and not label_smoothing:
        return F.cross_entropy(F.linear(features, head.weight, head.bias), target, reduction="sum")
    log_probs_NM = naive_log_probs(head, features)
    nll = -log_probs_NM.gather(-1, target.unsqueeze(-1)).sum()
    if not label_smoothing:
        return nll
    share = label_smoothing / (head.num_classes - 1)
    return (1 - label_smoothing - share) * nll - share * log_probs_NM.sum()


def is_plain_softmax(head: Head) -> bool:
    """Whether log P is log_softmax(W g + b), as libraries compute it."""
    return head.linear_logits and head.pointwise.is_identity


def naive_log_probs(head: Head, features: Tensor) -> Tensor:
    """Return log P [N, M] of features [N, F]."""
    if isinstance(head, MixtureOfSoftmaxes):
        prior_NK1 = head.prior(features).softmax(-1).unsqueeze(-1)
        logits_NKM = F.linear(_contexts(head, features), head.weight, head.bias)
        return (prior_NK1 * head.pointwise(logits_NKM).softmax(-1)).sum(1).add(1e-8).log()
    if isinstance(head, Mixtape):
        logits_NM = _mixed_logits(head, features)
    elif isinstance(head, MixtureOfContexts):
        prior_NK1 = head.prior(features).softmax(-1).unsqueeze(-1)
        context_ND = (prior_NK1 * _contexts(head, features)).sum(1)
        logits_NM = F.linear(context_ND, head.weight, head.bias)
    elif isinstance(head, Softmax):
        logits_NM = F.linear(features, head.weight, head.bias)
    else:
        return head.log_probs(features)
    found: Tensor = head.pointwise(logits_NM).log_softmax(-1)
    return found


def _mixed_logits(head: Mixtape, features: Tensor) -> Tensor:
    contexts_NKD, tensors = _contexts(head, features), head.tensors()
    if head.components == 1:  # one component has no gates
        return F.linear(contexts_NKD[:, 0], head.weight, head.bias)
    shared_NJ = head.gate_shared(features)
    hidden_NJG = torch.tanh(head.gate_hidden(features)).view(len(features), -1, head.gate_dim)
    own_NSJ = torch.einsum("nkg,sg->nsk", hidden_NJG, head.gate_embed) + shared_NJ.unsqueeze(1)
    gates = _tree if head.gates == "tree" else _softmax_gates
    gates_NSK = gates(own_NSJ + head.gate_bias)
    logits_NSK = torch.einsum("nkd,sd->nsk", contexts_NKD, tensors["weight"][: head.frequent])
    frequent_NS = (gates_NSK * logits_NSK).sum(-1)
    mixed_ND = (gates(shared_NJ).unsqueeze(-1) * contexts_NKD).sum(1)
    rare_NR = F.linear(mixed_ND, tensors["weight"][head.frequent :])
    logits_NM = by_class(torch.cat((frequent_NS, rare_NR), -1), tensors)
    return logits_NM if head.bias is None else logits_NM + head.bias


def _contexts(head: Mixture, features: Tensor) -> Tensor:
    contexts = head.context_scale * torch.tanh(head.latent(features))
    return contexts.view(-1, head.components, head.embed_dim)


def _tree(gate_logits: Tensor) -> Tensor:
    """Return probabilities [..., K] of the sigmoid tree over K − 1 gate logits, level by level."""
    probs = torch.ones_like(gate_logits[..., :1])
    while (nodes := probs.size(-1)) <= gate_logits.size(-1):
        left = torch.sigmoid(gate_logits[..., nodes - 1 : 2 * nodes - 1])
        probs = torch.stack((probs * left, probs * (1 - left)), -1).flatten(-2)
    return probs


def _softmax_gates(gate_logits: Tensor) -> Tensor:
    """Return softmax(l_1, …, l_{K−1}, 0), [..., K]."""
    return torch.cat((gate_logits, torch.zeros_like(gate_logits[..., :1])), -1).softmax(-1)
