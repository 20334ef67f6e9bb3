"""Structures of one's own, that keep the contract of the losses or break it."""

import random
from typing import ClassVar

import numpy
import torch
from torch import nn
from torch.nn.functional import linear
from torch.nn.utils import parametrizations, parametrize, prune, spectral_norm, weight_norm

from highrank_plugins.heads import Head, Mixtape, MixtureOfSoftmaxes, Softmax
from tests.losses.own_functions import CLASSES, SIZE, Clipped, NoisyClipped, parameter


class Plain(Head):
    """Have the logits W read(g) + b, and what `parts` makes: buffers where it is a tensor."""

    parts: ClassVar[dict] = {}

    def __init__(self, *sizes, **options):
        super().__init__(*(sizes or (CLASSES, SIZE)), **options)
        nn.init.normal_(self.weight)
        for name, make in self.parts.items():
            made = make()
            is_buffer = isinstance(made, torch.Tensor) and not isinstance(made, nn.Parameter)
            (self.register_buffer if is_buffer else self.__setattr__)(name, made)

    def read(self, x):
        return x

    def chunk_logits(self, x, tensors, random_state):
        return linear(self.read(x), tensors["weight"], tensors["bias"])


def structure(read=None, base=Plain, **members):
    """Return a class that reads features otherwise, or has other members."""
    return type("Own", (base,), ({} if read is None else {"read": read}) | members)


def calling(name, change, base=Plain):
    """Return a class whose method is that of its base, and then `change` of self and its result."""

    def method(self, *inputs):
        return change(self, getattr(base, name)(self, *inputs))

    return structure(base=base, **{name: method})


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


class LoRA(nn.Module):
    def __init__(self, base):
        super().__init__()
        self.base, self.weight, self.bias = base, base.weight, base.bias
        self.a = nn.Parameter(torch.randn(2, base.in_features))
        self.b = nn.Parameter(torch.randn(base.out_features, 2))

    def forward(self, x):
        return self.base(x) + x @ self.a.t() @ self.b.t()


class Adapter(nn.Linear):
    """Add what is 0 at the start, and does not learn."""

    def __init__(self, inner, outer):
        super().__init__(inner, outer)
        self.b = nn.Parameter(torch.zeros(outer), requires_grad=False)

    def forward(self, x):
        return super().forward(x) + self.b


# -- right ones -----------------------------------------------------------------------------------


class TwoLists(Head):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.maps = nn.ModuleList(nn.Linear(self.feature_dim, self.embed_dim) for _ in range(2))

    def chunk_log_probs(self, features, tensors, random_state):
        found = [linear(m(features).tanh(), self.weight, self.bias) for m in self.maps]
        return (found[0].log_softmax(-1).exp() + found[1].log_softmax(-1).exp()).div(2).log()


class OwnPrior(MixtureOfSoftmaxes):
    def __init__(self, *sizes, **options):
        super().__init__(*sizes, **options)
        self.sharp = parameter()

    def log_prior(self, features, tensors):
        return (self.sharp * super().log_prior(features, tensors)).log_softmax(-1)


class ContextsFromMatrix(MixtureOfSoftmaxes):
    """Contexts read the vocabulary matrix, whose gradient a fused loss takes from its products."""

    def contexts(self, features, tensors, random_state):
        found = super().contexts(features, tensors, random_state)
        return found + tensors["weight"].mean(0) * self.weight.std()


def experts(self, x):
    chosen = [int(i) for i in (x[:, 0] * 7).abs().long() % 32]
    return torch.stack([self.experts[i](row) for i, row in zip(chosen, x, strict=True)])


def growing(self, z):
    if len(self.ones) < len(z):
        self.ones = z.new_ones(len(z))
    return z * self.ones[: len(z), None]


def kept(self, z):
    self.last = z
    return z


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


def unread_tuple():
    head = StaleLoRA()
    head.stale = head.A, head.B  # that nobody reads
    head.chunk_logits = lambda x, tensors, state: linear(x, head.weight + head.B @ head.A)
    return head


