"""Use of components, sharpness of gates, slopes: against the definitions, class by class."""

import math

import numpy as np
import pytest
import torch

from highrank_plugins.analysis import components
from highrank_plugins.heads import build_head, build_pointwise, pointwise_names


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
