"""Pointwise functions of one's own, that keep the contract of the losses or break it."""

from typing import ClassVar

import torch
from torch import nn
from torch.nn.functional import dropout, softplus

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

CLASSES, SIZE, TOKENS = 30, 6, 37
TARGET = torch.arange(TOKENS) % CLASSES
IMPLEMENTATIONS = ("reference", "chunked", "fused", "cpp", "auto")


def parameter(value=1.3):
    return nn.Parameter(torch.tensor(value))


class WithParts(Pointwise):
    """Have the parameter w, and what `parts` makes: buffers where it is a tensor without graph."""

    parts: ClassVar[dict] = {"w": parameter}

    def __init__(self):
        super().__init__()
        for name, make in self.parts.items():
            made = make()
            if isinstance(made, torch.Tensor) and not made.requires_grad:
                self.register_buffer(name, made)
            else:
                setattr(self, name, made)


def own(apply, base=WithParts, **members):
    return type("Own", (base,), {"apply_to": apply, **members})


def named(**classes):
    for name, cls in classes.items():
        cls.__name__ = cls.__qualname__ = name
    return classes


ReadsSelf = own(lambda self, z, tensors: z * self.w)
ReadsBoth = own(lambda self, z, tensors: z * self.w + tensors["w"] * z.sin())
Dropped = own(lambda self, z, tensors: dropout(z, 0.3) * self.w)
DroppedInTraining = own(lambda self, z, tensors: dropout(z, 0.1, self.training), parts={})
PerClass = own(lambda self, z, tensors: z * self.w,
               parts={"w": lambda: nn.Parameter(torch.rand(CLASSES) + 0.5)})  # fmt: skip
Normed = own(lambda self, z, tensors: self.norm(z.reshape(-1, 1)).reshape(z.shape),
             parts={"norm": lambda: nn.BatchNorm1d(1, affine=False)})  # fmt: skip


class ClipBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


class Clipped(Pointwise):
    def apply_to(self, z, tensors):
        return ClipBackward.apply(z)


class Noisy(Pointwise):
    """Add normal numbers, which torch draws by 16: another number of tokens has others."""

    def apply_to(self, z, tensors):
        return z + 0.1 * torch.randn_like(z)


class NoisyClipped(Noisy):
    def apply_to(self, z, tensors):
        return ClipBackward.apply(super().apply_to(z, tensors))


class Tied(Pointwise):
    def __init__(self):
        super().__init__()
        self.a = self.b = parameter()

    def apply_to(self, z, tensors):
        return z * self.a + tensors["b"] * z.sin()


class Counts(Pointwise):
    calls = 0

    def apply_to(self, z, tensors):
        self.calls += 1
        return z * self.calls


class SineMixin:
    def apply_to(self, z, tensors):
        return super().apply_to(z, tensors) + 0.5 * z.sin()


def subclass(base):
    return type("Own", (SineMixin, base), {})


class NarrowCells(PLIF):
    @property
    def cell_width(self):
        return super().cell_width / 2


class SharedGenerator(GeneralizedSigSoftmax):
    """A class of our function that only adds a text keeps its kernels."""

    def extra_repr(self):
        return "own"


def network():
    return nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))


def seeded_noise(self, z, tensors):
    return z * (1 + torch.rand((), generator=self.generator, dtype=z.dtype))


RIGHT_FUNCTIONS = [
    ReadsSelf, ReadsBoth, Tied, Dropped, DroppedInTraining, SharedGenerator, PerClass,
    own(lambda self, z, tensors: z * tensors["w"]),
    own(lambda self, z, tensors: self.helper(z), helper=lambda self, z: z * softplus(self.w)),
    # `tensors` has the name of a parameter for another value
    own(lambda self, z, tensors: z * tensors["w"] + self.w * z.cos(),
        tensors=lambda self: {"w": 2 * self.w}),
    own(lambda self, z, tensors: z + self.net(z.unsqueeze(-1)).squeeze(-1), parts={"net": network}),
    own(lambda self, z, tensors: self.scale * z * self.w,
        parts={"w": parameter, "scale": lambda: torch.tensor(0.7)}),
    own(lambda self, z, tensors: z.sin() + z),  # does not read w
    *map(subclass, (Identity, GeneralizedSigSoftmax, SigSoftmax, Softcap, SigmoidCap, MultiMax)),
    lambda: subclass(PLIF)(knots=40),
    lambda: NarrowCells(knots=40),
    lambda: subclass(GeneralizedSigSoftmax)(learn=True),
]  # fmt: skip
NO_PARTS = {"parts": {}}
REFUSED = {
    "InPlace": (own(lambda self, z, tensors: z.add_(self.w * z.sin())), "in place"),
    "InPlaceTanh": (own(lambda self, z, tensors: z.tanh_(), **NO_PARTS), "in place"),
    "Column": (own(lambda self, z, tensors: z.sum(-1, keepdim=True), **NO_PARTS),
               "same shape and dtype"),
    "Half": (own(lambda self, z, tensors: z.half().tanh(), **NO_PARTS), "same shape and dtype"),
    "Normed": (Normed, "elementwise"),
    "AcrossClasses": (own(lambda self, z, tensors: z - z.amax(-1, True) + z.std(-1, keepdim=True),
                          **NO_PARTS), "elementwise"),
    "LessTheLargest": (own(lambda self, z, tensors: z - z.amax(-1, True), **NO_PARTS),
                       "elementwise"),
    "LessTheLeast": (own(lambda self, z, tensors: z - z.amin(-1, True), **NO_PARTS),
                     "elementwise"),
    "NotANumber": (own(lambda self, z, tensors: (z - 100).log(), **NO_PARTS), "add up to nan"),
    "Counts": (Counts, "keep no state"),
    "OwnGenerator": (own(seeded_noise, parts={
        "generator": lambda: torch.Generator().manual_seed(1)}), "default generator"),
    "WrongName": (own(lambda self, z, tensors: z * tensors["weight"]), "'weight'"),
    "NoParameter": (own(lambda self, z, tensors: z * self.w, parts={
        "w": lambda: torch.ones((), dtype=torch.float64, requires_grad=True)}),
        "no parameter of the layer"),
    "ForwardOnly": (type("ForwardOnly", (GeneralizedSigSoftmax,),
                         {"forward": lambda self, z: 2 * z}), "which the loss calls"),
}  # fmt: skip
named(**{name: cls for name, (cls, _) in REFUSED.items()}, Dropped=Dropped,
      DroppedInTraining=DroppedInTraining)  # fmt: skip
REFUSED_FUNCTIONS = dict(REFUSED.values())
