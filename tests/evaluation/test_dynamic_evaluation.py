"""Dynamic evaluation against its equations in float64, its order, its limits, its refusals.

The language model is small, with a carried state and a tied matrix.
"""

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

WORDS, WIDTH = 7, 4


def make_parameters():
    """Return embedding [M, D], which is also the output matrix, and bias [M], in float64."""
    torch.manual_seed(0)
    shapes = (WORDS, WIDTH), (WORDS,)
    return [torch.randn(shape, dtype=torch.float64, requires_grad=True) for shape in shapes]


def make_segments(lengths, seed):
    """Return (words, next words), int64 [T] each, for each T of `lengths`."""
    torch.manual_seed(seed)
    text = torch.randint(WORDS, (sum(lengths) + 1,))
    return list(zip(text[:-1].split(lengths), text[1:].split(lengths), strict=True))


TRAIN = make_segments([3, 5, 5, 2], seed=4)
TEST = make_segments([5, 5, 1, 5, 3], seed=5)
FORMS = list(itertools.product(["rms", "sum"], ["mean", "sum"]))


def score_with(parameters):
    """Return the function that dynamic evaluation calls. The state is added to all features."""
    embedding, bias = parameters

    def score(segment, state):
        words, target = segment
        rows, state = embedding[words], 0 if state is None else state
        log_probs = ((rows + state) @ embedding.t() + bias).log_softmax(-1)
        nll = -log_probs[torch.arange(len(words)), target].sum()
        return nll, len(words), (0.5 * rows.mean(0) + 0.5 * state).detach()

    return score


def plain(lr, eps, lamb, statistic, normalise):
    """Return what `evaluate` does, from the equations."""
    start, now = make_parameters(), make_parameters()

    def gradients(parameters, segment, state):
        nll, tokens, state = score_with(parameters)(segment, state)
        return nll.item() / tokens, torch.autograd.grad(nll / tokens, parameters), state

    squares, state, losses = [torch.zeros_like(p) for p in start], None, []
    for segment in TRAIN:
        _, found, state = gradients(start, segment, state)
        squares = [s + g**2 for s, g in zip(squares, found, strict=True)]
    ms = [(s / (len(TRAIN) if statistic == "rms" else 1)).sqrt() for s in squares]
    norm = sum(m.mean() for m in ms) / (len(ms) if normalise == "mean" else 1)
    rates, state = [(m / norm).clamp(max=1 / lamb) for m in ms], None
    for segment in TEST:
        loss, found, state = gradients(now, segment, state)
        losses.append(loss)
        now = [
            (p + lamb * r * (p0 - p) - lr * g / (m + eps)).detach().requires_grad_()
            for p, g, p0, m, r in zip(now, found, start, ms, rates, strict=True)
        ]
    return losses, now


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


@pytest.mark.parametrize(("statistic", "normalise"), FORMS)
@pytest.mark.parametrize("lamb", [0.05, 0.9])  # without and with rates at their bound
def test_numbers_follow_the_equations(statistic, normalise, lamb):
    options = (0.03, 0.002, lamb, statistic, normalise)
    (losses, parameters), (want_losses, want) = evaluate(*options), plain(*options)
    assert losses == pytest.approx(want_losses, rel=1e-12)
    torch.testing.assert_close(parameters, [p.detach() for p in want], rtol=1e-12, atol=1e-13)


def test_dynamic_evaluation_without_a_step_is_static():
    state, static = None, []
    for segment in TEST:
        nll, tokens, state = score_with(make_parameters())(segment, state)
        static.append(nll.item() / tokens)
    for lamb in (0, 0.3):  # nothing leaves the trained weights, so nothing returns
        losses, parameters = evaluate(lr=0, eps=0.001, lamb=lamb)
        assert losses == static
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
    with torch.no_grad():  # gradients are gathered all the same
        want = statistics_of(make_parameters()).finish()
    assert all(torch.equal(a, b) for a, b in zip(statistics.finish(), want, strict=False))


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Adaptation(-1, 1, 0), "lr must be at least 0, got -1"),
        (lambda: Adaptation(float("nan"), 1, 0), "lr must be at least 0, got nan"),
        (lambda: Adaptation(1, 0, 0), "eps must be above 0, got 0"),
        (lambda: Adaptation(1, 1, 1.5), r"lamb must lie in \[0, 1\], got 1.5"),
        (lambda: Adaptation(1, 1, 0, "max"), "normalise must be mean or sum, got 'max'"),
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
