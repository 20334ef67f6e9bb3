"""Dynamic evaluation against NumPy in float64, its order, its limits, and what it refuses."""

import itertools

import pytest
import torch

from highrank_plugins.evaluation.adaptation import (
    Adaptation,
    GradientStatistics,
    decay_rates,
    dynamic_evaluation,
    gather_statistics,
)
from tests.evaluation.plain import (
    make_parameters,
    make_segments,
    plain_dynamic_evaluation,
    score_with,
)

TRAIN = make_segments([3, 5, 5, 2], seed=4)
TEST = make_segments([5, 5, 1, 5, 3], seed=5)
FORMS = list(itertools.product(["rms", "sum"], ["mean", "sum"]))


def statistics_of(parameters):
    statistics = GradientStatistics(parameters)
    for _ in gather_statistics(score_with(parameters), parameters, TRAIN, statistics):
        pass
    return statistics


def evaluate(lr, eps, lamb, statistic="rms", normalise="mean"):
    """Return (mean nll of each test segment, parameters in the end)."""
    parameters = make_parameters()
    mean_squares = statistics_of(parameters).finish(statistic)
    start = [p.detach().clone() for p in parameters]
    adaptation = Adaptation(lr, eps, lamb, normalise)
    scored = dynamic_evaluation(
        score_with(parameters), parameters, TEST, start, mean_squares, adaptation
    )
    return [step.nll / step.tokens for step in scored], [p.detach() for p in parameters]


def static(parameters, segments=TEST):
    state, losses = None, []
    for segment in segments:
        nll, tokens, state = score_with(parameters)(segment, state)
        losses.append(nll.item() / tokens)
    return losses


@pytest.mark.parametrize(("statistic", "normalise"), FORMS)
@pytest.mark.parametrize("lamb", [0.05, 0.9])  # without and with rates at their bound
def test_numbers_follow_the_equations(statistic, normalise, lamb):
    options = (0.03, 0.002, lamb, statistic, normalise)
    losses, parameters = evaluate(*options)
    want_losses, want_parameters = plain_dynamic_evaluation(TRAIN, TEST, *options)
    assert losses == pytest.approx(want_losses, rel=1e-12)
    for got, want in zip(parameters, want_parameters, strict=True):
        torch.testing.assert_close(got, torch.from_numpy(want), rtol=1e-12, atol=1e-13)


def test_dynamic_evaluation_without_a_step_is_static():
    for lamb in (0, 0.3):  # nothing leaves the trained weights, so nothing returns
        losses, parameters = evaluate(lr=0, eps=0.001, lamb=lamb)
        assert losses == static(make_parameters())
        assert all(torch.equal(a, b) for a, b in zip(parameters, make_parameters(), strict=True))


def test_rates_at_the_bound_restore_the_trained_weights():
    p, start = torch.tensor([3.0, 3.0], requires_grad=True), torch.tensor([1.0, 1.0])
    mean_squares, adaptation = [torch.tensor([9.0, 0.1])], Adaptation(lr=1.0, eps=1.0, lamb=0.8)

    def score(segment, state):
        return (0 * p).sum(), 1, state

    list(dynamic_evaluation(score, [p], [0], [start], mean_squares, adaptation))
    assert p[0].item() == 1
    assert p[1].item() == pytest.approx(3 - 0.8 * (0.1 / 4.55) * 2)


def test_unused_parameters_have_gradient_0():
    parameters = [*make_parameters(), torch.ones(3, dtype=torch.float64, requires_grad=True)]
    statistics = GradientStatistics(parameters)
    score = score_with(parameters[:2])
    list(gather_statistics(score, parameters, TRAIN, statistics))
    assert statistics.finish()[2].tolist() == [0, 0, 0]
    want = statistics_of(make_parameters()).finish()
    assert all(torch.equal(a, b) for a, b in zip(statistics.finish(), want, strict=False))


def test_gradients_are_gathered_under_no_grad():
    with torch.no_grad():
        assert statistics_of(make_parameters()).segments == len(TRAIN)


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Adaptation(-1, 1, 0), "lr must be at least 0, got -1"),
        (lambda: Adaptation(float("nan"), 1, 0), "lr must be at least 0, got nan"),
        (lambda: Adaptation(1, 0, 0), "eps must be above 0, got 0"),
        (lambda: Adaptation(1, 1, 1.5), r"lamb must lie in \[0, 1\], got 1.5"),
        (lambda: GradientStatistics([]).finish(), "no gradient statistics"),
        (lambda: GradientStatistics([]).finish("mean"), "statistic must be rms or sum"),
        (lambda: decay_rates([torch.zeros(2)], 0.1), "all 0"),
        (lambda: decay_rates([torch.tensor([1.0, float("nan")])], 0.1), "not finite"),
        (lambda: evaluate(lr=1e308, eps=1e-3, lamb=0), "lower --lr"),
        (lambda: decay_rates([torch.ones(2)], 0.1, "rms"), "normalise must be mean or sum"),
    ],
)
def test_invalid_values_are_refused(call, message):
    with pytest.raises((ValueError, FloatingPointError), match=message):
        call()
