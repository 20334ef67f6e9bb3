"""AR, TAR and the loss by hand; gradients; tests/models/test_distributed shares streams out."""

import math

import pytest
import torch
from fairseq.logging import metrics
from torch.testing import assert_close

from highrank_plugins.trunks import activation_penalty, temporal_penalty
from tests.stream_corpus import CERTAIN
from tests.tasks.built import build


def test_penalties_equal_values_computed_by_hand():
    raw = torch.tensor([[[1.0, 2.0]], [[3.0, -1.0]], [[3.0, 1.0]]])  # [3, 1, 2]
    assert activation_penalty(raw).item() == pytest.approx((1 + 4 + 9 + 1 + 9 + 1) / 6)
    assert temporal_penalty(raw).item() == pytest.approx((4 + 9 + 0 + 4) / 4)
    assert temporal_penalty(raw[:1]).item() == 0
    # in float32 at least
    big = torch.full((2, 1, 1), 300.0, dtype=torch.float16)
    assert activation_penalty(big).item() == 90_000
    assert temporal_penalty(big * torch.tensor([[[1.0]], [[-1.0]]]).half()).item() == 360_000
    assert temporal_penalty(big[:1].double()).dtype == torch.float64


def losses(built, batch):
    """Return loss, sample size and log of a batch that begins the streams."""
    batch["net_input"]["state"] = None
    return built.criterion(built.model, batch)


def test_the_training_loss_is_the_nll_plus_weighted_penalties(stream_data):
    built = build(stream_data, *CERTAIN)
    built.model.double()
    batch = built.batches()[0]
    loss, size, log = losses(built, batch)
    tokens, target = batch["net_input"]["src_tokens"], batch["target"]
    features, _, raw = built.model.bptt_features(tokens)
    log_probs = built.model.head(features).transpose(0, 1)
    nll = -log_probs.gather(-1, target.unsqueeze(-1)).sum()
    ar, tar = features.square().mean(), (raw[1:] - raw[:-1]).square().mean()
    assert size == log["ntokens"] == target.numel()
    assert_close(log["nll_loss"], nll.detach(), rtol=1e-9, atol=0)
    assert_close(loss, nll + size * (2 * ar + 1 * tar), rtol=1e-9, atol=0)

    got = torch.autograd.grad(loss, list(built.model.parameters()))
    want = torch.autograd.grad(nll + size * (2 * ar + tar), list(built.model.parameters()))
    for one, other in zip(got, want, strict=True):
        assert_close(one, other, rtol=1e-9, atol=1e-12)
    built.model.eval()
    loss, _, log = losses(built, built.batches()[0])
    assert_close(loss.data, log["nll_loss"])
    raw = torch.randn(6, 4, 8)  # AR is of dropped outputs, TAR of raw ones
    dropped = raw * 2 * (torch.rand(raw.shape) < 0.5)
    want = 2 * dropped.square().mean() + (raw[1:] - raw[:-1]).square().mean()
    assert_close(built.criterion.penalty(dropped, raw), want)


def test_perplexity_is_computed_from_the_nll(stream_data):
    built = build(stream_data)
    logs = [
        {"loss": 90.0, "nll_loss": 70.0, "ntokens": 30, "sample_size": 30},
        {"loss": 30.0, "nll_loss": 20.0, "ntokens": 10, "sample_size": 10},
    ]
    with metrics.aggregate(new_root=True) as meters:
        built.criterion.reduce_metrics(logs)
        values = meters.get_smoothed_values()
    assert values["nll_loss"] == pytest.approx(90 / 40 / math.log(2), abs=1e-6)
    assert values["loss"] == pytest.approx(120 / 40 / math.log(2), abs=1e-6)
    assert values["ppl"] == pytest.approx(math.exp(90 / 40), abs=1e-4)
