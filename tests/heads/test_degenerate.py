"""Layers that must coincide when an option takes its trivial value."""

import math

import pytest
import torch

from tests.heads.cases import MIXTAPE, MOC, MOS, POINTWISE, SOFTMAX, STRUCTURES, make_features

FEATURES = make_features(6)


def same(one, other):
    torch.testing.assert_close(one(FEATURES), other(FEATURES), rtol=1e-9, atol=1e-12)


def with_parameters(head, source, **changed):
    """Return `head` with those parameters of `source` that it has, and `changed`."""
    own = head.state_dict()
    head.load_state_dict(own | {k: v for k, v in source.state_dict().items() if k in own} | changed)
    return head


def test_softmax_is_torch_log_softmax():
    head = SOFTMAX.build()
    logits = torch.nn.functional.linear(FEATURES, head.weight, head.bias)
    torch.testing.assert_close(head(FEATURES), logits.log_softmax(-1), rtol=1e-12, atol=0)


@pytest.mark.parametrize("pointwise, options", POINTWISE, ids=str)
def test_mos_and_moc_of_one_component_are_equal(pointwise, options):
    mos = MOS.with_pointwise(pointwise, **options).build(components=1)
    moc = MOC.with_pointwise(pointwise, **options).build(components=1, seed=5)
    same(mos, with_parameters(moc, mos))


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_gss_with_k_1_is_the_identity(case):
    plain = case.build()
    same(plain, with_parameters(case.with_pointwise("gss", c=0.7, k=1.0).build(seed=5), plain))


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_plif_with_unit_slopes_is_the_identity(case):
    plain, other = case.build(), case.with_pointwise("plif", bound=1.5, knots=101).build(seed=5)
    slopes = torch.full((101,), math.log(math.e - 1), dtype=torch.float64)
    same(plain, with_parameters(other, plain, **{"pointwise.slope_logits": slopes}))


@pytest.mark.parametrize("case", STRUCTURES, ids=str)
def test_sigsoftmax_is_gss_with_c_0_and_k_2(case):
    one = case.with_pointwise("sigsoftmax").build()
    same(one, with_parameters(case.with_pointwise("gss", c=0.0, k=2.0).build(seed=5), one))


def test_mixtape_without_frequent_classes_is_moc():
    """Two components: the tree is the softmax of (u·g, 0), MoC's prior with a row of zeros."""
    mixtape = MIXTAPE.build(components=2, frequent=0)
    shared = mixtape.state_dict()["gate_shared.weight"]
    prior = torch.cat([shared, torch.zeros_like(shared)])
    moc = MOC.build(components=2, seed=5)
    same(mixtape, with_parameters(moc, mixtape, **{"prior.weight": prior}))


@pytest.mark.parametrize("components", [2, 4, 8])
def test_mixtape_shares_every_gate_without_frequent_classes(components):
    """Compare S = 0 with S = M whose own gates add nothing to the shared ones."""
    none = MIXTAPE.build(components=components, frequent=0)
    every = MIXTAPE.build(components=components, frequent=none.num_classes, seed=5)
    silent = {name: torch.zeros_like(t) for name, t in every.state_dict().items()
              if name in ("gate_embed", "gate_bias")}  # fmt: skip
    assert len(silent) == 2
    same(none, with_parameters(every, none, **silent))


def test_mixtape_and_moc_of_one_component_are_equal():
    moc = MOC.build(components=1)
    same(moc, with_parameters(MIXTAPE.build(components=1, seed=5), moc))
