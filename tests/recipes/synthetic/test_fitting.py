"""Test the synthetic experiment: the numbers of a fit, and that richer layers fit better."""

import math
from dataclasses import replace

import pytest
import torch

from highrank_plugins.heads import build_head
from recipes.synthetic.fitting import (
    DirichletSettings,
    dirichlet_experiment,
    dirichlet_targets,
    fit_targets,
    measure_fit,
)

SMALL = DirichletSettings(targets=60, classes=12, dim=3, steps=300, batch=60)


def test_targets_are_distributions_drawn_from_their_own_seed():
    targets = dirichlet_targets(SMALL)
    assert targets.shape == (60, 12)
    torch.testing.assert_close(targets.sum(1), torch.ones(60))
    torch.manual_seed(5)
    assert torch.equal(dirichlet_targets(SMALL), targets)
    assert not torch.equal(
        dirichlet_targets(DirichletSettings(targets=60, classes=12, seed=1)), targets
    )
    # E Σ P² = (α + 1) / (M α + 1): peaked for a small α
    assert float(targets.square().sum(1).mean()) == pytest.approx(1.1 / 2.2, abs=0.1)


def test_a_fit_is_measured_by_its_definition():
    head = build_head("softmax", num_classes=3, feature_dim=3, bias=False)
    head.weight.data = torch.eye(3)
    contexts = torch.tensor([[0.7, 0.2, 0.1], [0.5, 0.25, 0.25]]).log()
    targets = torch.tensor([[0.5, 0.5, 0.0], [0.0, 1.0, 0.0]])
    found = measure_fit(head, contexts, targets)
    first = 0.5 * math.log(0.5 / 0.7) + 0.5 * math.log(0.5 / 0.2)
    assert found.mean_kl == pytest.approx((first + math.log(4)) / 2, rel=1e-6)
    assert found.mode_match == 0.5


def test_layers_of_unbounded_rank_fit_better():
    """Find the paper's order: a learned function, then the mixture, then the softmax."""
    heads = {
        "softmax": {"name": "softmax"},
        "mos": {"name": "mos", "components": 4},
        "monotone": {"name": "softmax", "pointwise": "monotone_mlp"},
    }
    fits = dirichlet_experiment(heads, SMALL)
    assert list(fits) == list(heads)
    assert fits["monotone"].mean_kl < fits["mos"].mean_kl < fits["softmax"].mean_kl
    assert fits["monotone"].mode_match > fits["mos"].mode_match > fits["softmax"].mode_match
    one = {"mos": heads["mos"]}
    assert dirichlet_experiment(one, SMALL)["mos"] == fits["mos"]
    untrained = dirichlet_experiment(one, replace(SMALL, steps=1))["mos"]
    assert untrained.mean_kl > 1.5 * fits["softmax"].mean_kl


def test_a_full_rank_layer_reaches_its_targets():
    settings = DirichletSettings(targets=20, classes=4, dim=4, alpha=1.0, steps=600, batch=20)
    fit = dirichlet_experiment({"softmax": {"name": "softmax"}}, settings)["softmax"]
    assert fit.mean_kl < 1e-3
    assert fit.mode_match == 1


def test_bad_input_is_refused():
    head = build_head("softmax", num_classes=3, feature_dim=2)
    with pytest.raises(ValueError, match=r"targets: expected \[N, 3\], got \(5, 4\)"):
        fit_targets(head, torch.rand(5, 4), SMALL)
    with pytest.raises(ValueError, match=r"step 0: the loss is nan; lower lr"):
        fit_targets(head, torch.full((60, 3), math.nan), SMALL)
    with pytest.raises(ValueError, match="did you mean 'softmax'"):
        dirichlet_experiment({"x": {"name": "sotfmax"}}, SMALL)


def test_progress_sees_every_step():
    seen = {}

    def progress(steps, name):
        for step in steps:
            seen[name] = seen.get(name, 0) + 1
            yield step

    heads = {"softmax": {"name": "softmax"}, "gss": {"name": "softmax", "pointwise": "gss"}}
    dirichlet_experiment(heads, replace(SMALL, steps=7), progress)
    assert seen == {"softmax": 7, "gss": 7}
