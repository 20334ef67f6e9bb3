"""Compare autograd's gradients of the loss with complex steps through the oracle.

They are gradients of every parameter and of the features, with smoothing, weights, an ignored token
and a random upstream gradient.
"""

import numpy as np
import pytest
import torch

from tests.heads import oracle
from tests.heads.cases import CASES, CLASSES, arrays_of, make_features

TARGET = torch.tensor([2, 0, 6, 4])  # class 4 is ignored
WEIGHT = torch.tensor([0.7, 1.3, 2.0, 1.0], dtype=torch.float64)
UPSTREAM = torch.tensor([1.9, -0.6, 0.8, 3.0], dtype=torch.float64)


def oracle_loss(case, arrays):
    parameters = {name: a for name, a in arrays.items() if name != "features"}
    log_p = case.oracle_log_probs(parameters, arrays["features"])
    loss, _ = oracle.losses(log_p, TARGET.numpy(), WEIGHT.numpy(), 0.1, 4)
    return (loss * UPSTREAM.numpy()).sum()


@pytest.mark.parametrize("case", CASES, ids=str)
def test_gradients_equal_finite_differences(case):
    head, features = case.build(), make_features(4).requires_grad_()
    out = head.nll(features, TARGET, weight=WEIGHT, label_smoothing=0.1, ignore_index=4,
                   impl="reference")  # fmt: skip
    (out.loss * UPSTREAM).sum().backward()

    arrays = {**arrays_of(head), "features": features.detach().numpy()}
    want = oracle.gradients(lambda stepped: oracle_loss(case, stepped), arrays)
    for name, tensor in [*head.named_parameters(), ("features", features)]:
        got = torch.zeros_like(tensor) if tensor.grad is None else tensor.grad
        np.testing.assert_allclose(got.numpy(), want[name], rtol=1e-9, atol=1e-11, err_msg=name)
    assert np.abs(want["weight"]).sum(axis=1).all() and len(want["weight"]) == CLASSES
