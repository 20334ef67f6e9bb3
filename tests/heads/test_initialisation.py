"""Initial values: W uniform ±0.1, b zero, linear maps torch's default, PLIF slopes around 1."""

import math

import pytest
import torch

from highrank_plugins.heads import build_head, build_pointwise
from tests.heads.cases import STRUCTURES

CLASSES, FEATURE_DIM = 200, 64


def build(case, **options):
    torch.manual_seed(0)
    return build_head(case.head, num_classes=CLASSES, feature_dim=FEATURE_DIM, **options)


def check_uniform(tensor, bound):
    """Assert that 2000 numbers or more are uniform within the bound."""
    assert tensor.abs().max() <= bound
    assert float(tensor.detach().std()) == pytest.approx(bound / math.sqrt(3), rel=0.05)


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_output_weights_start_uniform_and_biases_zero(case):
    head = build(case)
    check_uniform(head.weight, 0.1)
    assert torch.equal(head.bias, torch.zeros(CLASSES))
    given = head.weight.detach().clone()  # a weight that is shared keeps its values
    assert build(case, weight=head.weight).weight is head.weight
    assert torch.equal(head.weight, given)


@pytest.mark.parametrize("case", STRUCTURES[1:], ids=str)
def test_linear_maps_are_initialised_as_torch_does(case):
    head, bound = build(case), 1 / math.sqrt(FEATURE_DIM)
    linears = {n: p for n, p in head.named_parameters()
               if n.split(".")[0] in ("prior", "latent", "gate_hidden", "gate_shared")}  # fmt: skip
    assert len(linears) >= 3
    for parameter in linears.values():
        assert bound / 2 < parameter.abs().max() <= bound
    check_uniform(linears["latent.weight"], bound)


def test_class_gates_start_shared():
    head = build_head("mixtape", num_classes=CLASSES, feature_dim=FEATURE_DIM)
    assert torch.equal(head.gate_bias, torch.zeros_like(head.gate_bias))
    assert 0 < head.gate_embed.abs().max() < 1


@pytest.mark.parametrize("sd", [1.0, 0.25, 0.0])
def test_plif_slopes_start_around_one(sd):
    torch.manual_seed(0)
    logits = build_pointwise("plif", init_sd=sd).slope_logits.detach().double()
    assert logits.shape == (100_000,)
    assert float(logits.mean()) == pytest.approx(math.log(math.e - 1), abs=0.02)
    assert float(logits.std()) == pytest.approx(sd, rel=0.02, abs=1e-6)


def test_gss_starts_at_the_given_values():
    gss = build_pointwise("gss", c=0.5, k=3.0, learn=True)
    assert gss.c.item() == 0.5
    assert gss.log_k.exp().item() == pytest.approx(3.0, rel=1e-6)


def test_monotone_mlp_starts_near_the_identity():
    z = torch.linspace(-15, 15, 61)
    moved = build_pointwise("monotone_mlp")(z)
    assert (moved.diff() > 0).all()
    assert (moved - z).abs().max().item() < 1
