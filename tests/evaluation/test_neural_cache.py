"""The cache against a loop over tokens with whole distributions, in float64."""

import pytest
import torch

from highrank_plugins.evaluation import adaptation
from highrank_plugins.evaluation.adaptation import NeuralCache

TOKENS, WIDTH, WORDS = 41, 3, 6


def make_text(tokens=TOKENS):
    """Return hidden [N, F], targets [N] and log-probabilities of the model [N, M]."""
    generator = torch.Generator().manual_seed(8)
    hidden = torch.randn(tokens, WIDTH, generator=generator, dtype=torch.float64)
    target = torch.randint(WORDS, (tokens,), generator=generator)
    logits = torch.randn(tokens, WORDS, generator=generator, dtype=torch.float64)
    return hidden, target, logits.log_softmax(-1)


def plain(hidden, target, log_probs, theta, lamb, window):
    """Return log P(target), one token after another."""
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
    """Compute the same by the cache, in pieces of these sizes."""
    hidden, target, log_probs = text
    picked = log_probs.gather(1, target.unsqueeze(1)).squeeze(1)
    pieces = zip(*(t.split(sizes) for t in (hidden, target, picked)), strict=True)
    return torch.cat([cache.log_probs(*piece) for piece in pieces])


@pytest.mark.parametrize("block", [1, 4, 256])
@pytest.mark.parametrize("sizes", [[41], [1] * 41, [7, 1, 20, 2, 11], [40, 1]], ids=str)
@pytest.mark.parametrize("window", [1, 5, 19, 40, 41, 100])
def test_pieces_of_any_size_give_the_same_numbers(window, sizes, block, monkeypatch):
    monkeypatch.setattr(adaptation, "BLOCK", block)
    text = make_text()
    want = plain(*text, theta=0.7, lamb=0.3, window=window)
    got = stream(NeuralCache(0.7, 0.3, window), text, sizes)
    torch.testing.assert_close(got, want, rtol=1e-12, atol=1e-12)


def test_a_cache_of_weight_0_changes_nothing():
    hidden, target, log_probs = make_text()
    got = stream(NeuralCache(1.0, 0.0, 5), (hidden, target, log_probs), [10, 31])
    assert torch.equal(got, log_probs.gather(1, target.unsqueeze(1)).squeeze(1))


def test_a_theta_of_0_weighs_all_words_equally_and_extreme_scores_stay_finite():
    hidden, target, log_probs = text = make_text()
    want = plain(*text, theta=0.0, lamb=0.3, window=8)
    torch.testing.assert_close(stream(NeuralCache(0.0, 0.3, 8), text, [41]), want)
    for theta in (1e4, -1e4):
        text = (hidden.float(), target, log_probs.float())
        assert stream(NeuralCache(theta, 0.2, 6), text, [41]).isfinite().all()


def test_the_cache_remembers_only_its_window():
    cache = NeuralCache(1.0, 0.1, 5)
    hidden, target, log_probs = make_text()
    stream(cache, (hidden, target, log_probs), [3, 38])
    assert torch.equal(cache.hidden, hidden[-5:])
    assert torch.equal(cache.words, target[-5:])
    assert cache.hidden.untyped_storage().nbytes() == 5 * WIDTH * 8


def test_a_cache_continues_from_another_one():
    text = make_text()
    want = stream(NeuralCache(0.7, 0.3, 9), text, [41])
    first, second = NeuralCache(0.7, 0.3, 9), NeuralCache(0.7, 0.3, 9)
    parts = [tuple(t[:17] for t in text), tuple(t[17:] for t in text)]
    start = stream(first, parts[0], [17])
    second.hidden, second.words = first.hidden, first.words
    got = torch.cat([start, stream(second, parts[1], [24])])
    torch.testing.assert_close(got, want, rtol=1e-13, atol=1e-13)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ((float("inf"), 0.1, 5), "theta must be a number, got inf"),
        ((1.0, 1.0, 5), r"lamb must lie in \[0, 1\), got 1.0"),
        ((1.0, -0.1, 5), r"lamb must lie in \[0, 1\), got -0.1"),
        ((1.0, 0.1, 0), "window must be at least 1, got 0"),
    ],
)
def test_invalid_values_are_refused(options, message):
    with pytest.raises(ValueError, match=message):
        NeuralCache(*options)
    with pytest.raises(ValueError, match=r"expected hidden \[T, F\]"):
        NeuralCache(1.0, 0.1, 5).log_probs(make_text()[0][:9], *make_text()[1:])
