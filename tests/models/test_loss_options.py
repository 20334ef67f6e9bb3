"""Options of the loss reach it, and what cannot run here is refused before the first update."""

import pytest
import torch

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses.kernels import triton
from tests.models.small import build


def step(data, token, *words):
    """Return a model in training mode, and a function of its loss on three tokens."""
    built = build(data, f"transformer_lm_{token}", *words)
    model = built.model.eval()  # without dropout
    source = torch.tensor([[4, 5, 6]])

    def loss():
        return model(source, target=source, reduction="none")

    return model, loss


def test_the_z_loss_is_added_only_in_training(lm_data):
    model, loss = step(lm_data, "mos", "--head-components", "2", "--head-z-loss", "0.1")
    assert torch.equal(loss().loss, loss().nll)
    features, _ = model.features(torch.tensor([[4, 5, 6]]))
    model.training = True
    out = loss()
    norms = model.head.chunk_log_norms(features[0], model.head.tensors(), model.head.sample_masks(
        features.shape[:-1], features).rows(0, 3))  # fmt: skip
    assert norms.shape == (3, 2)
    penalty = 0.1 * norms.square().sum(-1)
    torch.testing.assert_close((out.loss - out.nll)[0], penalty, rtol=1e-4, atol=1e-5)


@pytest.mark.triton
def test_more_components_than_triton_supports_are_refused(lm_data, monkeypatch):
    monkeypatch.setattr(triton, "check_available", lambda device: None)
    words = ["--head-components", "33", "--head-embed-dim", "2", "--head-loss", "triton"]
    model, loss = step(lm_data, "mos", *words)
    model.training = True
    with pytest.raises(UserError, match=r"^--head-loss triton: 'triton' supports at most 32 comp"):
        loss()


def test_a_filter_that_the_loss_lacks_is_refused_before_an_update(lm_data):
    model, loss = step(lm_data, "softmax", "--head-loss", "chunked", "--head-loss-filter")
    model.training = True
    with pytest.raises(UserError, match=r"^--head-loss chunked: .*\(--head-loss-filter\): impl"):
        loss()


def test_without_triton_scoring_falls_back_and_training_is_refused(lm_data, monkeypatch):
    def fail(device):
        raise ValueError(f"impl: 'triton' cannot run on {device}: no C compiler; {triton.INSTEAD}")

    model, loss = step(lm_data, "softmax", "--head-loss", "triton")
    monkeypatch.setattr(triton, "check_available", fail)
    assert loss().loss.isfinite().all()  # a trained model is scored by what runs here
    model.training = True
    with pytest.raises(UserError, match=r"^--head-loss triton: .*--head-loss fused"):
        loss()
