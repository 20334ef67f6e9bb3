"""Options of the loss reach it or are refused; scores equal stock's."""

import inspect

import pytest
import torch
from fairseq.sequence_scorer import SequenceScorer

from highrank_plugins.common.user_error import UserError
from highrank_plugins.losses.kernels import triton
from highrank_plugins.losses.kernels.compiled import INSTEAD
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
    with pytest.raises(UserError, match="--head-z-loss has no effect with this criterion"):
        model(torch.tensor([[4, 5, 6]]))  # as stock's criterions do


def test_what_cannot_train_is_refused_and_scoring_falls_back(lm_data, monkeypatch):
    def fail(device):
        raise ValueError(f"impl: 'triton' cannot run on {device}: no C compiler; {INSTEAD}")

    model, loss = step(lm_data, "softmax", "--head-loss", "triton", "--head-loss-memory", 3)
    assert model.loss_options.items() >= {"impl": "triton", "memory": 3 * 2**20}.items()
    monkeypatch.setattr(triton, "check_available", fail)
    assert loss().loss.isfinite().all()  # a trained model is scored by what runs here
    model.training = True
    with pytest.raises(UserError, match=r"^--head-loss triton: .*--head-loss fused"):
        loss()
    model, loss = step(lm_data, "softmax", "--head-loss", "chunked", "--head-loss-filter")
    model.training = True
    with pytest.raises(UserError, match=r"^--head-loss chunked: .*\(--head-loss-filter\): impl"):
        loss()


# -- scores -----------------------------------------------------------------------------------

ARCHS = ["transformer_mos_tiny", "transformer_mixtape_tiny", "transformer_softmax_tiny"]
stock_generate = inspect.unwrap(SequenceScorer.generate)


@pytest.mark.parametrize("softmax_batch", [None, 7])
@pytest.mark.parametrize("archs", [[arch] for arch in ARCHS] + [ARCHS], ids="+".join)
def test_scores_equal_those_of_stock(archs, softmax_batch, mt_data):
    built = [build(mt_data, arch) for arch in archs]
    models = [b.model.eval() for b in built]
    sample = built[0].batch()
    scorer = SequenceScorer(built[0].task.target_dictionary, softmax_batch, compute_alignment=True)
    want = stock_generate(scorer, models, sample)
    got = scorer.generate(models, sample)
    for ours, theirs in zip(got, want, strict=True):
        torch.testing.assert_close(ours[0]["positional_scores"], theirs[0]["positional_scores"],
                                   rtol=1e-5, atol=1e-5)  # fmt: skip
        assert ours[0]["tokens"].equal(theirs[0]["tokens"])
        assert (ours[0]["alignment"] is None) == (theirs[0]["alignment"] is None)
