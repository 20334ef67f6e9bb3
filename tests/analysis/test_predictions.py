"""Predictions, divergences, components and gates, by hand and by loops over every class."""

import math

import pytest
import torch

from highrank_plugins.analysis import components, divergence, predictions
from highrank_plugins.analysis.divergence import Estimate, drawn_pairs, mean_pairwise_kld, row_kld
from highrank_plugins.analysis.predictions import Band, perplexity_by_band, target_ranks
from highrank_plugins.heads import build_pointwise
from tests.heads.cases import MIXTAPE, make_features

PROBS = torch.tensor(
    [[0.1, 0.5, 0.2, 0.2], [0.25, 0.25, 0.25, 0.25], [0.7, 0.1, 0.1, 0.1], [0.0, 0.0, 0.5, 0.5]],
    dtype=torch.float64,
)
LOG_PROBS = PROBS.log()
TARGET = torch.tensor([3, 1, 0, 0])
NLL = torch.tensor([1.0, 2.0, 3.0, 5.0])
COUNTS = torch.tensor([0, 10, 9, 100])


def test_ties_are_broken_by_id(monkeypatch):
    assert target_ranks(LOG_PROBS, TARGET).tolist() == [2, 1, 0, 2]
    monkeypatch.setattr(predictions, "chunks", lambda x: iter(x.split(3)))
    every_rank = torch.stack([target_ranks(LOG_PROBS, torch.full((4,), x)) for x in range(4)])
    assert torch.equal(every_rank[TARGET, range(4)], torch.tensor([2, 1, 0, 2]))
    assert torch.equal(every_rank.sort(0).values, torch.arange(4).unsqueeze(-1).expand(4, 4))


def test_bands_cover_every_token_once():
    assert perplexity_by_band(NLL, COUNTS, (10, 50)) == [
        Band(0, 10, 2, pytest.approx(math.exp(2))),
        Band(10, 50, 1, pytest.approx(math.exp(2))),
        Band(50, None, 1, pytest.approx(math.exp(5))),
    ]
    assert perplexity_by_band(NLL, COUNTS, ()) == [Band(0, None, 4, pytest.approx(math.exp(2.75)))]
    assert perplexity_by_band(NLL, COUNTS, (200,))[1] == Band(200, None, 0, None)
    assert perplexity_by_band(NLL * 1000, COUNTS, ())[0].perplexity == math.inf


def log_probs(rows, seed=1, classes=11):
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(rows, classes, generator=generator, dtype=torch.float64)
    return logits.log_softmax(-1)


def all_pairs(p, q):
    """Return the divergence of each pair of rows, class by class."""
    found = [
        [math.fsum(math.exp(a) * (a - b) for a, b in zip(i, j, strict=True)) for j in q.tolist()]
        for i in p.tolist()
    ]
    return torch.tensor(found, dtype=torch.float64)


def test_divergences_of_rows_and_of_all_pairs(monkeypatch):
    for dtype in (torch.float64, torch.float32):
        p, q = log_probs(7).to(dtype), log_probs(7, seed=2).to(dtype)
        torch.testing.assert_close(row_kld(p, q), all_pairs(p, q).diag(), rtol=1e-12, atol=1e-12)
    # a class that only q rules out makes it infinite
    one_sided = torch.tensor([[0.5, 0.5, 0.0], [0.25, 0.25, 0.5]], dtype=torch.float64).log()
    expected = [math.log(2), math.inf]
    torch.testing.assert_close(row_kld(one_sided, one_sided.flip(0)).tolist(), expected)
    assert mean_pairwise_kld([one_sided]) == math.inf
    assert mean_pairwise_kld([one_sided[:1], one_sided[:1]]) == 0
    monkeypatch.setattr(divergence, "chunks", lambda x: iter(x.split(3)))
    p = log_probs(9)
    for sizes in ([9], [2, 0, 7], [1] * 9):
        found = mean_pairwise_kld(iter(p.split(sizes)))
        assert found == pytest.approx(float(all_pairs(p, p).mean()), rel=1e-12), sizes


def test_drawn_pairs_estimate_the_mean_with_the_right_standard_error():
    drawn, again, other = (drawn_pairs(6, 4, 50, seed) for seed in (3, 3, 4))
    assert all(map(torch.equal, drawn, again)) and not all(map(torch.equal, drawn, other))
    assert [sorted({*of.tolist()}) for of in drawn] == [[*range(6)], [*range(4)]]
    p = log_probs(40)
    exact, estimates = mean_pairwise_kld([p]), []
    for seed in range(40):
        i, j = drawn_pairs(40, 40, 500, seed)
        estimates.append(Estimate.of(row_kld(p[i], p[j])))
    deviations = [(e.mean - exact) / e.standard_error for e in estimates]
    assert 0.6 < math.sqrt(sum(d * d for d in deviations) / len(deviations)) < 1.5
    assert abs(sum(deviations)) / len(deviations) < 0.5
    assert {e.pairs for e in estimates} == {500}


def test_component_use_equals_values_computed_by_hand():
    prior = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.0, 1.0, 0.0]])
    found = components.component_use(prior.log())
    torch.testing.assert_close(found.mean_prior, prior.double().mean(0))
    assert found.top_share.tolist() == [0.5, 0.5, 0.0]
    assert found.entropy == pytest.approx((math.log(2) + 1.5 * math.log(2)) / 4)
    mean = [1.75 / 4, 2 / 4, 0.25 / 4]
    assert found.overall_entropy == pytest.approx(-sum(p * math.log(p) for p in mean))


@pytest.mark.parametrize("tokens", [1, 3, 100])
def test_gates_are_averaged_in_groups_of_word_frequency(tokens):
    head, features = MIXTAPE.with_options(frequent=6).build(classes=9), make_features(2, 7)
    gates = head.class_gates(features.flatten(0, 1), head.tensors()).detach()
    entropy, largest = -(gates * gates.log()).sum(1).mean(0), gates.amax(1).mean(0)
    groups = components.gate_sharpness(head, features, ends=(2,), tokens=tokens)
    assert [group[:2] for group in groups] == [(0, 2), (2, 6), (6, 9)]
    for group, part in zip(groups, (slice(0, 2), slice(2, 6), slice(6, 7)), strict=True):
        assert group.entropy == pytest.approx(float(entropy[part].mean()), rel=1e-12)
        assert group.largest == pytest.approx(float(largest[part].mean()), rel=1e-12)
    # classes without gates of their own share one; a side without classes has no group
    for frequent, ends in ((0, [(0, 9)]), (9, [(0, 9)]), (1, [(0, 1), (1, 9)])):
        head = MIXTAPE.with_options(frequent=frequent).build(classes=9)
        assert [group[:2] for group in components.gate_sharpness(head, features)] == ends


def test_slopes_are_summarised_and_start_with_the_published_spread():
    """Compare with Ganea et al. 2019: the slopes that they print as learnt on WikiText-2."""
    torch.manual_seed(1)
    mean, sd, smallest, largest = components.slope_statistics(build_pointwise("plif"))
    assert mean == pytest.approx(1.10, abs=0.01) and sd == pytest.approx(0.62, abs=0.01)
    assert smallest == pytest.approx(0.02, abs=0.01) and largest == pytest.approx(5.16, abs=0.5)
    plif = build_pointwise("plif", bound=2.0, knots=4)
    plif.slope_logits.data = torch.tensor([1.0, 2.0, 3.0, 6.0]).expm1().log()
    assert components.slope_statistics(plif) == pytest.approx(
        (3.0, math.sqrt(14 / 4), 1.0, 6.0), rel=1e-5
    )
