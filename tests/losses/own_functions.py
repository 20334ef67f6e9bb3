"""Pointwise functions of one's own, that keep the contract of the losses or break it."""

import torch
from torch import nn
from torch.nn.functional import softplus

from highrank_plugins.heads.pointwise import (
    PLIF,
    GeneralizedSigSoftmax,
    Identity,
    MultiMax,
    Pointwise,
    SigmoidCap,
    SigSoftmax,
    Softcap,
)

CLASSES, SIZE, TOKENS = 11, 6, 7
TARGET = torch.tensor([0, 3, 10, 7, 7, 1, 2])
IMPLEMENTATIONS = ("reference", "chunked", "fused", "cpp", "auto")


def parameter(value=1.3):
    return nn.Parameter(torch.tensor(value))


class ReadsSelf(Pointwise):
    def __init__(self):
        super().__init__()
        self.w = parameter()

    def apply_to(self, z, tensors):
        return z * self.w


class ReadsTensors(ReadsSelf):
    def apply_to(self, z, tensors):
        return z * tensors["w"]


class ReadsBoth(ReadsSelf):
    def apply_to(self, z, tensors):
        return z * self.w + tensors["w"] * z.sin()


class ReadsThroughHelper(ReadsSelf):
    def apply_to(self, z, tensors):
        return self.helper(z)

    def helper(self, z):
        return z * softplus(self.w)


class PreparesOther(ReadsSelf):
    """`tensors` has the name of a parameter for another value."""

    def tensors(self):
        return {"w": 2 * self.w}

    def apply_to(self, z, tensors):
        return z * tensors["w"] + self.w * z.cos()


class Network(Pointwise):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))

    def apply_to(self, z, tensors):
        return z + self.net(z.unsqueeze(-1)).squeeze(-1)


class Buffered(ReadsSelf):
    def __init__(self):
        super().__init__()
        self.register_buffer("scale", torch.tensor(0.7))

    def apply_to(self, z, tensors):
        return self.scale * z * self.w


class PerClass(Pointwise):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.rand(CLASSES) + 0.5)

    def apply_to(self, z, tensors):
        return z * self.w


class Tied(Pointwise):
    def __init__(self):
        super().__init__()
        self.a = self.b = parameter()

    def apply_to(self, z, tensors):
        return z * self.a + tensors["b"] * z.sin()


class Dropped(ReadsSelf):
    def apply_to(self, z, tensors):
        return nn.functional.dropout(z, 0.3) * self.w


class InPlace(ReadsSelf):
    def apply_to(self, z, tensors):
        return z.add_(self.w * z.sin())


class InPlaceTanh(Pointwise):
    def apply_to(self, z, tensors):
        return z.tanh_()


class Column(Pointwise):
    def apply_to(self, z, tensors):
        return z.sum(-1, keepdim=True)


class Half(Pointwise):
    def apply_to(self, z, tensors):
        return z.half().tanh()


class Normed(Pointwise):
    def __init__(self):
        super().__init__()
        self.norm = nn.BatchNorm1d(1, affine=False)

    def apply_to(self, z, tensors):
        return self.norm(z.reshape(-1, 1)).reshape(z.shape)


class AcrossClasses(Pointwise):
    def apply_to(self, z, tensors):
        return z - z.amax(-1, keepdim=True) + z.std(-1, keepdim=True)


class NotANumber(Pointwise):
    def apply_to(self, z, tensors):
        return (z - 100).log()


class Counts(Pointwise):
    calls = 0

    def apply_to(self, z, tensors):
        self.calls += 1
        return z * self.calls


class OwnGenerator(Pointwise):
    def __init__(self):
        super().__init__()
        self.generator = torch.Generator().manual_seed(1)

    def apply_to(self, z, tensors):
        return z * (1 + torch.rand((), generator=self.generator, dtype=z.dtype))


class WrongName(ReadsSelf):
    def apply_to(self, z, tensors):
        return z * tensors["weight"]


class NoParameter(Pointwise):
    def __init__(self):
        super().__init__()
        self.w = torch.ones((), dtype=torch.float64, requires_grad=True)

    def apply_to(self, z, tensors):
        return z * self.w


class Unread(ReadsSelf):
    def apply_to(self, z, tensors):
        return z.sin() + z


class ForwardOnly(GeneralizedSigSoftmax):
    def forward(self, z):
        return 2 * z


def subclass(base, **options):
    class Own(base):
        def apply_to(self, z, tensors):
            return super().apply_to(z, tensors) + 0.5 * z.sin()

    return Own(**options)


class SineMixin:
    def apply_to(self, z, tensors):
        return super().apply_to(z, tensors) + 0.5 * z.sin()


class MixedIn(SineMixin, SigSoftmax):
    pass


class NarrowCells(PLIF):
    @property
    def cell_width(self):
        return super().cell_width / 2


class SharedGenerator(GeneralizedSigSoftmax):
    """A class of our function that only adds a text keeps its kernels."""

    def extra_repr(self):
        return "own"


RIGHT_FUNCTIONS = [
    ReadsSelf, ReadsTensors, ReadsBoth, ReadsThroughHelper, PreparesOther, Network, Buffered, Tied,
    Dropped, Unread, MixedIn, SharedGenerator,
    *(lambda base=base: subclass(base) for base in (
        Identity, GeneralizedSigSoftmax, SigSoftmax, Softcap, SigmoidCap, MultiMax)),
    lambda: subclass(PLIF, knots=40),
    lambda: NarrowCells(knots=40),
    lambda: subclass(GeneralizedSigSoftmax, learn=True),
]  # fmt: skip
REFUSED_FUNCTIONS = {
    InPlace: "in place", InPlaceTanh: "in place", Column: "same shape and dtype",
    Half: "same shape and dtype", Normed: "elementwise", AcrossClasses: "elementwise",
    NotANumber: "add up to nan", Counts: "keep no state",
    OwnGenerator: "default generator", WrongName: "'weight'",
    NoParameter: "no parameter of the layer",
    ForwardOnly: "which the loss calls",
}  # fmt: skip
