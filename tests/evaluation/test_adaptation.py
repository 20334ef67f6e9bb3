"""Dynamic evaluation and the cache against their equations in float64; limits and refusals.

The language model is small, with a carried state and a tied matrix.
"""

import itertools

import pytest
import torch

from highrank_plugins.evaluation import adaptation as adapt
from highrank_plugins.evaluation.adaptation import Adaptation, GradientStatistics, NeuralCache

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


def evaluate(lr, eps, lamb, statistic="rms", normalise="mean"):
    """Return (mean nll of each test segment, parameters in the end)."""
    parameters = make_parameters()
    statistics, score = GradientStatistics(parameters), score_with(parameters)
    list(adapt.gather_statistics(score, parameters, TRAIN, statistics))
    mean_squares = statistics.finish(statistic)
    start = [p.detach().clone() for p in parameters]
    settings = Adaptation(lr, eps, lamb, normalise)
    scored = adapt.dynamic_evaluation(score, parameters, TEST, start, mean_squares, settings)
    return [step.nll / step.tokens for step in scored], [p.detach() for p in parameters]


@pytest.mark.parametrize("lamb", [0.05, 0.9])  # without and with rates at their bound
def test_numbers_follow_the_equations(lamb):
    for form in itertools.product(["rms", "sum"], ["mean", "sum"]):
        with torch.set_grad_enabled(form[0] == "sum"):  # gradients are computed all the same
            losses, parameters = evaluate(0.03, 0.002, lamb, *form)
        want_losses, want = plain(0.03, 0.002, lamb, *form)
        assert losses == pytest.approx(want_losses, rel=1e-12)
        torch.testing.assert_close(parameters, [p.detach() for p in want], rtol=1e-12, atol=1e-13)


def test_rates_at_the_bound_restore_the_trained_weights():
    """The parameters have no gradient, and one of them is not used."""
    p, start = torch.tensor([3.0, 3.0], requires_grad=True), torch.tensor([1.0, 1.0])
    mean_squares, settings = [torch.tensor([9.0, 0.1])], Adaptation(lr=1.0, eps=1.0, lamb=0.8)

    def score(segment, state):
        return (0 * p).sum(), 1, state

    list(adapt.dynamic_evaluation(score, [p], [0], [start], mean_squares, settings))
    assert p[0].item() == 1
    assert p[1].item() == pytest.approx(3 - 0.8 * (0.1 / 4.55) * 2)
    statistics = GradientStatistics([p, start.requires_grad_()])
    list(adapt.gather_statistics(score, [p, start], [0], statistics))
    assert [values.tolist() for values in statistics.finish()] == [[0, 0], [0, 0]]


# -- the cache ------------------------------------------------------------------------------------


def make_text(tokens=41, width=3, words=6):
    """Return hidden [N, F], targets [N] and log-probabilities of the model [N, M]."""
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(tokens, width, generator=generator, dtype=torch.float64)
    target = torch.randint(words, (tokens,), generator=generator)
    logits = torch.randn(tokens, words, generator=generator, dtype=torch.float64)
    return hidden, target, logits.log_softmax(-1)


def plain_cache(hidden, target, log_probs, theta, lamb, window):
    """Return log P(target), one token after another, of whole distributions."""
    scores = []
    for t in range(len(target)):
        probs = log_probs[t].exp()
        if t >= window:
            past = range(t - window, t)
            attention = torch.stack([theta * (hidden[i] @ hidden[t]) for i in past]).softmax(0)
            cache = torch.zeros_like(probs)
            for weight, i in zip(attention, past, strict=True):
                cache[target[i]] += weight
            probs = (1 - lamb) * probs + lamb * cache
            assert probs.sum().item() == pytest.approx(1)
        scores.append(probs[target[t]].log())
    return torch.stack(scores)


def stream(cache, text, sizes):
    """Compute the same by the cache, in pieces of these sizes, and as whole distributions."""
    scores = []
    for hidden, target, log_probs in zip(*(t.split(sizes) for t in text), strict=True):
        rows = dict(enumerate(log_probs))
        picked = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
        scores.append(cache.log_probs(hidden, target, picked, rows))
        whole = torch.stack([*rows.values()])
        assert whole.logsumexp(1).abs().max() < 1e-5
        torch.testing.assert_close(whole.gather(1, target.unsqueeze(1)).squeeze(1), scores[-1])
    return torch.cat(scores)


@pytest.mark.parametrize("block", [1, 4, 256])
@pytest.mark.parametrize("window", [1, 5, 19, 40, 41, 100])
def test_pieces_of_any_size_give_the_same_numbers(window, block, monkeypatch):
    monkeypatch.setattr(adapt, "BLOCK", block)
    text = make_text()
    want = plain_cache(*text, theta=0.7, lamb=0.3, window=window)
    for sizes in ([41], [1] * 41, [7, 1, 20, 2, 11], [40, 1]):
        cache = NeuralCache(0.7, 0.3, window)
        torch.testing.assert_close(stream(cache, text, sizes), want, rtol=1e-12, atol=1e-12)
    # what it remembers is its window, from which another one continues
    assert torch.equal(cache.hidden, text[0][-window:])
    assert torch.equal(cache.words, text[1][-window:])
    assert cache.hidden.untyped_storage().nbytes() == min(window, 41) * 3 * 8
    first, second = NeuralCache(0.7, 0.3, window), NeuralCache(0.7, 0.3, window)
    start = stream(first, [t[:17] for t in text], [17])
    second.hidden, second.words = first.hidden, first.words
    if window <= 17:
        got = torch.cat([start, stream(second, [t[17:] for t in text], [24])])
        torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_extreme_settings_of_the_cache():
    hidden, target, log_probs = text = make_text()
    want = plain_cache(*text, theta=0.0, lamb=0.3, window=8)  # all words weigh equally
    torch.testing.assert_close(stream(NeuralCache(0.0, 0.3, 8), text, [41]), want)
    unchanged = stream(NeuralCache(1.0, 0.0, 5), text, [10, 31])
    assert torch.equal(unchanged, log_probs.gather(1, target.unsqueeze(1)).squeeze(1))
    for theta in (1e4, -1e4):
        text = (hidden.float(), target, log_probs.float())
        assert stream(NeuralCache(theta, 0.2, 6), text, [41]).isfinite().all()


NAN, INF = float("nan"), float("inf")


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: Adaptation(-1, 1, 0), "lr must be at least 0, got -1"),
        (lambda: Adaptation(1, 1, 0, "max"), "normalise must be mean or sum, got 'max'"),
        (lambda: GradientStatistics([]).finish(), "no gradient statistics"),
        (lambda: adapt.decay_rates([torch.zeros(2)], 0.1), "all 0"),
        (lambda: adapt.decay_rates([torch.tensor([1.0, NAN])], 0.1), "not finite"),
        (lambda: NeuralCache(INF, 0.1, 5), "theta must be a number, got inf"),
        (lambda: NeuralCache(1.0, -0.1, 5), r"lamb must lie in \[0, 1\), got -0.1"),
        (lambda: NeuralCache(1.0, 0.1, 5).log_probs(*make_text(), None), r"expected hidden \[T, F"),
    ],
)
def test_invalid_values_are_refused(call, message):
    with pytest.raises((ValueError, FloatingPointError), match=message):
        call()
