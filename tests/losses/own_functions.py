"""Pointwise functions of one's own, that keep the contract of the losses or break it."""

import torch
from torch import nn
from torch.nn.functional import dropout

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


def define(base, parts=None, name="Own", **members):
    """Return a class with other members, and with `parts`: buffers where they are plain tensors."""

    def init(self, *sizes, **options):
        base.__init__(self, *sizes, **options)
        for part, make in (parts or {}).items():
            made = make()
            is_buffer = isinstance(made, torch.Tensor) and not made.requires_grad
            (self.register_buffer if is_buffer else self.__setattr__)(part, made)

    return type(name, (base,), {"__init__": init, **members})


def calling(name, change, base, **more):
    """Return a class whose method is its base's, and then `change` of self, result and inputs."""

    def method(self, *inputs):
        return change(self, getattr(base, name)(self, *inputs), *inputs)

    return define(base, **{name: method, **more})


class ClipBackward(torch.autograd.Function):
    @staticmethod
    def forward(ctx, z):
        return z.clone()

    @staticmethod
    def backward(ctx, grad):
        return grad.clamp(-0.01, 0.01)


def own(apply, **members):
    return define(Pointwise, apply_to=apply, **{"parts": {"w": parameter}, **members})


class Tied(Pointwise):
    def __init__(self):
        super().__init__()
        self.a = self.b = parameter()

    def apply_to(self, z, tensors):
        return z * self.a + tensors["b"] * z.sin()


def counts_calls(self, z, tensors):
    self.calls += 1
    return z * self.calls


def subclass(base):
    return calling("apply_to", lambda self, found, z, tensors: found + 0.5 * z.sin(), base)


def network():
    return nn.Sequential(nn.Linear(1, 3), nn.Tanh(), nn.Linear(3, 1))


def seeded_noise(self, z, tensors):
    return z * (1 + torch.rand((), generator=self.generator, dtype=z.dtype))


ReadsSelf = own(lambda self, z, tensors: z * self.w)
ReadsBoth = own(lambda self, z, tensors: z * self.w + tensors["w"] * z.sin())
Dropped = own(lambda self, z, tensors: dropout(z, 0.3, self.training) * self.w, name="Dropped")
Normed = own(lambda self, z, tensors: self.norm(z.reshape(-1, 1)).reshape(z.shape),
             parts={"norm": lambda: nn.BatchNorm1d(1, affine=False)})  # fmt: skip
Clipped = own(lambda self, z, tensors: ClipBackward.apply(z), parts={})
# torch draws normal numbers by 16: another number of tokens has others
Noisy = own(lambda self, z, tensors: z + 0.1 * torch.randn_like(z), parts={})
NoisyClipped = calling("apply_to", lambda self, found, *_: ClipBackward.apply(found), Noisy)
RIGHT_FUNCTIONS = [
    ReadsSelf, ReadsBoth, Tied, Dropped,
    # a class of our function that only adds a text keeps its kernels
    define(GeneralizedSigSoftmax, extra_repr=lambda self: "own"),
    own(lambda self, z, tensors: z * self.w,
        parts={"w": lambda: nn.Parameter(torch.rand(CLASSES) + 0.5)}),
    # `tensors` has the name of a parameter for another value
    own(lambda self, z, tensors: z * tensors["w"] + self.w * z.cos(),
        tensors=lambda self: {"w": 2 * self.w}),
    own(lambda self, z, tensors: z + self.net(z.unsqueeze(-1)).squeeze(-1), parts={"net": network}),
    own(lambda self, z, tensors: self.scale * z * self.w,
        parts={"w": parameter, "scale": lambda: torch.tensor(0.7)}),
    *map(subclass, (Identity, GeneralizedSigSoftmax, SigSoftmax, Softcap, SigmoidCap, MultiMax)),
    lambda: subclass(PLIF)(knots=40),
    lambda: subclass(GeneralizedSigSoftmax)(learn=True),
]  # fmt: skip
REFUSED_FUNCTIONS = {
    "in place": (own(lambda self, z, tensors: z.add_(self.w * z.sin())), "in place"),
    "column": (own(lambda self, z, tensors: z.sum(-1, keepdim=True)), "same shape and dtype"),
    "half": (own(lambda self, z, tensors: z.half().tanh()), "same shape and dtype"),
    "normed": (Normed, "elementwise"),
    "less the largest": (own(lambda self, z, tensors: z - z.amax(-1, True)), "elementwise"),
    "less the least": (own(lambda self, z, tensors: z - z.amin(-1, True)), "elementwise"),
    "not a number": (own(lambda self, z, tensors: (z - 100).log()), "add up to nan"),
    "counts": (own(counts_calls, calls=0), "keep no state"),
    "own generator": (own(seeded_noise, parts={
        "generator": lambda: torch.Generator().manual_seed(1)}), "default generator"),
    "wrong name": (own(lambda self, z, tensors: z * tensors["weight"]), "'weight'"),
    "no parameter": (own(lambda self, z, tensors: z * self.w, parts={
        "w": lambda: torch.ones((), dtype=torch.float64, requires_grad=True)}),
        "no parameter of the layer"),
    "forward only": (define(GeneralizedSigSoftmax, forward=lambda self, z: 2 * z),
                     "which the loss calls"),
}  # fmt: skip
