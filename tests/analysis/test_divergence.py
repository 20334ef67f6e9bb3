"""KL divergences against loops over every pair and every class."""

import math

import pytest
import torch

from highrank_plugins.analysis import divergence
from highrank_plugins.analysis.divergence import Estimate, drawn_pairs, mean_pairwise_kld, row_kld

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


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_rows_have_their_divergence(dtype):
    p, q = log_probs(7).to(dtype), log_probs(7, seed=2).to(dtype)
    torch.testing.assert_close(row_kld(p, q), all_pairs(p, q).diag(), rtol=1e-12, atol=1e-12)


def test_a_class_that_only_q_rules_out_makes_the_divergence_infinite():
    one_sided = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64).log()
    expected = [math.log(2), math.inf]
    torch.testing.assert_close(row_kld(one_sided, one_sided.flip(0)).tolist(), expected)
    assert mean_pairwise_kld([one_sided]) == math.inf
    assert mean_pairwise_kld([one_sided[:1], one_sided[:1]]) == 0


@pytest.mark.parametrize("sizes", [[9], [2, 0, 7], [1] * 9])
def test_the_mean_of_all_pairs_is_computed_in_one_pass(sizes, monkeypatch):
    monkeypatch.setattr(divergence, "chunks", lambda x: iter(x.split(3)))
    p = log_probs(9)
    expected = float(all_pairs(p, p).mean())
    assert mean_pairwise_kld(iter(p.split(sizes))) == pytest.approx(expected, rel=1e-12)


def test_pairs_are_drawn_from_their_seed():
    drawn, again, other = (drawn_pairs(6, 4, 50, seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, drawn, again)) and not all(map(torch.equal, drawn, other))
    assert [sorted({*of.tolist()}) for of in drawn] == [[*range(6)], [*range(4)]]


def test_the_standard_error_of_the_estimate_is_right():
    p = log_probs(40)
    exact, estimates = mean_pairwise_kld([p]), []
    for seed in range(40):
        i, j = drawn_pairs(40, 40, 500, seed)
        estimates.append(Estimate.of(row_kld(p[i], p[j])))
    deviations = [(e.mean - exact) / e.standard_error for e in estimates]
    assert 0.6 < math.sqrt(sum(d * d for d in deviations) / len(deviations)) < 1.5
    assert abs(sum(deviations)) / len(deviations) < 0.5
    assert {e.pairs for e in estimates} == {500}
