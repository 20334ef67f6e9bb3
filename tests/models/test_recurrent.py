"""Every head on both recurrent trunks: what is learnt, and the loss that the model computes."""

import pytest
import torch

from highrank_plugins.heads import tokens
from tests.models.small import build


@pytest.fixture(
    params=[f"{trunk}_{token}" for trunk in ("lstm", "awd_lstm_lm") for token in sorted(tokens())]
)
def built(request, mt_data, lm_data):
    knots = ["--head-plif-knots", "50"] if "plif" in request.param else []
    smooth = ["--label-smoothing", "0.1"]
    data = lm_data if "_lm_" in request.param else mt_data
    return build(data, request.param, *smooth, *knots)


def test_every_parameter_learns(built):
    torch.manual_seed(0)
    built.criterion(built.model.train(), built.batch())[0].backward()
    for name, parameter in built.model.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        # initial biases of 0 and gates make no exception
        assert parameter.grad.abs().sum() > 0, name


def test_the_loss_is_the_negative_log_probability_of_the_target(built):
    sample, pad = built.batch(), built.task.target_dictionary.pad()
    model, target, inputs = built.model.eval(), sample["target"], sample["net_input"]
    log_probs, _ = model(**inputs)
    want = -log_probs.gather(-1, target.unsqueeze(-1)).squeeze(-1).masked_fill(target == pad, 0)
    each = model(**inputs, target=target, ignore_index=pad, reduction="none", accuracy=True)
    torch.testing.assert_close(each.loss, want, rtol=1e-5, atol=1e-5)
    assert torch.equal(each.correct, (log_probs.argmax(-1) == target) & (target != pad))
    total = model(**inputs, target=target, ignore_index=pad)
    torch.testing.assert_close(total.loss, want.sum(), rtol=1e-5, atol=1e-4)
    torch.testing.assert_close(total.nll, want.sum(), rtol=1e-5, atol=1e-4)
    normalised = model.get_normalized_probs((log_probs, None), log_probs=True)
    torch.testing.assert_close(normalised, log_probs)
