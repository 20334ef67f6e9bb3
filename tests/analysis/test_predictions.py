"""Ranks of targets, entropy, and perplexity per band, by hand."""

import math

import pytest
import torch

from highrank_plugins.analysis import predictions
from highrank_plugins.analysis.predictions import (
    Band,
    mean_entropy,
    perplexity_by_band,
    target_ranks,
    top_k_share,
)

PROBS = torch.tensor(
    [[0.1, 0.5, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 0.5, 0.5]],
    dtype=torch.float64,
)
LOG_PROBS = PROBS.log()
TARGET = torch.tensor([3, 1, 0, 0])


def test_ties_are_broken_by_id(monkeypatch):
    assert target_ranks(LOG_PROBS, TARGET).tolist() == [2, 1, 0, 2]
    monkeypatch.setattr(predictions, "chunks", lambda x: iter(x.split(3)))
    assert target_ranks(LOG_PROBS, TARGET).tolist() == [2, 1, 0, 2]
    every_rank = torch.stack([target_ranks(LOG_PROBS, torch.full((4,), x)) for x in range(4)])
    assert torch.equal(every_rank.sort(0).values, torch.arange(4).unsqueeze(-1).expand(4, 4))


def test_top_k_share_equals_the_value_computed_by_hand():
    assert [top_k_share(LOG_PROBS, TARGET, k) for k in (1, 2, 3, 4)] == [0.25, 0.5, 1.0, 1.0]


def test_mean_entropy_equals_the_value_computed_by_hand():
    by_hand = [-sum(p * math.log(p) for p in row if p > 0) for row in PROBS.tolist()]
    assert mean_entropy(LOG_PROBS) == pytest.approx(sum(by_hand) / 4, rel=1e-12)


@pytest.mark.parametrize(
    ("target", "k", "message"),
    [
        (TARGET, 0, r"k must lie in \[1, 4\], got 0"),
        (TARGET, 5, r"k must lie in \[1, 4\], got 5"),
        (TARGET[:3], 1, r"target: expected class ids \[4\]"),
        (TARGET.double(), 1, "target: expected class ids"),
        (TARGET - 1, 1, r"ids must lie in \[0, 4\), got -1 to 2"),
        (TARGET + 1, 1, r"ids must lie in \[0, 4\), got 1 to 4"),
    ],
)
def test_bad_targets_are_refused(target, k, message):
    with pytest.raises(ValueError, match=message):
        top_k_share(LOG_PROBS, target, k)


@pytest.mark.parametrize("measure", [mean_entropy, lambda x: target_ranks(x, TARGET)])
def test_logits_and_nan_are_refused(measure):
    with pytest.raises(ValueError, match="row 0: the probabilities sum to"):
        measure(PROBS)
    bad = LOG_PROBS.clone()
    bad[2, 1] = math.nan
    with pytest.raises(ValueError, match="row 2: entry 1 is nan"):
        measure(bad)


NLL = torch.tensor([1.0, 2.0, 3.0, 5.0])
COUNTS = torch.tensor([0, 10, 9, 100])


def test_bands_cover_every_token_once():
    assert perplexity_by_band(NLL, COUNTS, (10, 50)) == [
        Band(0, 10, 2, pytest.approx(math.exp(2))),
        Band(10, 50, 1, pytest.approx(math.exp(2))),
        Band(50, None, 1, pytest.approx(math.exp(5))),
    ]
    assert perplexity_by_band(NLL, COUNTS, ()) == [Band(0, None, 4, pytest.approx(math.exp(2.75)))]
    assert perplexity_by_band(NLL, COUNTS, (200,))[1] == Band(200, None, 0, None)
    assert perplexity_by_band(NLL * 1000, COUNTS, ())[0].perplexity == math.inf


@pytest.mark.parametrize(
    ("nll", "counts", "bands", "message"),
    [
        (NLL, COUNTS[:2], (), "two vectors of one length"),
        (NLL.view(2, 2), COUNTS.view(2, 2), (), "two vectors of one length"),
        (NLL, COUNTS - 1, (), "counts: token 0 has a negative count"),
        (NLL.log() * math.nan, COUNTS, (), "nll: token 0 is NaN"),
        (NLL, COUNTS, (10, 10), "bands: ends must increase"),
        (NLL, COUNTS, (0, 10), "bands: ends must increase"),
    ],
)
def test_bad_bands_are_refused(nll, counts, bands, message):
    with pytest.raises(ValueError, match=message):
        perplexity_by_band(nll, counts, bands)
