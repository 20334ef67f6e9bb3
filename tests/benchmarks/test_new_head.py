"""A structure and a function that the package does not have are measured without further code."""

from dataclasses import replace

import pytest
import torch

from highrank_plugins.benchmarks.case import CaseError, LossCase
from highrank_plugins.benchmarks.implementations import available, loss_step
from highrank_plugins.heads.naive import naive_nll
from tests.heads.toys import toys  # noqa: F401  (pytest finds the fixture by its name)

pytestmark = pytest.mark.usefixtures("toys")
CASE = LossCase("residual", tokens=24, dim=16, classes=50, pointwise="bend", label_smoothing=0.1)


@pytest.mark.parametrize("impl", ["gemm_floor", "naive", "reference", "chunked", "auto"])
def test_every_implementation_takes_a_step(impl):
    assert available(impl, CASE) is None
    loss_step(impl, CASE)()


def test_naive_code_uses_the_heads_own_log_probabilities():
    head, features = CASE.build_head(), torch.randn(24, 16)
    target = torch.arange(24)
    want = head.nll(features, target, label_smoothing=0.1, reduction="sum", impl="reference")
    got = naive_nll(head, features, target, 0.1)
    torch.testing.assert_close(got, want.loss)


def test_a_new_head_describes_itself():
    assert CASE.layer().products(CASE.tokens) == [(24, 16, 50)]
    assert available("liger", CASE) == "plain softmax only"


@pytest.mark.parametrize("impl", ["fused", "cpp", "triton"])
def test_implementations_are_left_out_for_a_layer_without_a_fused_loss(impl):
    assert available(impl, CASE) == "residual has no fused loss"
    assert available(impl, replace(CASE, head="softmax")) is None


def test_a_mistyped_layer_gets_a_suggestion():
    with pytest.raises(CaseError, match="did you mean 'residual'"):
        LossCase("resdual", tokens=24, dim=16, classes=50).layer()