DroppedFeatures = structure(lambda self, x: self.drop(x), parts={"drop": lambda: nn.Dropout(0.5)})
ReadsOwnMatrix = structure(
    parts={"proj": lambda: nn.Linear(SIZE, SIZE), "t": parameter},
    chunk_logits=lambda self, x, *_: linear(self.proj(x) * self.t, self.weight, self.bias),
)
InABall = structure(  # NaN where a feature has a norm of 1 or more
    lambda self, x: x / (1 - x.norm(dim=-1, keepdim=True)).sqrt(),
    place=lambda self, x: 0.98 * x / x.norm(dim=-1, keepdim=True),
)
COMPONENTS = {"components": 3}
GATES = {"components": 4, "gate_dim": 3}
RIGHT_STRUCTURES = [
    made(ReadsOwnMatrix), made(DroppedFeatures), made(TwoLists),
    made(calling("contexts", lambda self, h: h.sin(), MixtureOfSoftmaxes), **COMPONENTS),
    made(OwnPrior), made(ContextsFromMatrix),
    made(calling("chunk_logits", lambda self, z: z / 3, Softmax)),
    made(calling("forward", lambda self, log_probs: log_probs, Softmax)),
    made(structure(lambda self, x: self.lstm(x.unsqueeze(1))[0].squeeze(1),
                   parts={"lstm": lambda: nn.LSTM(SIZE, SIZE, batch_first=True)})),
    made(calling("class_gate_logits", lambda self, logits: 2 * logits, Mixtape), **GATES),
    made(calling("_mean", lambda self, z: 1.5 * z, Mixtape), **GATES),
    structure(experts, parts={
        "experts": lambda: nn.ModuleList(nn.Linear(SIZE, SIZE) for _ in range(32))}),
    InABall, unread_tuple,
    calling("chunk_logits", growing, structure(parts={"ones": lambda: torch.ones(0)})),
    calling("chunk_logits", lambda self, z: z * self.k,
            structure(parts={"k": lambda: torch.linspace(0.5, 2, CLASSES)})),
    structure(lambda self, x: x.detach()), calling("chunk_logits", kept),
    wrapped(lambda head: parametrize.register_parametrization(head, "weight", Doubled())),
    wrapped(lambda head: parametrize.register_parametrization(head.latent, "weight", Doubled())),
    wrapped(lambda head: parametrizations.weight_norm(head.latent)),
    wrapped(with_own_method),
]  # fmt: skip


# -- wrong ones -----------------------------------------------------------------------------------


class TemperatureAfter(Plain):
    """The temperature is 1 at the start."""

    parts: ClassVar = {"t": lambda: nn.Parameter(torch.ones(()))}

    def chunk_log_probs(self, x, tensors, random_state):
        return self.t * super().chunk_log_probs(x, tensors, random_state)


class RareClasses(Plain):
    def chunk_nll(self, x, target, tensors, random_state, smooth):
        nll, rest = super().chunk_nll(x, target, tensors, random_state, smooth)
        return torch.where(target >= 3, 2 * nll, nll), rest


class WrongLoss(Softmax):
    """A cheaper loss that is another function than the log-probabilities."""

    def chunk_nll(self, features, target, tensors, random_state, smooth):
        nll, smooth_sum = super().chunk_nll(features, target, tensors, random_state, smooth)
        return nll + 1, smooth_sum


class Call(Plain):
    def __call__(self, x):
        return (2 * super().__call__(x)).log_softmax(-1)


class OwnNll(Softmax):
    def nll(self, features, target, **options):
        return super().nll(2 * features, target, **options)


class OwnTopK(Plain):
    def top_k(self, features, k=1):
        return super().top_k(2 * features, k)


def once_initialised(self, x):
    if not self.kept:
        self.kept.append(x.detach().mean(0))
    return x - self.kept[0]


def running_mean(self, x):
    self.mean = 0.9 * self.mean + 0.1 * x.detach().mean(0)
    return x


def by_a_flag(self, x):
    if not self.done:
        self.mean.copy_(x.detach().mean(0))
        self.done = True
    return x - self.mean


def counts(self, x):
    self.seen["calls"] += 1
    return x


def counts_in_buffer(self, x):
    self.seen += 1
    return x


def before(x, steps):
    return torch.cat((torch.zeros_like(x[:steps]), x[:-steps]))


def asserts(self, x):
    raise AssertionError("features must be sorted")


def with_hook(head):
    head.register_forward_hook(lambda module, inputs, output: output - 0.3)


def with_adapter(head):
    head.latent = Adapter(SIZE, 3 * SIZE)


