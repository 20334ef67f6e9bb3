"""Structures of one's own, that keep the contract of the losses or break it."""

import random

import numpy
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import parametrizations, parametrize

from highrank_plugins.heads import Head, Mixtape, MixtureOfSoftmaxes, Softmax
from highrank_plugins.heads.pointwise import GeneralizedSigSoftmax
from tests.losses.own_functions import (
    CLASSES,
    SIZE,
    Clipped,
    NoisyClipped,
    calling,
    define,
    parameter,
)  # fmt: skip


class Plain(Head):
    """Have the logits W read(g) + b."""

    def __init__(self, *sizes, **options):
        super().__init__(*(sizes or (CLASSES, SIZE)), **options)
        nn.init.normal_(self.weight)

    def read(self, x):
        return x

    def chunk_logits(self, x, tensors, random_state):
        return linear(self.read(x), tensors["weight"], tensors["bias"])


def reading(read, parts=None, **members):
    return define(Plain, parts, read=read, **members)


def logits(change, parts=None, **members):
    """Return a class whose logits are `change` of self and those of Plain."""
    return calling("chunk_logits", change, Plain, parts=parts, **members)


def made(cls, **options):
    def build():
        head = cls(CLASSES, SIZE, **options)
        for p in head.parameters():
            nn.init.normal_(p)
        return head

    return build


def wrapped(change, cls=MixtureOfSoftmaxes, **options):
    """Return a function that builds a layer of ours and changes it."""

    def build():
        head = made(cls, **({"components": 3} if cls is MixtureOfSoftmaxes else {}) | options)()
        change(head)
        return head

    return build


class Doubled(nn.Module):
    def forward(self, x):
        return 2 * x


def two_lists(self, features, tensors, random_state):
    found = [linear(m(features).tanh(), self.weight, self.bias) for m in self.maps]
    return (found[0].log_softmax(-1).exp() + found[1].log_softmax(-1).exp()).div(2).log()


def growing(self, z, *_):
    if len(self.ones) < len(z):
        self.ones = z.new_ones(len(z))
    return z * self.ones[: len(z), None]


def with_own_method(head):
    head.contexts = lambda *inputs: MixtureOfSoftmaxes.contexts(head, *inputs).sin()


class StaleLoRA(Plain):
    """A list keeps the parameter that no chunk replaces; B = 0 hides it."""

    def __init__(self):
        super().__init__()
        self.A, self.B = nn.Parameter(torch.randn(4, SIZE)), nn.Parameter(torch.zeros(CLASSES, 4))
        self.stale = [self.A]

    def chunk_logits(self, x, tensors, random_state):
        return super().chunk_logits(x, tensors, random_state) + x @ self.stale[0].t() @ self.B.t()


# contexts read the vocabulary matrix, whose gradient a fused loss takes from its products
ContextsFromMatrix = calling(
    "contexts",
    lambda self, found, x, tensors, _: found + tensors["weight"].mean(0) * self.weight.std(),
    MixtureOfSoftmaxes,
)
DroppedFeatures = reading(lambda self, x: self.drop(x), {"drop": lambda: nn.Dropout(0.5)})
ReadsOwnMatrix = define(
    Plain, {"proj": lambda: nn.Linear(SIZE, SIZE), "t": parameter},
    chunk_logits=lambda self, x, *_: linear(self.proj(x) * self.t, self.weight, self.bias),
)  # fmt: skip


class Factors(Softmax):
    """Make the matrix in `tensors`, of parameters with other shapes."""

    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.weight = nn.Parameter(torch.randn(CLASSES, 2))
        self.right = nn.Parameter(torch.randn(2, SIZE))

    def tensors(self):
        named = super().tensors()
        return named | {"weight": named["weight"] @ named["right"]}


COMPONENTS = {"components": 3}
GATES = {"components": 4, "gate_dim": 3}
RIGHT_STRUCTURES = [
    made(Factors),
    made(ReadsOwnMatrix), made(DroppedFeatures), made(ContextsFromMatrix, **COMPONENTS),
    made(define(Head, {"maps": lambda: nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(2))},
                chunk_log_probs=two_lists)),
    made(calling("contexts", lambda self, h, *_: h.sin(), MixtureOfSoftmaxes), **COMPONENTS),
    made(calling("log_prior", lambda self, p, *_: (self.sharp * p).log_softmax(-1),
                 MixtureOfSoftmaxes, parts={"sharp": parameter})),
    made(calling("chunk_logits", lambda self, z, *_: z / 3, Softmax)),
    made(calling("forward", lambda self, log_probs, *_: log_probs, Softmax)),
    made(calling("class_gate_logits", lambda self, logits, *_: 2 * logits, Mixtape), **GATES),
    made(calling("_mean", lambda self, z, *_: 1.5 * z, Mixtape), **GATES),
    made(reading(lambda self, x: self.lstm(x.unsqueeze(1))[0].squeeze(1),
                 {"lstm": lambda: nn.LSTM(SIZE, SIZE, batch_first=True)})),
    # in a ball: NaN where a feature has a norm of 1 or more
    reading(lambda self, x: x / (1 - x.norm(dim=-1, keepdim=True)).sqrt(),
            place=lambda self, x: 0.98 * x / x.norm(dim=-1, keepdim=True)),
    reading(lambda self, x: x.detach()),
    logits(growing, {"ones": lambda: torch.ones(0)}),
    logits(lambda self, z, *_: z * self.k, {"k": lambda: torch.linspace(0.5, 2, CLASSES)}),
    wrapped(lambda head: parametrize.register_parametrization(head, "weight", Doubled())),
    wrapped(lambda head: parametrize.register_parametrization(head.latent, "weight", Doubled())),
    wrapped(lambda head: parametrize.register_parametrization(head.pointwise, "c", Doubled()),
            Softmax, pointwise=GeneralizedSigSoftmax(learn=True)),
    wrapped(lambda head: parametrizations.weight_norm(head.latent)),
    wrapped(with_own_method),
]  # fmt: skip


