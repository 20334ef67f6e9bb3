"""KL divergences against loops over every pair and every class."""

import math

import pytest
import torch

from highrank_plugins.analysis import divergence
from highrank_plugins.analysis.divergence import mean_pairwise_kld, pairwise_kld, sampled_kld

CLASSES = 11


def log_probs(rows, seed=1, classes=CLASSES):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1)


def kld(log_p, log_q):
    """Return the divergence of one pair, class by class."""
    pairs = zip(log_p.tolist(), log_q.tolist(), strict=True)
    return math.fsum(math.exp(a) * (a - b) for a, b in pairs)


def all_pairs(p, q):
    return torch.tensor([[kld(a, b) for b in q] for a in p], dtype=torch.float64)


@pytest.fixture
def small_chunks(monkeypatch):
    """Cut matrices into chunks of three rows."""
    monkeypatch.setattr(divergence, "chunks", lambda x: iter(x.split(3)))


@pytest.mark.parametrize("shape", [(1, 1), (7, 4), (3, 10)])
def test_every_pair_has_its_divergence(shape, small_chunks):
    p, q = log_probs(shape[0]), log_probs(shape[1], seed=2)
    found = pairwise_kld(p, q)
    assert found.dtype == torch.float64
    torch.testing.assert_close(found, all_pairs(p, q), rtol=1e-12, atol=1e-14)


def test_float32_is_computed_in_float64():
    p, q = log_probs(5).float(), log_probs(6, seed=2).float()
    torch.testing.assert_close(pairwise_kld(p, q), all_pairs(p, q), rtol=1e-12, atol=1e-12)


def test_a_class_that_only_q_rules_out_makes_the_divergence_infinite():
    one_sided = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64).log()
    half = math.log(0.5)
    expected = [[0.0, 0.5 * 2 * (half - math.log(0.25))], [math.inf, 0.0]]
    torch.testing.assert_close(pairwise_kld(one_sided, one_sided), torch.tensor(expected).double())
    assert mean_pairwise_kld([one_sided]) == math.inf
    assert mean_pairwise_kld([one_sided[:1], one_sided[:1]]) == 0


@pytest.mark.parametrize("sizes", [[9], [2, 0, 7], [1] * 9])
def test_the_mean_of_all_pairs_is_computed_in_one_pass(sizes):
    p = log_probs(9)
    expected = float(all_pairs(p, p).mean())
    assert mean_pairwise_kld(iter(p.split(sizes))) == pytest.approx(expected, rel=1e-12)
    assert pairwise_kld(p, p).mean() == pytest.approx(expected, rel=1e-12)


def test_pairs_are_drawn_from_their_seed():
    p, q = log_probs(6), log_probs(4, seed=2)
    drawn = sampled_kld(p, q, pairs=2, seed=3)
    again, other = (sampled_kld(p, q, pairs=2, seed=seed) for seed in (3, 4))
    assert drawn == again != other
    values = all_pairs(p, q).flatten()
    pairs = torch.combinations(values, 2, with_replacement=True)
    means, errors = pairs.mean(1), (pairs[:, 0] - pairs[:, 1]).abs() / 2
    near = (means - drawn.mean).abs() + (errors - drawn.standard_error).abs()
    assert near.min() < 1e-12


def test_the_standard_error_of_the_estimate_is_right(small_chunks):
    p = log_probs(40)
    exact = mean_pairwise_kld([p])
    estimates = [sampled_kld(p, pairs=500, seed=seed) for seed in range(40)]
    deviations = [(e.mean - exact) / e.standard_error for e in estimates]
    assert 0.6 < math.sqrt(sum(d * d for d in deviations) / len(deviations)) < 1.5
    assert abs(sum(deviations)) / len(deviations) < 0.5
    assert {e.pairs for e in estimates} == {500}