REFUSED_STRUCTURES = {
    "forward": (made(structure(
        base=Softmax, forward=lambda self, x: Softmax.forward(self, 2 * x))), "not call forward"),
    "log_probs": (made(calling("log_probs", lambda self, p: p * 1.0 + 0.1, Softmax)), "stead of 1"),
    "probabilities": (made(structure(base=Head, chunk_log_probs=lambda self, x, tensors, _: linear(
        x, tensors["weight"], tensors["bias"]).softmax(-1))), "instead of 1"),
    "others": (structure(lambda self, x: x - x.mean(0)), "depends on the other tokens"),
    "number of tokens": (structure(lambda self, x: x * len(x)), "depends on the other tokens"),
    "buffer": (structure(counts_in_buffer, parts={"seen": lambda: torch.zeros(())}),
               "changes its seen"),
    "LoRA": (wrapped(lambda head: setattr(head, "latent", LoRA(head.latent))), "never calls laten"),
    "sequence": (wrapped(lambda head: setattr(head, "latent", nn.Sequential(head.latent))),
                 "'latent.weight'"),
    "hook": (wrapped(with_hook), "instead of 1"),
    "weight_norm": (wrapped(lambda head: weight_norm(head.latent)), "latent.weight"),
    "spectral_norm": (wrapped(lambda head: spectral_norm(head.latent)), "latent.weight"),
    "prune": (wrapped(lambda head: prune.random_unstructured(head.latent, "weight", 0.5)),
              "latent.weight"),
    "error": (structure(asserts), "AssertionError: features must be sorted$"),
    # hidden by the numbers at the start, or rare
    "stale list": (StaleLoRA, ""),
    "bias of 0": (structure(
        forward=lambda self, x: linear(x, self.weight).log_softmax(-1)), "call forward"),
    "temperature of 1": (TemperatureAfter, ""),
    "rare classes": (RareClasses, ""),
    "first call": (structure(once_initialised, parts={"kept": list}), ""),
    "flag": (structure(by_a_flag, done=False, parts={"mean": lambda: torch.zeros(SIZE)}), ""),
    "Python's numbers": (structure(lambda self, x: x if random.random() < 0.9 else 2 * x), ""),
    "NumPy's numbers": (structure(lambda self, x: x + 0 * numpy.random.rand()), "NumPy's random"),
    "position": (structure(
        lambda self, x: self.drop(x + self.pos(torch.arange(len(x)))),
        parts={"pos": lambda: nn.Embedding(64, SIZE), "drop": lambda: nn.Dropout(0.1)}), ""),
    "token before": (structure(lambda self, x: x + before(x, 1) + 0.1 * torch.randn_like(x)), ""),
    "five tokens ago": (structure(lambda self, x: x + before(x, 5)), ""),
    "blocks of eight": (structure(lambda self, x: x + (torch.arange(len(x)) // 8)[:, None]), ""),
    "more than eight": (structure(lambda self, x: x + x.mean(0) if len(x) > 8 else x), ""),
    "rarely": (structure(lambda self, x: x + x.mean(0) if x.abs().max() > 2 else x), ""),
    "places and noise": (structure(
        lambda self, x: x + torch.arange(len(x))[:, None] + torch.randn_like(x)), ""),
    "adapter of 0": (wrapped(with_adapter), "never calls latent"),
    "hook on a part": (wrapped(lambda head: head.latent.register_forward_hook(
        lambda module, inputs, output: 2 * output)), ""),
    "backward hook": (wrapped(lambda head: head.register_full_backward_hook(
        lambda module, inputs, outputs: (10 * inputs[0],)), Softmax), ""),
    "statistics": (structure(running_mean, mean=0.0), ""),
    "counter": (structure(counts, parts={"seen": lambda: {"calls": 0}}), ""),
    "clipped": (lambda: Softmax(CLASSES, SIZE, pointwise=Clipped()), ""),
    "clipped mixture": (made(MixtureOfSoftmaxes, components=3, pointwise=Clipped()), ""),
    "noise and clipped": (made(Softmax, pointwise=NoisyClipped()), "norm of the gradient"),
    "call": (Call, ""), "nll": (made(OwnNll), ""), "top_k": (OwnTopK, ""),
}  # fmt: skip
