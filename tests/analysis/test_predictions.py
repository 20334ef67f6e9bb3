"""Ranks of targets, entropy, and perplexity per band, by hand."""

import math

import pytest
import torch

from highrank_plugins.analysis import predictions
from highrank_plugins.analysis.predictions import Band, perplexity_by_band, target_ranks

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