# a cheaper loss that is another function than the log-probabilities
WrongLoss = calling("chunk_nll", lambda self, found, *_: (found[0] + 1, found[1]), Softmax)


def once_initialised(self, x):
    if not self.kept:
        self.kept.append(x.detach().mean(0))
    return x - self.kept[0]


def counts_in_buffer(self, x):
    self.seen += 1
    return x


def before(x):
    return torch.cat((torch.zeros_like(x[:1]), x[:-1]))


def asserts(self, x):
    raise AssertionError("features must be sorted")


def with_adapter(head):
    """Add what is 0 at the start, and does not learn."""
    inner = head.latent
    head.latent = calling("forward", lambda self, found, x: found + self.b, nn.Linear,
                          parts={"b": lambda: nn.Parameter(torch.zeros(()), requires_grad=False)},
                          )(inner.in_features, inner.out_features)  # fmt: skip


REFUSED_STRUCTURES = {
    "forward": (made(define(
        Softmax, forward=lambda self, x: Softmax.forward(self, 2 * x))), "not call forward"),
    "probabilities": (made(define(Head, chunk_log_probs=lambda self, x, tensors, _: linear(
        x, tensors["weight"], tensors["bias"]).softmax(-1))), "instead of 1"),
    "others": (reading(lambda self, x: x - x.mean(0)), "depends on the other tokens"),
    "buffer": (reading(counts_in_buffer, {"seen": lambda: torch.zeros(())}), "changes its seen"),
    "error": (reading(asserts), "AssertionError: features must be sorted$"),
    # hidden by the numbers at the start, or rare
    "stale list": (StaleLoRA, ""),
    "bias of 0": (define(
        Plain, forward=lambda self, x: linear(x, self.weight).log_softmax(-1)), "call forward"),
    "temperature of 1": (calling("chunk_log_probs", lambda self, p, *_: self.t * p, Plain,
                                 parts={"t": lambda: parameter(1.0)}), ""),
    "rare classes": (calling("chunk_nll", lambda self, found, x, target, *_: (
        torch.where(target >= 3, 2 * found[0], found[0]), found[1]), Plain), ""),
    "first call": (reading(once_initialised, {"kept": list}), ""),
    "Python's numbers": (reading(lambda self, x: x if random.random() < 0.9 else 2 * x), ""),
    "NumPy's numbers": (reading(lambda self, x: x + 0 * numpy.random.rand()), "NumPy's random"),
    "position": (reading(
        lambda self, x: self.drop(x + self.pos(torch.arange(len(x)))),
        {"pos": lambda: nn.Embedding(64, SIZE), "drop": lambda: nn.Dropout(0.1)}), ""),
    "token before": (reading(lambda self, x: x + before(x) + 0.1 * torch.randn_like(x)), ""),
    "more than eight": (reading(lambda self, x: x + x.mean(0) if len(x) > 8 else x), ""),
    "places and noise": (reading(
        lambda self, x: x + torch.arange(len(x))[:, None] + torch.randn_like(x)), ""),
    "adapter of 0": (wrapped(with_adapter), "never calls latent"),
    "hook on a part": (wrapped(lambda head: head.latent.register_forward_hook(
        lambda module, inputs, output: 2 * output)), ""),
    "backward hook": (wrapped(lambda head: head.register_full_backward_hook(
        lambda module, inputs, outputs: (10 * inputs[0],)), Softmax), ""),
    "clipped": (lambda: Softmax(CLASSES, SIZE, pointwise=Clipped()), ""),
    "noise and clipped": (made(Softmax, pointwise=NoisyClipped()), "norm of the gradient"),
    "call": (calling("__call__", lambda self, p, *_: (2 * p).log_softmax(-1), Plain), ""),
    "nll": (made(define(Softmax, nll=lambda self, x, target, **options: Softmax.nll(
        self, 2 * x, target, **options))), ""),
    "top_k": (define(Plain, top_k=lambda self, x, k=1: Plain.top_k(self, 2 * x, k)), ""),
}  # fmt: skip
