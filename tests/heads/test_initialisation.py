"""Initial values: W uniform ±0.1, b zero, linear maps torch's default, PLIF slopes around 1."""

import math

import pytest
import torch
from torch import nn

from highrank_plugins.heads import Head, build_head, build_pointwise
from highrank_plugins.heads.pointwise import Pointwise
from tests.heads.cases import PRODUCT, STRUCTURES

CLASSES, FEATURE_DIM = 200, 64


def build(case, **options):
    torch.manual_seed(0)
    return build_head(case.head, num_classes=CLASSES, feature_dim=FEATURE_DIM, **options)


def test_functions_start_at_the_given_values_or_near_the_identity():
    for sd in (1.0, 0.25, 0.0):
        torch.manual_seed(0)
        logits = build_pointwise("plif", init_sd=sd).slope_logits.detach().double()
        assert logits.shape == (100_000,)
        assert float(logits.mean()) == pytest.approx(math.log(math.e - 1), abs=0.02)
        assert float(logits.std()) == pytest.approx(sd, rel=0.02, abs=1e-6)
    gss = build_pointwise("gss", c=0.5, k=3.0, learn=True)
    assert gss.c.item() == 0.5
    assert gss.log_k.exp().item() == pytest.approx(3.0, rel=1e-6)
    z = torch.linspace(-15, 15, 61)
    moved = build_pointwise("monotone_mlp")(z)
    assert (moved.diff() > 0).all()
    assert (moved - z).abs().max().item() < 1


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_seeds_draw_in_a_fixed_order(case):
    """The matrix, contexts, then the prior, or gates of all classes and those of each."""
    head = build(case, **case.options)
    torch.manual_seed(0)
    want = {"weight": torch.empty(CLASSES, FEATURE_DIM).uniform_(-0.1, 0.1)}
    for name in ("latent", "prior", "gate_hidden", "gate_shared"):
        if made := getattr(head, name, None):
            linear = nn.Linear(FEATURE_DIM, made.out_features, bias=name == "latent")
            want |= {f"{name}.{n}": p for n, p in linear.named_parameters()}
    if case.head == "mixtape":
        want["gate_embed"] = torch.empty(3, 2).uniform_(-0.1, 0.1)
    state = head.state_dict()
    zeros = state.keys() & {"bias", "gate_bias"}
    assert state.keys() - zeros - {"_extra_state"} == want.keys()
    assert all(torch.equal(state[name], tensor) for name, tensor in want.items())
    assert zeros and not any(state[name].any() for name in zeros)
    shared = nn.Parameter(torch.full((CLASSES, FEATURE_DIM), 2.0))
    head = build(case, weight=shared)
    head.reset_parameters()
    assert head.weight is shared and bool((shared == 2).all())


def start(case):
    return build_head(
        case.head, num_classes=11, feature_dim=6, pointwise=case.pointwise,
        **case.options, **case.pointwise_options,
    )  # fmt: skip


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_a_reset_gives_what_the_constructor_gives(case):
    torch.manual_seed(0)
    head = start(case)
    first = {name: tensor.clone() for name, tensor in head.state_dict().items()}
    for parameter in head.parameters():
        parameter.detach().fill_(math.nan)
    torch.manual_seed(0)
    head.reset_parameters()
    assert all(torch.equal(tensor, first[name]) for name, tensor in head.state_dict().items())


@pytest.mark.parametrize("case", PRODUCT, ids=str)
def test_each_module_resets_its_own_parameters(case):
    with torch.device("meta"):
        head = start(case)
    head = head.to_empty(device="cpu")
    for parameter in head.parameters():
        parameter.detach().fill_(math.nan)
    for module in (m for m in head.modules() if m._parameters):
        own = {*map(id, module._parameters.values())}
        others = [p for p in head.parameters() if id(p) not in own]
        before = [bool(p.isnan().all()) for p in others]
        module.reset_parameters(*[False] * isinstance(module, Head))
        assert before == [bool(p.isnan().all()) for p in others]
        assert all(p.isfinite().all() for p in module.parameters(recurse=False))


def test_a_function_with_parameters_must_say_how_they_start():
    class Shift(Pointwise):
        def __init__(self):
            super().__init__()
            self.shift = nn.Parameter(torch.zeros(()))

    with pytest.raises(NotImplementedError, match="Shift has parameters: define its reset_para"):
        Shift().reset_parameters()
