"""Gates of Mixtape by a softmax, the control of the sigmoid tree."""

import numpy as np
import pytest
import torch

from highrank_plugins.heads import build_head
from highrank_plugins.heads.naive import naive_nll
from tests.heads.cases import Case, arrays_of, make_features

OPTIONS = {"components": 3, "frequent": 3, "gate_dim": 2, "gates": "softmax"}
CASES = [Case("mixtape", options=OPTIONS), Case("mixtape", "gss", bias=False, options=OPTIONS)]
TARGET = torch.tensor([4, 1, 4, 0, 6])


@pytest.mark.parametrize("case", CASES, ids=str)
def test_log_probabilities_and_losses_equal_those_of_the_oracle(case):
    head, features = case.build(), make_features(5).requires_grad_()
    want = case.oracle_log_probs(arrays_of(head), features.detach().numpy())
    np.testing.assert_allclose(head(features).detach().numpy(), want, rtol=1e-9, atol=1e-12)
    inputs = [features, *head.parameters()]
    losses = [head.nll(features, TARGET, impl=impl).loss.sum() for impl in ("reference", "chunked")]
    losses += [head.nll(features, TARGET).loss.sum(), naive_nll(head, features, TARGET, 0.0)]
    first, *others = [torch.autograd.grad(loss, inputs) for loss in losses]
    for loss, gradients in zip(losses[1:], others, strict=True):
        torch.testing.assert_close(loss, losses[0])
        for ours, theirs in zip(gradients, first, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_finite_differences(case):
    head = case.build()
    features = make_features(5).requires_grad_()
    torch.autograd.gradcheck(
        lambda x: head.nll(x, TARGET, impl="chunked").loss, (features,), fast_mode=True
    )


def test_gates_are_probabilities():
    head, features = CASES[0].build(), make_features(5)
    gates_NKS = head.class_gates(features, head.tensors())
    assert gates_NKS.shape == (5, 3, 4)  # three frequent classes, and all others
    torch.testing.assert_close(gates_NKS.sum(1), torch.ones(5, 4, dtype=torch.float64))
    own = head.log_weights(features, TARGET, head.tensors()).exp()
    row = TARGET.clamp_max(3)
    torch.testing.assert_close(own, gates_NKS[torch.arange(5), :, row])


@pytest.mark.parametrize("impl", ["fused", "cpp", "triton"])
def test_fused_losses_are_refused(impl):
    head = CASES[0].build()
    with pytest.raises(ValueError, match="no fused loss; use impl='chunked'"):
        head.nll(make_features(5), TARGET, impl=impl)


def test_softmax_gates_of_two_components_equal_the_tree():
    """The softmax of one gate logit and 0 is the sigmoid of that logit."""
    options = {**OPTIONS, "components": 2}
    softmax = Case("mixtape", options=options).build()
    tree = Case("mixtape", options={**options, "gates": "tree"}).build()
    tree.load_state_dict(softmax.state_dict())
    features = make_features(5)
    torch.testing.assert_close(softmax(features), tree(features))


def test_unknown_gates_are_refused():
    with pytest.raises(ValueError, match="gates must be tree or softmax, got 'sparse'"):
        build_head("mixtape", num_classes=7, feature_dim=6, gates="sparse")
