"""CASES: every structure with every pointwise function, and every option that changes a number.

A new pointwise function is one line of POINTWISE. A new structure with a fused loss is one of
STRUCTURES; another has tests of its own, `test_<name>.py`. Each name here
needs a formula in `oracle.py`.
"""

import itertools
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from highrank_plugins.heads import build_head, build_pointwise
from tests.heads import oracle

CLASSES, FEATURE_DIM, EMBED_DIM = 7, 4, 3


@dataclass(frozen=True)
class Case:
    """Describe a head by name: what `build` needs to make it, and the oracle to repeat it."""

    head: str
    pointwise: str = "identity"
    bias: bool = True
    options: dict[str, Any] = field(default_factory=dict)
    pointwise_options: dict[str, Any] = field(default_factory=dict)

    def __str__(self) -> str:
        chosen = {**self.options, **self.pointwise_options}
        words = [self.head, self.pointwise, *(f"{k}={v}" for k, v in chosen.items())]
        return "-".join(words if self.bias else [*words, "bias=False"])

    def build(self, *, classes: int = CLASSES, feature_dim: int = FEATURE_DIM,
              dtype: torch.dtype = torch.float64, seed: int = 0, **more: Any):  # fmt: skip
        """Return the head with random parameters, gates and slopes far from the initial ones."""
        embed_dim = feature_dim if self.head == "softmax" else EMBED_DIM
        head = build_head(
            self.head,
            num_classes=classes,
            feature_dim=feature_dim,
            **{"embed_dim": embed_dim, "bias": self.bias, **self.options, **more},
            pointwise=build_pointwise(self.pointwise, **self.pointwise_options),
        ).to(dtype)
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for parameter in head.parameters():
                values = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
                parameter.copy_(0.8 * values)
        return head.eval()

    def with_options(self, **options: Any) -> "Case":
        return replace(self, options={**self.options, **options})

    def with_pointwise(self, pointwise: str, **options: Any) -> "Case":
        return replace(self, pointwise=pointwise, pointwise_options=options)

    def oracle_log_probs(self, arrays: oracle.Arrays, features: Any) -> Any:
        return oracle.log_probs(
            self.head, self.pointwise, arrays, features, self.options, self.pointwise_options
        )


SOFTMAX = Case("softmax")
MOC = Case("moc", options={"components": 3})
MOS = Case("mos", options={"components": 3})
MIXTAPE = Case("mixtape", options={"components": 4, "frequent": 3, "gate_dim": 2})
STRUCTURES = [SOFTMAX, MOC, MOS, MIXTAPE]
POINTWISE: list[tuple[str, dict[str, Any]]] = [
    ("identity", {}),
    ("sigsoftmax", {}),
    ("gss", {"c": -0.3, "k": 1.7}),
    ("gss", {"learn": True}),
    ("plif", {"bound": 2.0, "knots": 8}),
    ("monotone_mlp", {"units": 3}),
    ("softcap", {"cap": 2.0}),
    ("sigmoid_cap", {"height": 3.0, "shift": 0.4, "scale": 1.2}),
    ("multimax", {}),
]
PRODUCT = [
    Case(structure.head, pointwise, options=structure.options, pointwise_options=options)
    for structure, (pointwise, options) in itertools.product(STRUCTURES, POINTWISE)
]


def _mixtape(pointwise: str = "identity", bias: bool = True, **options: Any) -> Case:
    return Case("mixtape", pointwise, bias, {"frequent": 3, "gate_dim": 2, **options})


SOFTMAX_GATES = Case("mixtape", options={"components": 3, "frequent": 3, "gates": "softmax"})
CHOSEN = _mixtape("gss", frequent=None, frequent_classes=[5, 0, 3])
VARIANTS = [
    Case("softmax", "gss", bias=False),
    Case("moc", bias=False, options={"components": 1}),
    Case("mos", bias=False, options={"components": 1}),
    Case("mos", "plif", bias=False, options={"components": 2}, pointwise_options={"knots": 31}),
    Case("moc", options={"components": 2, "context_scale": 2.5}),
    Case("mos", "gss", options={"components": 2, "context_scale": 2.5}),
    _mixtape(context_scale=0.5),
    _mixtape(components=2),
    _mixtape("sigsoftmax", components=8),
    _mixtape(frequent=0),
    CHOSEN,
    _mixtape("gss", frequent=CLASSES),
    _mixtape(frequent=CLASSES, bias=False, gate_dim=5),
    _mixtape(gate_biases="none"),
    _mixtape(gate_biases="full"),
    _mixtape(gate_biases="full", components=8),
    _mixtape(gate_weight_norm=1.5),
    _mixtape(gates="softmax", components=3),
    _mixtape("gss", bias=False, gates="softmax", components=3),
    Case("mixtape", options={"gate_dim": 2}),
]
CASES = PRODUCT + VARIANTS


def arrays_of(head: torch.nn.Module) -> dict[str, Any]:
    return {name: p.detach().double().numpy() for name, p in head.named_parameters()}


def make_features(*leading: int, feature_dim: int = FEATURE_DIM, seed: int = 1) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*leading, feature_dim, generator=generator, dtype=torch.float64)
