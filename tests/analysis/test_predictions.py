"""Predictions, divergences, components and gates, by hand and by loops over every class."""

import math

import numpy as np
import pytest
import torch

from highrank_plugins.analysis import components, divergence, predictions
from highrank_plugins.analysis.divergence import Estimate, drawn_pairs, mean_pairwise_kld, row_kld
from highrank_plugins.analysis.predictions import Band, perplexity_by_band, target_ranks
from highrank_plugins.heads import build_head, build_pointwise, pointwise_names

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


def test_component_use_equals_values_computed_by_hand():
    prior = torch.tensor([[0.5, 0.5, 0.0], [1.0, 0.0, 0.0], [0.25, 0.5, 0.25], [0.0, 1.0, 0.0]])
    found = components.component_use(prior.log())
    torch.testing.assert_close(found.mean_prior, prior.double().mean(0))
    assert found.top_share.tolist() == [0.5, 0.5, 0.0]
    assert found.entropy == pytest.approx((math.log(2) + 1.5 * math.log(2)) / 4)
    mean = [1.75 / 4, 2 / 4, 0.25 / 4]
    assert found.overall_entropy == pytest.approx(-sum(p * math.log(p) for p in mean))


def random_head(name, **options):
    torch.manual_seed(1)
    head = build_head(name, num_classes=9, feature_dim=5, embed_dim=3, **options).double()
    for parameter in head.parameters():
        torch.nn.init.normal_(parameter)
    return head, torch.randn(2, 7, 5, dtype=torch.float64)


def gates_of_one_token(head, g):
    """Return π [S + 1, K] by the products of the tree, class by class; K = 4."""
    gates = []
    hidden = np.tanh(head.gate_hidden.weight.detach().numpy() @ g).reshape(3, -1)
    shared = head.gate_shared.weight.detach().numpy() @ g
    for x in range(head.frequent + 1):
        logits = shared
        if x < head.frequent:
            own = [hidden[k] @ head.gate_embed.detach().numpy()[x] for k in range(3)]
            logits = shared + own + head.gate_bias.detach().numpy()[x]
        a, b, c = 1 / (1 + np.exp(-logits))
        gates.append([a * b, a * (1 - b), (1 - a) * c, (1 - a) * (1 - c)])
    return np.array(gates)


@pytest.mark.parametrize("tokens", [1, 3, 100])
def test_gates_are_averaged_in_groups_of_word_frequency(tokens):
    head, features = random_head("mixtape", frequent=6, gate_dim=2, gate_noise=1.0)
    gates = np.stack([gates_of_one_token(head, g) for g in features.flatten(0, 1).numpy()])
    entropy, largest = -(gates * np.log(gates)).sum(-1).mean(0), gates.max(-1).mean(0)
    groups = components.gate_sharpness(head, features, ends=(2,), tokens=tokens)
    assert [group[:2] for group in groups] == [(0, 2), (2, 6), (6, 9)]
    for group, part in zip(groups, (slice(0, 2), slice(2, 6), slice(6, 7)), strict=True):
        assert group.entropy == pytest.approx(entropy[part].mean(), rel=1e-12)
        assert group.largest == pytest.approx(largest[part].mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("frequent", "groups"), [(0, [(0, 9)]), (9, [(0, 9)]), (1, [(0, 1), (1, 9)])]
)
def test_classes_without_gates_of_their_own_share_one(frequent, groups):
    head, features = random_head("mixtape", frequent=frequent, gate_dim=2)
    assert [group[:2] for group in components.gate_sharpness(head, features)] == groups


def test_slopes_are_summarised():
    plif = build_pointwise("plif", bound=2.0, knots=4)
    wanted = torch.tensor([1.0, 2.0, 3.0, 6.0])
    plif.slope_logits.data = wanted.expm1().log()
    assert components.slope_statistics(plif) == pytest.approx(
        (3.0, math.sqrt(14 / 4), 1.0, 6.0), rel=1e-5
    )


def test_the_initial_slopes_have_the_published_spread():
    """Compare with Ganea et al. 2019: the slopes that they print as learnt on WikiText-2."""
    torch.manual_seed(1)
    mean, sd, smallest, largest = components.slope_statistics(build_pointwise("plif"))
    assert mean == pytest.approx(1.10, abs=0.01)
    assert sd == pytest.approx(0.62, abs=0.01)
    assert smallest == pytest.approx(0.02, abs=0.01)
    assert largest == pytest.approx(5.16, abs=0.5)


@pytest.mark.parametrize("name", pointwise_names())
def test_curves_go_through_the_origin_and_rise(name):
    function = build_pointwise(name)
    z, f = components.pointwise_curve(function, -3, 3, points=7)
    assert z.tolist() == [-3, -2, -1, 0, 1, 2, 3]
    assert f[3] == 0
    assert (f.diff() > 0).all()
    torch.testing.assert_close(f.diff(), function(z).detach().diff())
