"""Compute every structure by plain torch code, in the dtype of the parameters.

The softmax is in float32, as in fairseq. Our error in half precision is compared with this code's.
"""

import torch
from torch import Tensor
from torch.nn.functional import linear, logsigmoid


def contexts(p: dict[str, Tensor], g: Tensor) -> Tensor:
    h = linear(g, p["latent.weight"], p["latent.bias"]).tanh()
    return h.unflatten(-1, (-1, p["weight"].size(1)))


def softmax(p: dict[str, Tensor], g: Tensor) -> Tensor:
    return linear(g, p["weight"], p["bias"])


def moc(p: dict[str, Tensor], g: Tensor) -> Tensor:
    prior = linear(g, p["prior.weight"]).softmax(-1)
    return linear((prior.unsqueeze(-1) * contexts(p, g)).sum(-2), p["weight"], p["bias"])


def mixtape(p: dict[str, Tensor], g: Tensor) -> Tensor:
    """Compute four components, with gates of the whole vocabulary at once."""
    (frequent, gate_dim), classes = p["gate_embed"].shape, p["weight"].size(0)
    hidden = linear(g, p["gate_hidden.weight"]).tanh().unflatten(-1, (3, gate_dim))
    own = linear(hidden, p["gate_embed"]) + p["gate_bias"].t()
    own = torch.nn.functional.pad(own, (0, classes - frequent))
    gates = own + linear(g, p["gate_shared.weight"]).unsqueeze(-1)
    (l1, l2, l3), (r1, r2, r3) = (logsigmoid(s * gates).unbind(-2) for s in (1, -1))
    pi = torch.stack([l1 + l2, l1 + r2, r1 + l3, r1 + r3], -2).exp()
    return (pi * linear(contexts(p, g), p["weight"])).sum(-2) + p["bias"]


def mos(p: dict[str, Tensor], g: Tensor) -> Tensor:
    """Return log-probabilities, which another normalisation does not change."""
    prior = linear(g, p["prior.weight"]).float().log_softmax(-1)
    rows = linear(contexts(p, g), p["weight"], p["bias"]).float().log_softmax(-1)
    return (prior.unsqueeze(-1) + rows).logsumexp(-2)


LOGITS = {f.__name__: f for f in (softmax, moc, mos, mixtape)}


def log_probs(head: str, p: dict[str, Tensor], g: Tensor) -> Tensor:
    return LOGITS[head](p, g).float().log_softmax(-1)
